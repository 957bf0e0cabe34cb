"""A change of the program's source, or of how it exports: tried in the program, once that had ended."""

from __future__ import annotations

from dataclasses import replace

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial, judged_elsewhere
from mcp_server.logs.captured import CapturedMend, TriedChange
from mcp_server.plurals import counted


def trial_of(mend: CapturedMend) -> Trial | None:
    """The change with which the export (or compile) passes, as eager mode computes, and fails without it."""
    passing = [each for each in mend.attempts if each.outcome == "passes" and each.again]
    if not passing:
        return None
    found = passing[0]
    at = f" in line {found.line}" if found.line else ""
    change = Intervention(
        key=f"source:{found.name}",
        kind=Kind.SOURCE,
        what=f"this change{at}",
        before_code=found.before,
        after_code=found.after,
        action=action_of(found),
    )
    passed = f"the call passed the {mend.stage} and gave the outputs of eager mode"
    at_sizes = f" at {counted(found.sizes, 'size')}" if found.sizes > 1 else ""
    trial = judged_elsewhere(change, Effect.GONE, Seen("raised", text=found.again))
    return replace(trial, reason=passed + at_sizes)


def action_of(found: TriedChange) -> str:
    """What to do, and what a reader should know of it."""
    return f"{found.action} ({found.note})" if found.note else found.action
