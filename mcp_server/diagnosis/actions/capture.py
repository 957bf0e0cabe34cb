"""Running the user's program once, under the capture hook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.diagnosis.actions.runs import STACKS, see
from mcp_server.diagnosis.case import CallSpec, Case
from mcp_server.diagnosis.limits import limit_of
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Artifact, CommandWorkload, ScriptWorkload
from mcp_server.steps.capture import Capture, capture
from mcp_server.steps.context import Context
from mcp_server.steps.leases import gpus_of
from mcp_server.steps.replay_plan import failing_phase, plan_replay

CAPTURE_SHARE = 0.6  # of the budget: the rest is for the call that was captured


class CaptureProgram:
    """Run the script or command once, and keep the call that failed or is suspect."""

    name = "capture"
    seconds = 30.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if isinstance(case.workload, ScriptWorkload | CommandWorkload) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert isinstance(case.workload, ScriptWorkload | CommandWorkload)
        limit = limit_of(case, share=CAPTURE_SHARE)
        workload = case.workload.model_copy(update={"timeout_s": limit.seconds})
        seen = await capture(
            context,
            workload,
            env={**_provenance(case.workload.env), STACKS: str(limit.seconds * 0.85)},
            gpus=gpus_of(None),
            until_stalled=True,
        )
        limit.check(seen.finished, "the program")
        case.capture = seen
        case.runs["script"] = see("script", seen.finished, process=seen.rank.rank if seen.rank else "")
        case.artifacts += rank_logs(seen, context)
        case.notes += seen.notes
        case.call = suspect_call(seen)


def _provenance(asked: Mapping[str, str]) -> dict[str, str]:
    """A compile in this run also writes which model line each kernel comes from (torch >= 2.9)."""
    return {} if "INDUCTOR_PROVENANCE" in asked else {"INDUCTOR_PROVENANCE": "1"}


def rank_logs(seen: Capture, context: Context) -> list[Artifact]:
    """The output of the rank that failed, by itself."""
    if seen.rank is None:
        return []
    log = seen.directory / "ranks" / f"{seen.rank.rank}.log"
    what = f"output of rank {seen.rank.rank}, which failed"
    return [context.artifact(log, what)] if log.exists() else []


def suspect_call(seen: Capture) -> CallSpec | None:
    """What failed or is suspect, as something that the worker can do again; None when it was not kept."""
    phase = failing_phase(seen, ended_well=seen.finished.ok)
    try:
        plan = plan_replay(seen, phase)
    except ProblemError:
        return None
    if plan.operation == "compile" or phase is None:
        return None
    inputs = phase.file if isinstance(phase, CapturedCall) else None
    reference = next(
        (a.file for a in seen.assertions if a.pid == phase.pid and a.n > phase.n and a.file), None
    )
    held = next((e.file for e in seen.ends if e.pid == phase.pid and e.n > phase.n and e.file), None)
    beside = {"actual": reference} if reference else {"held": held} if held else {}
    gave = {"returned": phase.returned} if isinstance(phase, CapturedCall) and phase.returned else {}
    request = {**plan.request, "extra_imports": plan.imports, **beside, **gave}
    return CallSpec(plan.operation, request, Path(plan.request["package"]), inputs)
