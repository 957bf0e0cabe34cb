"""Calls that, made again, give other outputs; calls that do not come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import hang, illegal_memory_access, wrong_output
from mcp_server.diagnosis.observe import limit_of
from mcp_server.diagnosis.observe.calls import CheckedRun, RepeatCall, WatchRepeats
from mcp_server.diagnosis.observe.intervene import WatchOperators
from mcp_server.diagnosis.observe.launches import TraceLaunches
from mcp_server.diagnosis.state import HANGING_S, DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import conclude, confidence, health_evidence, health_summary
from mcp_server.model import ScriptWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.check_devices import Given
from mcp_server.worker.capture.events import TensorFacts
from tests.conftest import ZooPackage
from tests.diagnosis.support import Line, called, package_case, run, traced, worker_run


def repeated(second: bool, filled: bool) -> tuple[Line, ...]:
    """What the worker tells of calls that were made again: whether their outputs were the same."""
    told = {"second": second, "filled": filled}
    return tuple({"event": "repeated", "run": kind, "equal": same} for kind, same in told.items())


def case_of(package: Path, second: bool, filled: bool) -> DiagnosisState:
    """A package on the CPU whose call succeeded and was repeated."""
    case = package_case(package)
    case.runs["plain"] = run("plain", "", called())
    case.repeated = worker_run(*repeated(second, filled))
    return case


def writes(kind: str, *checksums: str) -> list[Line]:
    """Events of one watched run in which each launch wrote one tensor."""
    seen = [
        {"event": "rerun", "run": kind, "launch": n, "sequence": n, "kernel": f"k{n}", "name": f"buf{n}"}
        for n in range(len(checksums))
    ]
    told = [{**event, "checksum": text} for event, text in zip(seen, checksums, strict=True)]
    return [{"event": "outputs", "run": kind, "checksums": [checksums[-1]]}, *told]


def test_outputs_that_follow_what_new_memory_holds(zoo: ZooPackage) -> None:
    """The first launch whose result changes with the bytes of new memory is guilty, which is not proven."""
    case = case_of(zoo("plugin"), second=True, filled=False)
    (found,) = wrong_output.detect_unsteady(case)
    assert (found.guilty.kind, confidence(found, case)) == ("package", "likely")
    assert WatchRepeats().gain(case, []) > 0
    case.repeated_watched = worker_run(*writes("first", "a", "b", "c"), *writes("filled", "a", "x", "y"))
    (found,) = wrong_output.detect_unsteady(case)
    assert (found.category, found.guilty.launch_index) == ("wrong_output", 1)
    assert (found.weak, confidence(found, case)) == (False, "likely")


def test_a_call_that_repeats_is_healthy_and_says_so(zoo: ZooPackage) -> None:
    """Equal repeats are evidence of health; that the numbers have no reference is said all the same."""
    case = case_of(zoo("plugin"), second=True, filled=True)
    assert list(wrong_output.detect_unsteady(case)) == [] and WatchRepeats().gain(case, []) == 0
    assert [e.step for e in health_evidence(case)].count("repeat_call") == 2
    summary = health_summary(case)
    assert "not checked" in summary and "halve_rows" in summary and "Only the author knows" in summary


def test_what_a_package_alone_does_not_show_is_said(zoo: ZooPackage, tmp_path: Path) -> None:
    """A good call of a package alone is possibly healthy: numbers, arguments and state are open."""
    case = case_of(zoo("logarithm"), second=True, filled=True)
    case.given = Given((), ("args[0]", "args[1]"))
    case.leaves = [TensorFacts(kind="int", value="5"), TensorFacts(kind="NoneType", value="None")]
    found = conclude([], case, Context(tmp_path, Path("python")))
    assert (found.outcome, found.confidence) == ("no_fault", "possible")
    assert "args[0] = 5" in found.summary and "args[1]" not in found.summary
    assert "diagnose the program" in found.next_steps[0].why and [step.tool for step in found.next_steps] == [
        "diagnose"
    ]


class Drawing:
    """The detector with a package whose launches draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: DiagnosisState, op: str) -> None:
        assert case.view is not None
        launch = case.view.wrapper.launches[0]
        monkeypatch.setattr(wrong_output, "drawing_launches", lambda _case: [(op, launch)])
        self.case = case

    def found(self) -> list[Suspect]:
        return list(wrong_output.detect_random_numbers(self.case))


def test_dropout_in_a_package_is_suspected_and_not_claimed(
    zoo: ZooPackage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package that drops values is not called healthy: the verdict names it, and what settles it."""
    case = case_of(zoo("logarithm"), second=False, filled=False)
    found = Drawing(monkeypatch, case, "native_dropout").found()
    verdict = conclude(found, case, Context(tmp_path, Path("python")))
    assert verdict.outcome == "inconclusive" and verdict.guilty is not None
    assert (verdict.guilty.name, verdict.guilty.launch_index) == ("native_dropout", 0)
    assert "evaluation mode settles it" in verdict.summary


def test_dropout_of_a_script_that_ends_well_is_its_own_affair(
    zoo: ZooPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that keeps dropout on and is content with it, and a model that samples, are not suspected."""
    case = case_of(zoo("logarithm"), second=False, filled=False)
    assert Drawing(monkeypatch, case, "randn").found() == []
    case.workload = ScriptWorkload(script=Path("a.py"))
    assert Drawing(monkeypatch, case, "native_dropout").found() == []


def test_only_a_quick_call_that_ended_well_is_repeated(zoo: ZooPackage) -> None:
    """A failing call, and the call of a script, which has a reference, are left alone."""
    case = case_of(zoo("logarithm"), second=True, filled=True)
    assert RepeatCall().gain(case, []) > 0
    case.runs["plain"] = run("plain", "Segmentation fault")
    assert RepeatCall().gain(case, []) == 0
    case.runs["plain"] = run("plain", "", called())
    case.workload = ScriptWorkload(script=Path("a.py"))
    assert RepeatCall().gain(case, []) == 0


def test_the_journal_names_the_kernel_of_a_hang(zoo: ZooPackage) -> None:
    """Once the journal names a launch, the call as a whole is no longer accused of the hang."""
    case = traced(zoo, "died", run("plain", ending="timeout"))
    assert list(hang.detect_hanging_call(case)) == []
    (found,) = illegal_memory_access.detect_last_launch(case)
    assert (found.category, found.guilty.launch_index) == ("hang", 1)
    case.trace = None
    (found,) = hang.detect_hanging_call(case)
    assert found.guilty.kind == "call"


def test_a_call_that_hangs_leaves_time_to_find_out_where(zoo: ZooPackage) -> None:
    """A hang takes a part of the budget, is not run into again, and later runs get little time."""
    case = package_case(zoo("logarithm"))
    assert HANGING_S < limit_of(case, share=0.4).seconds < 0.5 * case.budget_s
    case.runs["plain"] = run("plain", ending="timeout")
    assert limit_of(case).seconds == HANGING_S
    assert CheckedRun().gain(case, []) == 0


def test_the_operators_of_a_hanging_call_are_watched_after_its_trace(zoo: ZooPackage) -> None:
    """Each look at a call that hangs takes a part of the budget; the trace names the launch."""
    case = package_case(zoo("plugin"))
    case.runs["plain"] = run("plain", ending="timeout")
    assert WatchOperators().gain(case, []) == 0 < TraceLaunches().gain(case, [])
    case.done.append("trace_launches")
    assert WatchOperators().gain(case, []) > 0
