"""A C++ host without Python also writes the journal, and a journal can be read wherever it ends."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from elftools.elf.elffile import ELFFile

from mcp_server.logs.journal import read_journal, read_journal_file
from mcp_server.model import CommandWorkload, PackageWorkload
from mcp_server.probes.cache import Cache
from mcp_server.runtime.context import Context
from mcp_server.tools.trace_launches import trace_launches
from tests.conftest import Zoo, host_of
from tests.recorded import RECORDINGS
from tests.support.command import output_of
from tests.support.tools import verdict
from tests.zoo.names import nightly

SOURCE = Path(__file__).with_name("host.cpp")


@pytest.fixture(scope="session")
def host() -> Path:
    return host_of(SOURCE)


def run_host(
    host: Path, zoo: Zoo, cache: Cache, context: Context, mode: str
) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the package that `trace_launches` returns, in the environment that it names."""
    workload = PackageWorkload(package=zoo("ranker"))
    prepared = anyio.run(lambda: trace_launches(context, workload, cache=cache))
    assert prepared.how == "not_run"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= prepared.environment
    done = output_of([str(host), str(prepared.package), mode], env=env, timeout=600)
    return done, read_journal_file(Path(prepared.environment["AOTI_DEBUG_JOURNAL"]))


@pytest.mark.slow
def test_a_host_without_python_writes_a_journal(host: Path, zoo: Zoo, cache: Cache, context: Context) -> None:
    """A process without an interpreter writes all five launches with their arguments."""
    with host.open("rb") as file:
        needed = [tag.needed for tag in ELFFile(file).get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert "libtorch_cpu.so" in needed and not [name for name in needed if "python" in name]
    done, journal = run_host(host, zoo, cache, context, "good")
    assert (done.returncode, done.stdout) == (0, "1 outputs\n"), done.stderr
    assert journal.ending.how == "returned" and len(journal.launches) == 5
    ids = journal.launches[0].arguments[0].tensor
    assert ids is not None and (ids.dtype, ids.shape) == ("int64", (8, 6))


@pytest.mark.slow
def test_a_segmentation_fault_in_a_host_leaves_the_launch_and_the_address(
    host: Path, zoo: Zoo, cache: Cache, context: Context
) -> None:
    """The journal ends inside the first launch, whose first argument is the input that cannot be read."""
    done, journal = run_host(host, zoo, cache, context, "unmapped")
    ending = journal.ending
    assert done.returncode == -signal.SIGSEGV and ending.how == "died"
    assert ending.launch is not None and ending.launch.launch == 0
    given = ending.launch.arguments[0].tensor
    assert given is not None and f"unmapped {given.pointer:#x}" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "category", "confidence", "named"),
    [
        ("outside", "index_out_of_bounds", "proven", "0 to 31"),
        *nightly(("unmapped", "input_mismatch", "likely", "launch 0")),
    ],
)
def test_the_package_among_the_arguments_of_a_host_is_read(
    host: Path, zoo: Zoo, tmp_path: Path, mode: str, category: str, confidence: str, named: str
) -> None:
    """The recorder keeps the host's call, and a replay proves the fault, except if the memory is unmapped."""
    argv = [str(host), str(zoo("ranker")), mode]
    found = verdict(tmp_path, CommandWorkload(argv=argv, cwd=tmp_path))
    assert (found.outcome, found.category, found.confidence) == ("fault", category, confidence)
    assert named in found.summary


# Journals.

GOLD = RECORDINGS / "journals"


def read(name: str) -> str:
    return (GOLD / name).read_text()


def test_a_journal_written_with_another_torch_reads_the_same() -> None:
    """The `branch` model of the zoo, recorded by benchmarks.releases: only launches of the branch taken, with
    all tensors described, although torch 2.8 has no function that says whether a tensor is defined.
    """
    journal = read_journal(read("branch.torch-2.8.jsonl").splitlines())
    assert journal.cut_lines == 0 and journal.ending.how == "returned"
    first = [launch.arguments[0].name for launch in journal.launches]
    assert first == ["arg0_1", "true_graph_0_arg0_1", "true_graph_0_buf1", "buf4"]
    arguments = [argument for launch in journal.launches for argument in launch.arguments]
    assert all(argument.tensor is not None or argument.value is not None for argument in arguments)
    assert journal.launches[2].kernel == "aoti_torch_cpu_mm_out"


def test_the_ending_is_the_launch_that_did_not_come_back() -> None:
    """A journal cut during a launch means that the process died in it; an exception is not a death.

    The fault line of the synchronous mode ends the launch, with the device's error.
    """
    lines = read("branch.torch-2.8.jsonl").splitlines()
    begun = max(i for i, line in enumerate(lines) if '"phase":"before"' in line)
    last = json.loads(lines[begun])["launch"]
    error = "cudaErrorIllegalAddress: an illegal memory access"
    fault = json.dumps({**json.loads(lines[begun + 1]), "event": "fault", "error": error})
    for more, how in (([], "died"), ([lines[begun + 1]], "between"), ([fault], "fault")):
        ending = read_journal([*lines[: begun + 1], *more]).ending
        assert ending.how == how and ending.launch is not None and ending.launch.launch == last
        assert ending.launch.fault == (error if how == "fault" else "")
    ending = read_journal(read("threw.jsonl").splitlines()).ending
    assert ending.how == "threw" and ending.launch is not None
    assert ending.launch.kernel == "cpp_fused_embedding_0"
