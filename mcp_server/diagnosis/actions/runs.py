"""Running the call: as the user does, and under the flags that make faults visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.hanging import shown_by_trace, to_be_traced
from mcp_server.diagnosis.index_parts import checked_inputs
from mcp_server.diagnosis.limits import hangs, limit_of
from mcp_server.diagnosis.lost_updates import updated_in_a_copy
from mcp_server.diagnosis.operators_from import operator_missing_here
from mcp_server.diagnosis.placing import to_be_placed
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.jobs.types import Finished
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.fault_methods import ONE_THREAD
from mcp_server.steps.leases import gpus_of
from mcp_server.steps.logs import read_output
from mcp_server.steps.run_deterministic import CHECK_INPUTS


def see(label: str, finished: Finished, worker: WorkerRun | None = None, *, process: str = "") -> RunSeen:
    """A finished child with its log read: of all its processes, or of one."""
    return RunSeen(label, finished, read_output(finished.output, process), worker)


async def run_call(
    case: Case,
    context: Context,
    label: str,
    *,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
    record: bool = True,
) -> RunSeen:
    """Make the case's call once in the worker; the result is also kept in `case.runs[label]`."""
    assert case.call is not None
    workload = case.workload
    limit = limit_of(case, share=SHARE_OF_HANG if hangs(case) else SHARE)
    done = await context.worker(
        case.call.operation,
        {**case.call.request, **_to_tell(case), **(extra or {})},
        name=label,
        env={STACKS: str(limit.seconds * 0.85), **(workload.env if workload else {}), **(env or {})},
        timeout_s=limit.seconds,
        python=workload.python if workload else None,
        cwd=workload.cwd if workload else None,
        gpus=gpus_of(case.device, int(case.call.request.get("device_index", -1))),
    )
    limit.check(done.finished, "the call")
    seen = see(label, done.finished, done)
    if record:
        case.runs[label] = seen
    return seen


def _to_tell(case: Case) -> dict[str, Any]:
    asked = updated_in_a_copy(case)
    return {"tell_changes": {str(place): size for place, size in asked.items()}} if asked else {}


SHARE = 0.45  # of what the budget leaves: a call that hangs must leave time to find out where
SHARE_OF_HANG = 0.6  # once the program hung: all that is left to do is to see it again, and where

# Seconds after which a child prints every thread's stack: what a call that hangs is doing.
STACKS = "AOTI_DEBUG_STACKS_AFTER"


class PlainRun:
    """Make the call as it is."""

    name = "run"
    seconds = 6.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # the launches tell more of a call that hangs, and whether it does by itself
        if to_be_placed(case) and "compare_inputs" not in case.done:
            return 0.0
        return 0.9 if case.call is not None and case.package_error is None else 0.0

    async def act(self, case: Case, context: Context) -> None:
        seen = await run_call(case, context, "plain", record=False)
        missing = operator_missing_here(seen, case)
        if missing:
            case.call = None
            case.notes.append(missing)
        else:
            case.runs["plain"] = seen


class CheckedRun:
    """Make the call with AOTInductor's own input checks: a second, independent view of a bad input."""

    name = "run_with_input_checks"
    seconds = 6.0
    alone = False

    def gain(self, case: Case, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or "plain" not in case.runs:
            return 0.0
        if "look_at_indices" not in case.done and checked_inputs(case):
            return 0.0  # looking at the indices is cheaper, and tells more of an index assertion
        if case.runs["plain"].failure == "timeout" and not case.mismatches:
            return 0.0  # it would hang again
        contract = {"input_mismatch", "device_mismatch", "shape_out_of_range", "custom_op"}
        return 0.8 if any(h.category in contract for h in open_suspects) or not case.mismatches else 0.3

    async def act(self, case: Case, context: Context) -> None:
        await run_call(case, context, "checked", env={**CHECK_INPUTS, **ONE_THREAD})
