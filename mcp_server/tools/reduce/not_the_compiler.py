"""Failures that are not the compiler's: no decision of it can be switched off to make them go away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcp_server.errors import ProblemError
from mcp_server.logs.families import BY_ID
from mcp_server.tools.context import Context, Event, WorkerRun
from mcp_server.tools.failure import read_failure
from mcp_server.tools.reduce.failing import FailureShown
from mcp_server.tools.reduce.reduce import Failing, run_worker


async def refuse_others_faults(context: Context, failing: Failing) -> None:
    """Run the program once in eager mode. Raises `ProblemError` where it fails there in the same way.

    Also for inputs that its own guards refuse, and for a compile that failed over a tool or the machine.
    """
    reason, next_call = _of_compile(failing.failure), "check_devices"
    if not reason:
        eager = await run_worker(context, "interpret", failing.target)
        reason, next_call = of_eager(failing, eager), "diagnose"
    if reason:
        raise ProblemError(
            f"the failure is not the compiler's, so that no decision of it is to blame: {reason}",
            value=str(failing.failure),
            allowed="a program that runs well in eager mode on these inputs",
            next_call=next_call,
        )


def _of_compile(failure: FailureShown) -> str:
    """Why a compile failed, where its text names something other than the compiler."""
    family = BY_ID.get(failure.family)
    if failure.phase != "compiling" or family is None or "compile_failure" in family.candidates:
        return ""
    return f"{family.meaning} ({failure.text})"


def of_eager(failing: Failing, eager: WorkerRun) -> str:
    """How eager mode shows that the failure is not the compiler's; empty if it does not."""
    guard = eager.last("guard_failed")
    if guard is not None:
        return f"the inputs are not what the program was exported for: {str(guard['text'])[:300]}"
    failure = failing.failure
    if failure.phase == "compiling":  # it needs no inputs, so that they cannot be the reason
        return ""
    interpreted, ended = eager.last("interpreted"), read_failure(eager.finished)
    if interpreted is None and ended is not None and failure.kind in ("crash", "error"):
        node = eager.last("node_raised")
        where = f" in {node['op']}" if node is not None else ""
        return f"eager mode fails on these inputs, too{where}: {ended.text[:300]}"
    called = failing.attempt.last("called")
    if failure.kind == "not_finite" and interpreted is not None and called is not None:
        bad = _counts(called["outputs"])
        if bad == _counts(interpreted["outputs"]):
            found = ", ".join(
                f"output {place}: {nan} NaN, {inf} infinite" for place, (nan, inf) in enumerate(bad)
            )
            return f"eager mode gives the same values that are not finite ({found})"
    return ""


def _counts(outputs: Sequence[Event]) -> list[tuple[Any, Any]]:
    return [(each.get("nan", 0), each.get("inf", 0)) for each in outputs]
