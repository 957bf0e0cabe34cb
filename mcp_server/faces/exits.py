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
    """The code for a result: by its outcome if it has one, else 0."""
    outcome = result.outcome if isinstance(result, Verdict) else getattr(result, "outcome", "no_fault")
    return OF_OUTCOME.get(outcome, Exit.OK)
