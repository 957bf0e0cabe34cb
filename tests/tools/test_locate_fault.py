"""`locate_fault` on CPU packages, scripts and commands, and its parts that need no GPU."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload, Workload
from mcp_server.package.view import view_package
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context
from mcp_server.tools import fault_run
from mcp_server.tools.fault_run import core_environment, prepare, read_core, run_sanitizer
from mcp_server.tools.machine import find_tool
from mcp_server.worker import events
from tests.conftest import Zoo
from tests.recorded import RECORDINGS
from tests.support.tools import tool
from tests.worker.support import QUICK
from tests.zoo.names import thorough


def call(zoo: Zoo, name: str, inputs: str) -> PackageWorkload:
    return PackageWorkload(package=zoo(name), inputs=zoo(name).with_name(f"{name}.{inputs}.pt"))


def located(context: Context, workload: Workload, **asked: Any) -> Any:
    return tool("locate_fault", context.directory, workload, **asked)


@pytest.mark.slow
def test_an_overrun_of_a_weight_is_joined_with_its_index(zoo: Zoo, context: Context) -> None:
    """AddressSanitizer sees row 32 of 32, which is linked with line, weight, row and input."""
    found = located(context, call(zoo, "ranker", "bad-index"))
    fault = found.fault
    assert fault is not None and fault.launch is not None
    assert fault.missed is not None and fault.blame is not None
    assert (found.tool, fault.kernel, fault.launch.index) == ("asan", "cpp_fused_embedding_0", 0)
    assert fault.location.startswith("kernel.cpp:")
    assert "in_ptr1" in fault.code
    missed = fault.missed
    assert (missed.variable, missed.side, missed.index) == ("table_weight", "after", [32, 0])
    assert (fault.parts[0].maximum, fault.parts[0].limit) == (32, 32)
    assert (fault.blame.kind, fault.blame.input_index) == ("input", 0)


@pytest.mark.slow
def test_a_healthy_call_has_no_fault(zoo: Zoo, context: Context) -> None:
    """Both methods ran without a finding, and the summary does not call the numbers right."""
    found = located(context, call(zoo, "ranker", "inputs"))
    assert not found.found
    assert [a.tool for a in found.attempts] == ["asan", "native"]
    assert "may still be wrong" in found.summary


def test_a_tool_of_the_other_device_is_refused_with_those_that_fit(zoo: Zoo, tmp_path: Path) -> None:
    """memcheck sees no CPU code."""
    with pytest.raises(ProblemError) as problem:
        tool("locate_fault", tmp_path, call(zoo, "ranker", "inputs"), tool="memcheck")
    assert "asan" in str(problem.value)


STAND_IN = """#!/bin/sh
# Stands in for compute-sanitizer: prints a recorded report, then runs the program as the real one does.
cat {recording}
while [ "$1" != "{python}" ]; do shift; done
exec "$@"
"""


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute-sanitizer on PATH that reports a recorded fault."""
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    recording = RECORDINGS / "moe-dispatch.memcheck.txt"
    path.write_text(STAND_IN.format(recording=recording, python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


@pytest.mark.slow
def test_the_sanitizer_wraps_an_observed_run(zoo: Zoo, context: Context, sanitizer: Path) -> None:
    """The program runs under the prefix and writes its journal, and the report in its output is read."""
    assert find_tool("compute-sanitizer", {}, Path(sys.executable)) == sanitizer

    async def run() -> Any:
        target = await prepare(context, call(zoo, "ranker", "inputs"), Options())
        return await run_sanitizer(context, target, "memcheck")

    found = anyio.run(run)
    assert found.errors == 148_640
    assert found.accesses[0].kernel == "dispatch_rows"
    assert found.done.last(events.Called) is not None
    assert len(found.evidence.journal.launches) > 1
    assert found.evidence.ranges


@pytest.mark.slow
def test_a_run_that_went_on_unchecked_is_no_clean_run(zoo: Zoo, context: Context, sanitizer: Path) -> None:
    """If compute-sanitizer did not attach, the method fails and the next one is tried."""
    told = sanitizer.read_text().replace("moe-dispatch.memcheck", "no-attach.synccheck")
    sanitizer.write_text(told)

    async def run() -> None:
        target = await prepare(context, call(zoo, "ranker", "inputs"), Options())
        with pytest.raises(ProblemError, match="No attachable process"):
            await run_sanitizer(context, target, "memcheck")

    anyio.run(run)


def test_expandable_segments_do_not_reach_the_sanitizer() -> None:
    """They give false alarms. Other settings of the allocator stay."""
    given = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert "PYTORCH_CUDA_ALLOC_CONF" in fault_run.left_out(given)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in fault_run.left_out({"PYTORCH_CUDA_ALLOC_CONF": "x:1"})


def test_a_device_assert_becomes_the_assertion_that_was_printed(zoo: Zoo) -> None:
    """memcheck's record of an assert names no kernel, but the printed line does."""
    recorded, view = RECORDINGS / "feature-cache.memcheck.txt", view_package(zoo("ranker"))
    _, accesses = fault_run.read_report(recorded, "memcheck", view)
    access = accesses[0]
    assert access.condition == "0 <= tmp4 < ks0"
    assert access.line is not None
    assert access.file.endswith(".py")


def test_a_progress_log_is_enough_without_a_debugger(context: Context, tmp_path: Path) -> None:
    """Without core file and cuda-gdb, the driver's lines name exception and kernel."""
    log = tmp_path / "output.log"
    log.write_text(
        "[06:43:15] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ILLEGAL_ADDRESS (14)\n"
        "[06:43:15] coredump:   - PC 0x7462c3bac310\n"
        "[06:43:15] coredump:   #0\t0x7462c3bac620\tadd_position_kernel\n"
    )
    (tmp_path / "none").mkdir()
    access = anyio.run(read_core, context, tmp_path / "none", log, None)
    assert access is not None
    assert access.kernel == "add_position_kernel"
    assert "skip_global_memory" in core_environment(tmp_path)["CUDA_COREDUMP_GENERATION_FLAGS"]


CODE = """
import sys, torch
model = torch._inductor.aoti_load_package(sys.argv[1])
inputs = torch.load(sys.argv[2])
model(inputs[0] * 0)
model(*inputs)
"""


def program(directory: Path, package: Path, **env: str) -> ScriptWorkload:
    script = directory / "serve.py"
    script.write_text(CODE)
    bad = package.with_name("ranker.bad-index.pt")
    return ScriptWorkload(script=script, args=[str(package), str(bad)], cwd=directory, env={**QUICK, **env})


def located_in(directory: Path, workload: Workload, **asked: Any) -> Any:
    return tool("locate_fault", directory / "job", workload, **asked)


@thorough
def test_the_failing_call_of_a_script_is_made_again(zoo: Zoo, tmp_path: Path) -> None:
    """The second call runs under AddressSanitizer. Its address and the script's line are known."""
    found = located_in(tmp_path, program(tmp_path, zoo("ranker")))
    assert (found.tool, found.instrumented) == ("asan", True)
    assert found.notes[0].endswith("serve.py:6")
    assert found.fault is not None and found.fault.missed is not None and found.fault.blame is not None
    assert (found.fault.missed.index, found.fault.blame.input_index) == ([32, 0], 0)


@thorough
def test_a_script_whose_inputs_were_not_kept_runs_under_the_tool(zoo: Zoo, tmp_path: Path) -> None:
    """Inputs above the cap cannot be replayed, so the program itself runs, and launches have no addresses."""
    found = located_in(tmp_path, program(tmp_path, zoo("ranker"), AOTI_DEBUG_CAPTURE_CAP="100"))
    assert (found.tool, found.instrumented) == ("native", False)
    assert "not kept" in found.notes[0]
    assert found.fault is not None and found.fault.blame is not None and found.fault.launch is not None
    assert (found.fault.kind, found.fault.blame.input_index) == ("assert", 0)


@pytest.mark.slow
def test_a_program_that_shows_no_package_needs_one(zoo: Zoo, tmp_path: Path) -> None:
    """A host that the hook cannot see into needs its package."""
    host = CommandWorkload(argv=[sys.executable, "-I", "-c", "import os; os.abort()"], cwd=tmp_path)
    with pytest.raises(ProblemError, match="no load of a package was seen"):
        located_in(tmp_path, host)
    found = located_in(tmp_path, host, package=zoo("ranker"))
    assert not found.found and [attempt.tool for attempt in found.attempts] == ["native"]
