"""A candidate counts only if it fails in the way of the workload."""

from __future__ import annotations

import signal

import pytest

from mcp_server.logs.families import BY_ID
from mcp_server.tools.reduce.failing import STATUS, FailureShown
from mcp_server.worker.reduction import script
from mcp_server.worker.reduction.trials import FailureClass

INDEX = "what():  index out of bounds: 0 <= tmp7 < 1000L"
SMALLER = "noise\n  what():  index out of bounds: 0 <= tmp2 < 8L\nmore"
ABORT = FailureShown(kind="crash", signal="SIGABRT", family="cpu_index_assert", text=INDEX)
UNKNOWN = FailureShown(kind="error", phase="compiling", text="ValueError: 7 is no size of /tmp/a1.py")
LOWERING = FailureShown(
    kind="error",
    phase="compiling",
    family="lowering",
    text="torch._inductor.exc.InductorError: LoweringException: AssertionError: cpp_fused_a_1 has no dtype",
)


def class_of(shown: FailureShown) -> FailureClass:
    return FailureClass(**shown.request())


@pytest.mark.parametrize(
    ("shown", "status", "phase", "text", "same"),
    [
        (ABORT, -signal.SIGABRT, "calling", SMALLER, True),
        (ABORT, -signal.SIGSEGV, "calling", SMALLER, False),
        (ABORT, -signal.SIGABRT, "calling", "free(): invalid pointer", False),
        (ABORT, 1, "calling", SMALLER, False),
        (ABORT, None, "calling", SMALLER, False),
        (UNKNOWN, 1, "compiling", "ValueError: 12 is no size of /tmp/b7.py", True),
        (UNKNOWN, 1, "loading", "ValueError: 12 is no size of /tmp/b7.py", False),
        (UNKNOWN, 1, "compiling", "KeyError: 12", False),
        (LOWERING, 1, "compiling", LOWERING.text.replace("a_1", "b_2"), True),
        (LOWERING, 1, "compiling", LOWERING.text.replace("has no dtype", "has no size"), False),
        (
            FailureShown(kind="not_finite", nan=True),
            3,
            "",
            "not finite: output 0 holds 2 nan and 0 inf",
            True,
        ),
        (
            FailureShown(kind="not_finite", nan=True),
            3,
            "",
            "not finite: output 0 holds 0 nan and 2 inf",
            False,
        ),
        (FailureShown(kind="not_finite"), 3, "", "not finite: output 0 holds 0 nan and 2 inf", True),
        (FailureShown(kind="not_finite"), 0, "", "", False),
        (FailureShown(kind="departs"), 4, "", "departs: output 0", True),
        (FailureShown(kind="departs"), 5, "exporting", "", False),
    ],
)
def test_only_the_same_failure_counts(
    shown: FailureShown, status: int | None, phase: str, text: str, same: bool
) -> None:
    """Signal, phase and family of text must agree; what changes from run to run does not matter."""
    assert class_of(shown).shown_by(status, phase, text) is same


def test_the_family_is_what_the_log_reader_knows() -> None:
    """The patterns that a candidate is held against are those of the error family."""
    assert ABORT.request()["patterns"] == [p.pattern for p in BY_ID["cpu_index_assert"].patterns]


def test_both_sides_agree_on_the_exit_status() -> None:
    """What the script exits with is what the server takes it for."""
    assert (STATUS["not_finite"], STATUS["departs"]) == (script.NOT_FINITE, script.DEPARTS)
