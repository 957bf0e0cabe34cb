"""Whether an intervention removed the failure, from how three calls ended; pure."""

from __future__ import annotations

import math

from mcp_server.diagnosis.interventions.base import Effect, Seen, SideEffects


def fails(seen: Seen) -> bool:
    """Whether a call was made and failed; a change that was refused is no failure of the call."""
    return seen.ended not in ("refused", "not_made") and seen.failure != "none"


def alike(first: Seen, second: Seen) -> bool:
    """Whether two calls failed in the same way: the same kind and, for an error, the same text."""
    if not (fails(first) and fails(second)) or first.failure != second.failure:
        return False
    if first.failure in ("nonfinite", "differs", "timeout", "out_of_memory"):
        return True
    if first.family and second.family and first.family != second.family:
        return False
    return not (first.essence and second.essence) or first.essence == second.essence


def effect_of(before: Seen, after: Seen) -> tuple[Effect, str]:
    """What the change did to the failure of `before`, and why where it did nothing that can be told."""
    if not fails(before):
        return Effect.NOT_APPLICABLE, "the call as it is does not fail"
    if after.ended in ("refused", "not_made"):
        return Effect.NOT_APPLICABLE, after.text or "the change could not be made"
    if _came_less_far(before, after):
        return Effect.NOT_APPLICABLE, f"with the change the call is not reached: {after.describe()}"
    if after.failure == "none":
        return Effect.GONE, ""
    if not alike(before, after):
        return Effect.CHANGED, f"with the change it {_fails_in_words(after)}"
    if before.failure in ("nonfinite", "differs"):
        return _by_elements(after)
    return Effect.SAME, ""


def _fails_in_words(after: Seen) -> str:
    words = after.describe()
    return words if words.startswith(("raised", "died")) else f"gives: {words}"


def _came_less_far(before: Seen, after: Seen) -> bool:
    """Whether the changed call failed in the load or in an update, which the other one had passed."""
    if after.ended != "raised" or after.facts is None or after.facts.during in ("calling", "outputs"):
        return False
    return before.facts is None or before.facts.during != after.facts.during


def _by_elements(after: Seen) -> tuple[Effect, str]:
    """Fewer elements at fault, and none that was not: one cause of several is removed."""
    beside = after.facts.beside if after.facts is not None else None
    if beside is not None and beside.cured and not beside.new and not beside.layout:
        return Effect.CHANGED, f"{beside.cured} elements are good now, {beside.left} are still at fault"
    return Effect.SAME, ""


def side_effects_of(after: Seen, again: Seen) -> SideEffects:
    """Elements that were not at fault and came out changed.

    Unknown where nothing came back to compare with, and where two calls as they are differ, too.
    """
    beside = after.facts.beside if after.facts is not None else None
    if beside is None:
        return SideEffects(known=False)
    repeated = again.facts.beside if again.facts is not None else None
    if repeated is not None and repeated.innocent:
        return SideEffects(known=False)
    outputs = beside.outputs
    return SideEffects(
        elements=beside.innocent,
        rows=tuple(sorted({row for output in outputs for row in output.innocent_rows})),
        first=tuple(change for output in outputs for change in output.first_innocent)[:8],
        layout=beside.layout,
    )


def chance_of(calls: int, failed: int, tries: int) -> float:
    """The probability that none of `tries` changed calls fails if they fail as often as the others.

    Fisher's exact test, one-sided: that all `failed` failures fall among `calls` of `calls + tries`.
    """
    if not failed:
        return 1.0
    return math.comb(calls, failed) / math.comb(calls + tries, failed)
