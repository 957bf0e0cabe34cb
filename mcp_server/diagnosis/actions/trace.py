"""The journal of launches: the one at which the call ended."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hanging import to_be_traced
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.steps.context import Context
from mcp_server.steps.trace_launches import trace_launches

HANG_LIMIT_S = 40.0
SHORTEST_S = 15.0  # to import what the call needs, load the package and reach the launch
REBUILD_S = 25.0  # of what the budget leaves, for the rebuild before it
# Of the rest: on a busy machine a rebuild takes longer, and what is read then comes after the call.
SHARE = 0.6
JOURNAL_BYTES = 4 << 20  # a loop without an end fills what it is given, and only its last turns count


class TraceLaunches:
    """Run the instrumented package, waiting for each launch, and see which one does not come back."""

    name = "trace_launches"
    seconds = 14.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case):
            return 1.0
        plain = case.runs.get("plain")
        if case.call is None or case.package is None or plain is None or case.call.operation == "compile":
            return 0.0
        nothing_located = case.located is not None and case.located.fault is None
        if plain.failure == "timeout" or (nothing_located and plain.failure in ("signal", "exception")):
            return 0.8
        return 0.0

    async def act(self, case: Case, context: Context) -> None:
        workload = as_package(case)
        plain = case.runs.get("plain")
        if plain is None or plain.failure == "timeout":
            env = {**workload.env, "AOTI_DEBUG_JOURNAL_LIMIT": str(JOURNAL_BYTES)}
            workload = workload.model_copy(update={"timeout_s": hang_limit(case), "env": env})
        case.trace = await trace_launches(context, workload, sync=True)


def hang_limit(case: Case) -> float:
    """Seconds for a call that is known to hang: a trace that the budget cut short would be lost."""
    return max(SHORTEST_S, min(HANG_LIMIT_S, (case.seconds_left - REBUILD_S) * SHARE))
