"""The package launch by launch beside its exported program, once their outputs are known to differ."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.actions.exported_program import exported_path
from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import ExportedWorkload
from mcp_server.steps.compare_with_eager import Pair, compare_pair, updates_of
from mcp_server.steps.context import Context


class CompareLaunches:
    """Find the first launch that departs, and tell errors from rounding, TF32, chance and unset memory."""

    name = "compare_with_eager"
    seconds = 20.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.request.get("library") or "plain" not in case.runs:
            return 0.0
        return 0.6 if exported_path(case) is not None and _differs(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        program = exported_path(case)
        assert program is not None and case.call is not None
        pair = Pair(as_package(case), program, updates_of(case.call.request))
        case.with_eager = await compare_pair(context, pair)


def _differs(case: Case) -> bool:
    """Whether numbers are wrong somewhere that matters: a difference that nobody minds is not looked into."""
    told = case.interpreted.last("compared") if case.interpreted is not None else None
    if told is not None:
        return not told["equal"] and (case.failed or isinstance(case.workload, ExportedWorkload))
    return case.plain_departs
