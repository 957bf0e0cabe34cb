"""What to reduce: an exported program with inputs and options, given or captured from a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_server.errors import ProblemError
from mcp_server.evidence.captured import CapturedCall, CapturedCompile, CapturedUpdate
from mcp_server.model import ExportedWorkload, ScriptWorkload
from mcp_server.steps.capture import Capture, capture
from mcp_server.steps.context import Context
from mcp_server.steps.replay_plan import failing_phase, plan_replay

HELP = "an exported program (torch.export.save) with inputs, or the script that compiles it"


@dataclass(frozen=True)
class Target:
    """`imports` register custom operators; of a captured program they are tried only if it needs them."""

    workload: ExportedWorkload
    configs: Mapping[str, Any]
    imports: tuple[str, ...] = ()


async def find_target(context: Context, workload: ExportedWorkload | ScriptWorkload) -> Target:
    """The program to reduce. Raises `ProblemError` for a script that compiles none, or whose is not kept."""
    if isinstance(workload, ExportedWorkload):
        return Target(workload, {})
    seen = await capture(context, workload)
    call, compiled = _call_and_compile(seen)
    if compiled is None or compiled.exported is None:
        what = "the script compiles no exported program whose call could be taken"
        if compiled is not None and compiled.notice:
            what = f"the program that the script compiles could not be kept: {compiled.notice}"
        raise ProblemError(what, value=str(workload.script), allowed=HELP)
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s"})
    inputs = call.file if call is not None else None
    return Target(
        ExportedWorkload(exported=compiled.exported, inputs=inputs, **shared),
        compiled.configs,
        tuple(plan_replay(seen, compiled).imports),
    )


def _call_and_compile(seen: Capture) -> tuple[CapturedCall | None, CapturedCompile | None]:
    """The failing or suspect call with the compile of its package; a compile alone when that failed."""
    phase = failing_phase(seen)
    if isinstance(phase, CapturedCompile):
        return None, phase
    call = phase if isinstance(phase, CapturedCall) else seen.suspect
    if call is None or call.file is None or isinstance(phase, CapturedUpdate):
        return None, None
    load = seen.load_of(call)
    return call, seen.compile_of(load) if load is not None else None
