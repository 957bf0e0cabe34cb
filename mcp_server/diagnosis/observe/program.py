"""Running the user's own program: under the capture hook, and without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mcp_server.diagnosis.observe.calls import STACKS, see
from mcp_server.diagnosis.planner import limit_of
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import Artifact, CommandWorkload, ScriptWorkload
from mcp_server.tools.capture import Capture, capture, workload_argv
from mcp_server.tools.context import Context, gpus_of
from mcp_server.tools.requests import failing_phase, plan_replay

SHARE = 0.6  # of what the budget leaves


class RunAlone:
    """Run the program again that ended well under the hook, and let inputs go that a stream might read."""

    name = "run_alone"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        seen = case.capture
        return 0.9 if seen is not None and seen.finished.ok and seen.loans else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = case.workload
        assert isinstance(workload, ScriptWorkload | CommandWorkload)
        limit = limit_of(case, share=SHARE)
        command = Command(
            argv=workload_argv(context, workload),
            cwd=workload.cwd or Path.cwd(),
            env=workload.env,
            timeout_s=limit.seconds,
            gpus=gpus_of(None),
        )
        finished = await context.run(command, "alone", runs=1)
        limit.check(finished, "the program")
        case.runs["alone"] = see("alone", finished)


CAPTURE_SHARE = 0.6  # of the budget: the rest is for the call that was captured


class CaptureProgram:
    """Run the script or command once, and keep the call that failed or is suspect."""

    name = "capture"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if isinstance(case.workload, ScriptWorkload | CommandWorkload) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
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
