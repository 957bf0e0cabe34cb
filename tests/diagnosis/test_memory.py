"""Memory: signals, races of scatters, sizes that are too large, and memory that is used up."""

import re
from pathlib import Path

import pytest

from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.indices import indexing_launches
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe import limit_of
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, is_bystander
from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import Artifact, Cost, ScriptWorkload
from mcp_server.package.mismatch import GivenTensor
from mcp_server.tools.kernel_io import ArgumentValues, KernelIO, LaunchValues
from tests.conftest import Zoo
from tests.diagnosis.support import LOG, by, capture, finished, look, package_case, phase, run, trial
from tests.support.command import answered
from tests.zoo.names import thorough

# What Python prints when a signal ends it (CPython 3.11, Python/pylifecycle.c and traceback.c).
STACK = """Fatal Python error: Segmentation fault

Current thread 0x00007f18fadc2b80 (most recent call first):
  File "/srv/ops.py", line 7 in {function}
  File "/usr/lib/python3/site-packages/torch/_library/custom_ops.py", line 502 in wrapped_fn
"""


def died(package: Path, signal: str, function: str) -> DiagnosisState:
    """Make a call that this signal ended while Python was inside that function."""
    case = package_case(package)
    ended = Finished("signal", None, signal, 1.0, LOG, LOG, LOG)
    text = STACK.format(function=function).splitlines()
    case.runs["plain"] = RunSeen("plain", ended, read_log(text))
    return case


