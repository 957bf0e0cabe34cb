"""Exit codes say what a script that calls `aoti-debug` wants to know."""

from __future__ import annotations

import pytest

from mcp_server.cli.main import Exit, exit_code
from mcp_server.model import Outcome, Record, Verdict


class Step(Record):
    """What results of steps have in common, as far as the exit code looks at it."""

    failure: str | None = None
    fault: str | None = None
    pattern: str = "clean"


@pytest.mark.parametrize(("outcome", "code"), [("no_fault", 0), ("fault", 1), ("inconclusive", 3)])
def test_a_verdict_by_its_outcome(outcome: Outcome, code: int) -> None:
    """A verdict that does not know is not a pass."""
    assert exit_code(Verdict(outcome=outcome, summary="")) == code


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Step(), Exit.OK),
        (Step(failure="SIGSEGV"), Exit.FAULT),
        (Step(fault="read"), Exit.FAULT),
        (Step(pattern="flaky"), Exit.FAULT),
    ],
)
def test_a_step_by_what_it_saw(result: Step, code: Exit) -> None:
    """A failing run, a fault that a checker saw and repeats that do not all pass exit with 1."""
    assert exit_code(result) == code
