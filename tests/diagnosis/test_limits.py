"""How long a run may take, what a run that was cut short proves, and limits that ended a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import environment
from mcp_server.diagnosis.diagnose import DEFAULT_BUDGET_S
from mcp_server.diagnosis.observe import eager_limit, limit_of
from mcp_server.diagnosis.observe.calls import SHARE_OF_HANG
from mcp_server.diagnosis.observe.launches import REBUILD_S, SHORTEST_S, hang_limit
from mcp_server.diagnosis.state import HANGING_S, DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.diagnosis.verdict import confidence
from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import LOG, capture, finished, phase, run


def case_of(budget_s: float, timeout_s: float) -> DiagnosisState:
    return DiagnosisState(ScriptWorkload(script=Path("a.py"), timeout_s=timeout_s), budget_s=budget_s)


def test_a_run_that_the_budget_cut_is_no_evidence() -> None:
    """It raises; a run that ended, or that reached its own limit, does not."""
    with pytest.raises(ProblemError, match="12 s that the budget left"):
        limit_of(case_of(20, 300), share=0.6).check(finished("timeout"), "the program")
    limit_of(case_of(20, 300), share=0.6).check(finished("exit"), "the program")
    limit_of(case_of(300, 20)).check(finished("timeout"), "the program")


def test_a_program_that_hangs_is_traced_within_the_default_budget() -> None:
    """After the program, its model in eager mode and its call were waited for, the trace has its time."""
    case = case_of(DEFAULT_BUDGET_S, 600)
    case.clock.began -= limit_of(case, share=0.6).seconds
    case.runs["script"] = run("script", ending="timeout")
    case.clock.began -= eager_limit(case) + 5
    again = limit_of(case, share=SHARE_OF_HANG)
    assert again.seconds == HANGING_S and not again.cut
    case.clock.began -= again.seconds
    assert SHORTEST_S <= hang_limit(case) < case.seconds_left - REBUILD_S + 1


def test_a_program_that_its_own_watchdog_ended_hung() -> None:
    """The words of faulthandler's timer; an error that only speaks of a time limit is an exception."""
    assert run("script", "Timeout (0:00:40)!\nThread 0x1 (most recent call first):\n").failure == "timeout"
    assert run("script", "TimeoutError: no answer").failure == "exception"


LINE = {"file": "serve.py", "line": 41, "code": "model(frames)"}


def ended(signal: str, wall_s: float = 9.0, **more: object) -> DiagnosisState:
    """A program that this signal ended within a call."""
    case = DiagnosisState(None)
    call = phase(3, load=1, thread=1, stack=[LINE]) | {"outcome": "unfinished"} | more
    case.capture = capture(calls=[call])
    case.runs["script"] = RunSeen(
        "script", Finished("signal", None, signal, wall_s, LOG, LOG, LOG), read_log([])
    )
    return case


def test_a_file_that_grew_too_large() -> None:
    """The hook need not have seen the limit; that the call goes well elsewhere confirms it."""
    case = ended("SIGXFSZ")
    case.runs["plain"] = run("plain")
    (found,) = environment.detect_limit(case)
    assert (found.guilty.name, found.guilty.value) == ("file size", "RLIMIT_FSIZE")
    assert confidence(found, case) == "likely"
