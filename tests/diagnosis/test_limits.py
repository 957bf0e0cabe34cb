"""How long a run may take, and what a run that was cut short proves."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.diagnose import DEFAULT_BUDGET_S
from mcp_server.diagnosis.observe import HANGING_S, eager_limit, limit_of
from mcp_server.diagnosis.observe.calls import SHARE_OF_HANG
from mcp_server.diagnosis.observe.launches import REBUILD_S, SHORTEST_S, hang_limit
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.errors import ProblemError
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import finished, run


def case_of(budget_s: float, timeout_s: float) -> DiagnosisState:
    return DiagnosisState(ScriptWorkload(script=Path("a.py"), timeout_s=timeout_s), budget_s=budget_s)


@pytest.mark.parametrize(
    ("budget_s", "timeout_s", "share", "seconds", "cut"),
    [
        (300, 20, 1, 20, False),  # the workload's own limit
        (300, 300, 0.6, 180, False),  # long enough to call it a hang
        (20, 300, 0.6, 12, True),
        (20, 5, 0.6, 5, False),  # short, but that was asked for
    ],
)
def test_a_limit(budget_s: float, timeout_s: float, share: float, seconds: float, cut: bool) -> None:
    """The smaller of what was asked and a share of the budget; cut when the budget is why it is short."""
    found = limit_of(case_of(budget_s, timeout_s), share=share)
    assert found.seconds == pytest.approx(seconds, abs=0.1) and found.cut == cut


def test_a_known_hang_gets_little_time() -> None:
    """What did not end in the program does not get the rest of the budget to hang in again."""
    case = case_of(300, 300)
    case.runs["script"] = run("script", ending="timeout")
    assert limit_of(case).seconds == HANGING_S


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
