"""The operator of the model that the compiler was at when it failed, as the hook saw it."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.evidence.captured import CapturedCompile, StoppedAt
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import ModelLocation
from mcp_server.package.provenance import read_stack
from mcp_server.steps.replay_plan import failing_phase


def uncompiled(root: ErrorFact, case: Case) -> StoppedAt | None:
    """That operator, where `root` is the very error of the compile that failed; None for several."""
    seen = case.capture
    phase = failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None
    if not isinstance(phase, CapturedCompile) or phase.error is None or root.family.stage != "compile":
        return None
    text = phase.error.text.partition("\n")[0]
    at = phase.error.stopped_at
    return at[0] if text and text in root.text and len({each.operator for each in at}) == 1 else None


def lines_of(at: StoppedAt) -> list[ModelLocation]:
    """The program's own lines that made it, innermost first."""
    own = [frame for frame in reversed(read_stack(at.stack)) if not frame.library]
    return [ModelLocation(file=frame.file, line=frame.line, code=frame.code) for frame in own]


def name_of(at: StoppedAt) -> str:
    """`desk::longest_run`, of `desk.longest_run.default`."""
    return "::".join(at.operator.split(".")[:2])