@pytest.mark.parametrize("signal, category", [("SIGSEGV", "illegal_memory_access"), ("SIGABRT", "custom_op")])
def test_the_operator_in_which_the_process_died(zoo: Zoo, signal: str, category: str) -> None:
    """The running operator is guilty at its line, and no memory checker is run."""
    case = died(zoo("plugin"), signal, "halve_rows")
    (found,) = by("illegal_memory_access.detect_died_inside", case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (category, "op", "aotizoo::halve_rows")
    assert [line.line for line in found.guilty.model_locations] == [7]
    assert look("locate_fault").gain(case, []) == 0


def test_a_signal_outside_of_operators_is_looked_for(zoo: Zoo) -> None:
    """If no operator was running, a memory checker looks for the access."""
    case = died(zoo("plugin"), "SIGSEGV", "main")
    assert not by("illegal_memory_access.detect_died_inside", case)
    assert look("locate_fault").gain(case, []) == 1


def watched(case: DiagnosisState, largest: float) -> DiagnosisState:
    """The case after its scatter launch was watched, with indices from 0 to `largest`."""
    launch = next(x for x in indexing_launches(case) if not x.checked)
    index = next(a.target for a in launch.tensors if a.target == "arg1_1" or a.kind == "input")
    values = [
        ArgumentValues(name="buf0", when="before", role="read_write", dtype="float32", shape=[12]),
        ArgumentValues(name=index or "", when="before", role="read", dtype="int64", min=0, max=largest),
    ]
    seen = LaunchValues(kernel=launch.kernel, sequence=0, launch=launch.index, arguments=values)
    log = Artifact(uri="", path=Path("output.log"), bytes=0, what="log")
    case.kernel_io = KernelIO(returned=True, launches=[seen], log=log, cost=Cost())
    return case


@thorough
def test_a_dropped_scatter_error_is_found(zoo: Zoo) -> None:
    """An index beyond the written tensor, in a launch whose error is ignored, is found."""
    (found,) = detect(watched(package_case(zoo("scatter")), 300))
    assert found.category == "index_out_of_bounds" and "is ignored" in found.summary
    assert found.guilty.kind == "input" and found.guilty.input_index is not None


@pytest.mark.slow
def test_an_index_inside_is_no_fault(zoo: Zoo) -> None:
    """The last element may be written."""
    assert list(detect(watched(package_case(zoo("scatter")), 11))) == []


def case_of(budget_s: float, timeout_s: float) -> DiagnosisState:
    return DiagnosisState(ScriptWorkload(script=Path("a.py"), timeout_s=timeout_s), budget_s=budget_s)


def test_a_run_that_the_budget_cut_is_no_evidence() -> None:
    """A run that the budget cut raises. A run that ended, or reached its own limit, does not."""
    with pytest.raises(ProblemError, match="12 s that the budget left"):
        limit_of(case_of(20, 300), share=0.6).check(finished("timeout"), "the program")
    limit_of(case_of(20, 300), share=0.6).check(finished("exit"), "the program")
    limit_of(case_of(300, 20)).check(finished("timeout"), "the program")


def test_a_call_that_the_budget_cuts_ends_in_a_verdict(zoo: Zoo, tmp_path: Path) -> None:
    """The first call takes longer than the budget: the verdict says so, and the tool does not fail.

    On a slow machine the budget may end before the call begins, which the summary says as well.
    """
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\ntime.sleep(60)\n")
    package, inputs = zoo("ranker"), zoo("ranker").with_name("ranker.inputs.pt")
    words = (str(package), "--inputs", str(inputs), "--extra-imports", str(slow), "--budget-s", "8")
    found = answered("diagnose", *words)
    assert found["outcome"] == "inconclusive"
    assert re.search("the budget left for it|The budget of 8 s ended", found["summary"])


def test_a_program_that_its_own_watchdog_ended_hung() -> None:
    """The output is of faulthandler's timer. An error that only mentions a time limit is an exception."""
    assert run("script", "Timeout (0:00:40)!\nThread 0x1 (most recent call first):\n").failure == "timeout"
    assert run("script", "TimeoutError: no answer").failure == "exception"


LINE = {"file": "serve.py", "line": 41, "code": "model(frames)"}


def ended(signal: str, wall_s: float = 9.0, **more: object) -> DiagnosisState:
    """Make a program that this signal ended within a call."""
    case = DiagnosisState(None)
    call = phase(3, load=1, thread=1, stack=[LINE]) | {"outcome": "unfinished"} | more
    case.capture = capture(calls=[call])
    ended = Finished("signal", None, signal, wall_s, LOG, LOG, LOG)
    case.runs["script"] = RunSeen("script", ended, read_log([]))
    return case


def test_a_file_that_grew_too_large() -> None:
    """The hook need not have seen the limit. The call that succeeds elsewhere confirms it."""
    case = ended("SIGXFSZ")
    case.runs["plain"] = run("plain")
    (found,) = detect(case)
    assert (found.guilty.name, found.guilty.value) == ("file size", "RLIMIT_FSIZE")
    assert confidence(found, case) == "likely"


REQUEST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."
ROWS = 1_000_000


def too_large(zoo: Zoo) -> DiagnosisState:
    """Make a call whose hidden layer does not fit into memory."""
    case = package_case(zoo("ranker"), GivenTensor("int64", (ROWS, 6)))
    case.runs["plain"] = run("plain", REQUEST.format(ROWS * 6 * 32 * 4))
    return case


def test_a_smaller_call_that_passes_proves_it(zoo: Zoo) -> None:
    """The dimension with which the buffer grows is cut. A smaller call that fails refutes nothing."""
    case = too_large(zoo)
    (found,) = by("out_of_memory.detect_allocation", case)
    assert found.intervention is not None and confidence(found, case) == "likely"
    changes = [{"change": c.change, "input": c.input, "dim": c.dim} for c in found.intervention.changes]
    assert changes == [{"change": "resize", "input": 0, "dim": 0}]
    assert 2 <= (found.intervention.changes[0].size or 0) < ROWS // 8
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    (again,) = by("out_of_memory.detect_allocation", case)
    assert not is_bystander(again, case) and confidence(again, case) == "likely"


@pytest.mark.parametrize(
    ("calls", "size", "kind"), [(7, 7 << 30, "script"), (7, 1 << 20, "kernel"), (1, 7 << 30, "kernel")]
)
def test_outputs_that_fill_the_memory(zoo: Zoo, calls: int, size: int, kind: str) -> None:
    """Outputs are likely if they hold more than the call asked for. One may be a variable's."""
    held = {"kept_outputs": calls, "kept_calls": calls, "kept_bytes": size, "outcome": "failed"}
    case = too_large(zoo)
    case.capture = capture(calls=[phase(3, load=1, thread=1, stack=[LINE]) | held])
    (found,) = by("out_of_memory.detect_allocation", case)
    assert (found.guilty.kind, confidence(found, case)) == (kind, "likely")
    assert ("outputs of 7 earlier calls are still in use: 7 GiB" in found.summary) == (kind == "script")
