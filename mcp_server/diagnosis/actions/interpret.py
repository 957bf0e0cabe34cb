"""The exported program on the failing call, operator by operator, in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.actions.exported_program import exported_path
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hanging import shown_by_trace, to_be_traced
from mcp_server.diagnosis.limits import eager_limit
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context, WorkerRun


class Interpret:
    """See which operator of the model raises, makes NaN, or breaks its fake function's promise."""

    name = "interpret"
    seconds = 4.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if case.ran_out_of_memory:
            return 0.0  # eager keeps every value between operators, and so needs more
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # eager may hang alike
        return 1.0 if _program(case) is not None and _inputs(case) is not None else 0.0

    async def act(self, case: Case, context: Context) -> None:
        case.interpreted = await interpret(case, context)


async def interpret(case: Case, context: Context, **more: str) -> WorkerRun:
    """The worker's run of the exported program on that call; `more` is added to its request."""
    assert case.call is not None
    updated = any(step["do"] == "constants" for step in case.call.request.get("steps", ()))
    with_package = {} if updated else _package(case.call.request)
    return await context.worker(
        "interpret",
        {
            "exported": _program(case),
            "inputs": _inputs(case),
            "extra_imports": case.call.request.get("extra_imports", []),
            **with_package,
            **more,
        },
        **case.surroundings,
        timeout_s=eager_limit(case),
    )


def _program(case: Case) -> Path | None:
    return exported_path(case)


def _inputs(case: Case) -> Any:
    if case.call is None:
        return None
    return case.call.inputs if case.call.inputs is not None else case.call.request.get("inputs")


def _package(request: dict[str, Any]) -> dict[str, Any]:
    """What loading takes of a replay's request."""
    names = ("package", "model_name", "device_index")
    return {name: request[name] for name in names if name in request} if not request.get("library") else {}
