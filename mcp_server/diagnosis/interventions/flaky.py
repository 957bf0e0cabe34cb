"""Trials of a failure that comes and goes: as many calls as leave a chance below 1 %."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_server.diagnosis.interventions.base import MOST_CHANCE, Effect, Intervention, Seen, Trial
from mcp_server.diagnosis.interventions.judge import alike, chance_of, effect_of, fails, side_effects_of
from mcp_server.diagnosis.interventions.plan import Planned, TriedCall, as_planned, carry_out
from mcp_server.steps.context import Context

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
    context.cost.runs += len(seen) - 1
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
