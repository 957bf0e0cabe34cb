"""Exit codes of the command line, in one place."""

from __future__ import annotations

from enum import IntEnum

from mcp_server.model import Record, Verdict


class Exit(IntEnum):
    """0 nothing wrong, 1 a fault was found, 2 the call was wrong or could not be done, 3 inconclusive."""

    OK = 0
    FAULT = 1
    PROBLEM = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130


OF_OUTCOME = {"no_fault": Exit.OK, "fault": Exit.FAULT, "inconclusive": Exit.INCONCLUSIVE}


def exit_code(result: Record) -> Exit:
    """The code for a result: a verdict's by its outcome, a single step's by whether it saw a fault."""
    if isinstance(result, Verdict):
        return OF_OUTCOME[result.outcome]
    if any(sees_fault(result) for sees_fault in _FAULTS):
        return Exit.FAULT
    return Exit.INCONCLUSIVE if getattr(result, "undecided", "") else Exit.OK


def _failed(result: Record) -> bool:
    """A run failed, or a checker saw a fault in one that did not."""
    return any(getattr(result, name, None) is not None for name in ("failure", "fault", "first_bad"))


def _repeats_fail(result: Record) -> bool:
    return getattr(result, "pattern", "clean") != "clean"


def _must_fail(result: Record) -> bool:
    """Problems of machine and package that are certain, inputs outside what was compiled."""
    problems = getattr(result, "problems", [])
    mismatches = getattr(result, "mismatches", [])
    return any(item.certain for item in problems) or any(item.severity == "fatal" for item in mismatches)


_FAULTS = (_failed, _repeats_fail, _must_fail)
