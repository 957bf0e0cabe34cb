"""Whether an intervention removed the failure, also of one that comes and goes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_server.diagnosis.interventions.base import (
    MOST_CHANCE,
    Effect,
    Intervention,
    Seen,
    SideEffects,
    Trial,
)
from mcp_server.diagnosis.interventions.plan import Planned, TriedCall, as_planned, carry_out
from mcp_server.plurals import counted, is_
from mcp_server.tools.context import Context


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
        return Effect.CHANGED, (
            f"{counted(beside.cured, 'element')} {is_(beside.cured)} good now, {beside.left} still at fault"
        )
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


PAIRS = (10, 20, 40)  # calls as they are, and as many with the change in turn, in each round
BUDGET_S = 120.0


@dataclass
class Counted:
    """Calls so far. `failing` are those as they are that failed like the first of them."""

    calls: int = 0
    failing: list[Seen] = field(default_factory=list)
    well: list[Seen] = field(default_factory=list)
    changed: list[Seen] = field(default_factory=list)

    def add(self, pairs: Sequence[tuple[Seen, Seen]]) -> None:
        for own, changed in pairs:
            self.calls += 1
            self.changed.append(changed)
            if fails(own) and (not self.failing or alike(self.failing[0], own)):
                self.failing.append(own)
            else:
                self.well.append(own)

    @property
    def still(self) -> list[Seen]:
        """Calls with the change that fail all the same."""
        return [seen for seen in self.changed if self.failing and alike(self.failing[0], seen)]

    @property
    def chance(self) -> float:
        return chance_of(self.calls, len(self.failing), len(self.changed))


async def try_flaky(
    context: Context, call: TriedCall, intervention: Intervention, *, budget_s: float = BUDGET_S
) -> Trial:
    """Calls as they are and with the change in turn, until the count decides, or the budget ends."""
    counted, began = Counted(), time.monotonic()
    for pairs in PAIRS:
        counted.add(await _round(context, call, intervention, pairs))
        if counted.still or (counted.failing and counted.chance < MOST_CHANCE):
            break
        if time.monotonic() - began > budget_s:
            break
    return _judged(intervention, counted)


async def _round(
    context: Context, call: TriedCall, intervention: Intervention, pairs: int
) -> list[tuple[Seen, Seen]]:
    plan: list[Planned] = []
    for place in range(pairs):
        plan += [Planned(f"as-is-{place}"), as_planned(intervention, f"with-{place}")]
    seen = await carry_out(context, call, plan, name="intervene-flaky")
    return [
        (seen[f"as-is-{place}"], seen[f"with-{place}"]) for place in range(pairs) if f"with-{place}" in seen
    ]


def _judged(intervention: Intervention, counted: Counted) -> Trial:
    effect, reason = _effect(counted)
    before, again = _two(counted)
    after = (counted.still or [seen for seen in counted.changed if fails(seen)] or counted.changed)[0]
    return Trial(
        intervention=intervention,
        effect=effect,
        before=before,
        after=after,
        again=again,
        side_effects=side_effects_of(after, again),
        calls=counted.calls,
        failed=len(counted.failing),
        tries=len(counted.changed),
        chance=counted.chance,
        reason=reason,
    )


def _two(counted: Counted) -> tuple[Seen, Seen]:
    """The first and the last call as it is that failed; of one that never did, any."""
    seen = counted.failing or counted.well
    return seen[0], seen[-1]


def _effect(counted: Counted) -> tuple[Effect, str]:
    often = f"the call as it is failed {len(counted.failing)} times of {counted.calls}"
    if not counted.failing:
        return Effect.NOT_APPLICABLE, f"the call as it is did not fail once in {counted.calls} calls"
    if counted.still:
        return Effect.SAME, f"{often}, with the change {len(counted.still)} of {len(counted.changed)}"
    if counted.chance >= MOST_CHANCE:
        return Effect.NOT_APPLICABLE, (
            f"{often}, with the change 0 of {len(counted.changed)}: that may be chance ({counted.chance:.0%})"
        )
    other = [seen for seen in counted.changed if fails(seen)]
    effect, _ = effect_of(counted.failing[0], (other or counted.changed)[0])
    words = f"{often}, with the change 0 of {len(counted.changed)} in that way"
    return effect, f"{words}: chance {counted.chance:.2%}"
