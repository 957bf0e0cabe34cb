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
from mcp_server.steps.replay_plan import failing_phase, how_made, imports_of

HELP = "an exported program (torch.export.save) with inputs, or the script that compiles it"


@dataclass(frozen=True)
class Target:
    """`imports` register custom operators; of a captured program they are tried only if it needs them.

    `made_by` says how the script makes the program (worker/taken.py), should no file give it back; with
    `taken` it is taken from there.
    """

    workload: ExportedWorkload
    configs: Mapping[str, Any]
    imports: tuple[str, ...] = ()
    made_by: Mapping[str, Any] | None = None
    taken: bool = False

    @property
    def source(self) -> Mapping[str, Any]:
        """Where the worker gets the program from."""
        return {"made_by": self.made_by} if self.taken else {"exported": self.workload.exported}


async def find_target(context: Context, workload: ExportedWorkload | ScriptWorkload) -> Target:
    """The program to reduce. Raises `ProblemError` for a script that compiles none, or whose is not kept."""
    if isinstance(workload, ExportedWorkload):
        return Target(workload, {})
    seen = await capture(context, workload)
    call, compiled = _call_and_compile(seen)
    made_by = how_made(seen, compiled, workload) if compiled is not None else None
    if compiled is None or (compiled.exported is None and made_by is None):
        what, allowed = "the script compiles no exported program whose call could be taken", HELP
        if compiled is not None and compiled.notice:
            what = f"the program that the script compiles could not be kept: {compiled.notice}"
            allowed = "a script that compiles an exported program in its own process"
        raise ProblemError(what, value=str(workload.script), allowed=allowed)
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s"})
    inputs = call.file if call is not None else None
    return Target(
        ExportedWorkload(exported=compiled.exported or workload.script, inputs=inputs, **shared),
        compiled.configs,
        tuple(imports_of(seen, compiled)),
        made_by,
        taken=compiled.exported is None,
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
