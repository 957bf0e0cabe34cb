"""Repeats with deterministic flags and filled memory: stable, varying, flaky and clean."""

from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import ProblemError
from mcp_server.model import CommandWorkload, ExportedWorkload, PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.compare_with_eager import Repeats
from tests.conftest import Zoo
from tests.diagnosis.support import worker_run
from tests.support.tools import tool

# Counts its runs in a file, and does what argv says for each run.
TAKES_TURNS = """
import os, pathlib, sys
counter = pathlib.Path("count")
turn = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(turn + 1))
act = sys.argv[1 + turn]
if act == "segfault":
    os.kill(os.getpid(), 11)
if act == "error":
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


def repeated(directory: Path, workload: Workload, **options: Any) -> Any:
    return tool("run_deterministic", directory / "job", workload, **options)


def turns(directory: Path, *acts: str) -> Any:
    script = directory / "turns.py"
    script.write_text(TAKES_TURNS)
    workload = ScriptWorkload(script=script, args=list(acts), cwd=directory)
    return repeated(directory, workload, repeats=len(acts))


@pytest.mark.slow
def test_a_stable_failure(zoo: Zoo, tmp_path: Path) -> None:
    """A bad dtype fails in the same way each time, and the flag that finds it is reported."""
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=package.with_name("ranker.bad-dtype.pt"))
    found = repeated(tmp_path, workload, repeats=2)
    assert found.pattern == "stable" and found.failing == 2 and found.outputs_differ is None
    assert found.flags["AOTI_RUNTIME_CHECK_INPUTS"] == found.flags["CUDA_LAUNCH_BLOCKING"] == "1"
    failure = found.runs[0].failure
    assert failure is not None and "unmatched dtype" in failure.text and found.runs[0].phase == "failed"
    assert found.runs[0].log.path.exists() and found.cost.runs == 2


@pytest.mark.slow
def test_clean_runs_have_equal_outputs(zoo: Zoo, tmp_path: Path) -> None:
    """Without a failure, outputs are compared. A note says what `clean` does not prove."""
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=package.with_name("ranker.inputs.pt"))
    found = repeated(tmp_path, workload, repeats=2)
    assert (found.pattern, found.failing, found.outputs_differ) == ("clean", 0, False)
    assert any("silent" in note for note in found.notes)


@pytest.mark.slow
def test_flags_of_the_workload_are_kept(zoo: Zoo, tmp_path: Path) -> None:
    """Without input checks, the bad dtype gives another failure or none."""
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=package.with_name("ranker.bad-dtype.pt"))
    workload = workload.model_copy(update={"env": {"AOTI_RUNTIME_CHECK_INPUTS": "0"}})
    found = repeated(tmp_path, workload, repeats=1)
    assert found.flags["AOTI_RUNTIME_CHECK_INPUTS"] == "0"
    failure = found.runs[0].failure
    assert failure is None or "unmatched dtype" not in failure.text
    assert any("one run" in note for note in found.notes)


def test_flaky_and_varying_failures(tmp_path: Path) -> None:
    """If only some runs fail, the failure is flaky. If all fail, in two ways, it is varying."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    flaky = turns(tmp_path / "a", "pass", "segfault", "pass")
    assert (flaky.pattern, flaky.failing, flaky.signatures) == ("flaky", 1, {"SIGSEGV": 1})
    assert [run.failure is None for run in flaky.runs] == [True, False, True]
    varying = turns(tmp_path / "b", "segfault", "error", "error")
    assert varying.pattern == "varying" and sorted(varying.signatures.values()) == [1, 2]


def test_the_flags_reach_any_command(tmp_path: Path) -> None:
    """A command gets the flags as variables, but may not obey them."""
    workload = CommandWorkload(argv=["sh", "-c", 'test "$PYTORCH_NO_CUDA_MEMORY_CACHING" = 1'])
    found = repeated(tmp_path, workload, repeats=1)
    assert found.pattern == "clean" and any("not known" in note for note in found.notes)


@pytest.mark.slow
def test_missing_inputs(zoo: Zoo, tmp_path: Path) -> None:
    """A package or exported program without inputs cannot be repeated."""
    exported = zoo("ranker").with_name("ranker.exported.pt2")
    for workload in (PackageWorkload(package=zoo("ranker")), ExportedWorkload(exported=exported)):
        with pytest.raises(ProblemError, match="inputs"):
            repeated(tmp_path, workload)


@pytest.mark.parametrize(
    "sums, filled, expected",
    [
        (["a", "a", "a"], True, False),
        (["a", "a", "n"], True, True),
        (["a", "b", "n", "n"], True, True),
        (["a", "b", "n", "m"], True, None),
        (["a", "b", "n", "n"], False, None),
        (["a", "b"], True, None),
        (["a"], True, None),
    ],
)
def test_reads_of_unset_memory_are_not_noise(sums: list[str], filled: bool, expected: bool | None) -> None:
    """Steady outputs change with the fill, or varying ones become steady, if anything was filled."""
    runs = ("first", "second", "filled", "filled_again")
    outputs = [{"event": "outputs", "run": run, "checksums": [s]} for run, s in zip(runs, sums, strict=False)]
    written = {"launch": 3, "sequence": 3, "name": "buf0", "kernel": "k"}
    made = {"event": "rerun", **written}
    reruns = [{**made, "run": run, "checksum": s} for run, s in zip(runs, sums, strict=False)]
    told = [{"event": "filled", "launch": 3, "name": "buf0"}] if filled else []
    repeats = Repeats(worker_run(*outputs, *reruns, *told))
    assert repeats.reads_unset is expected
    assert (repeats.unset_from is not None) is (expected is True)
