"""Tries interventions on a failing call: without, with, and again without each of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mcp_server.diagnosis.interventions.base import MOST_CHANCE, Effect, Intervention, Seen, Trial
from mcp_server.diagnosis.interventions.judge import alike, effect_of, fails, side_effects_of, try_flaky
from mcp_server.diagnosis.interventions.plan import Planned, TriedCall, as_planned, carry_out
from mcp_server.errors import ProblemError
from mcp_server.tools.context import Context

# How calls are kept apart: not at all, by a load of the package for each, by a process for each.
Apart = Literal["no", "loads", "processes"]
NOT_MADE = Seen("not_made")


@dataclass(frozen=True)
class Three:
    """The calls around one intervention."""

    before: Seen
    after: Seen
    again: Seen

    @property
    def steady(self) -> bool:
        """Whether the call as it is did the same both times."""
        both_well = not fails(self.before) and not fails(self.again)
        return both_well or alike(self.before, self.again)


async def try_intervention(context: Context, call: TriedCall, intervention: Intervention) -> Trial:
    """`try_interventions` of one."""
    return (await try_interventions(context, call, [intervention]))[0]


async def try_interventions(
    context: Context, call: TriedCall, interventions: Sequence[Intervention]
) -> list[Trial]:
    """Each intervention between two calls as they are, all in one process where none of them ends it.

    A failure that comes once only is made to come with a fresh load for each call, then in processes of
    their own; where it comes and goes then, too, the call is made as often as leaves a chance below 1 %.
    Raises `ProblemError` when no call can be made, and for an expectation that cannot be one of this call.
    """
    shared = [each for each in interventions if not (each.unavailable or each.options.env)]
    seen = await _in_one_process(context, call, shared) if shared else {}
    trials = []
    for intervention in interventions:
        if intervention.unavailable:
            trials.append(_not_made(intervention))
        else:
            trials.append(await _tried(context, call, intervention, seen.get(intervention.key)))
    return trials


async def _tried(context: Context, call: TriedCall, intervention: Intervention, three: Three | None) -> Trial:
    """The trial of one intervention, from the calls that were made or from those that are made now."""
    apart: tuple[Apart, ...] = ("processes",) if three is None else ("loads", "processes")
    came = call.known_to_fail
    for each in apart:
        if three is not None:
            came = came or fails(three.before) or fails(three.again)
            if three.steady and (fails(three.before) or not came):
                break
        three = await _apart(context, call, intervention, each)
    assert three is not None
    if not three.steady or (came and not fails(three.before)):
        return _with_command(call, await try_flaky(context, call, intervention))
    return _with_command(call, _judged(intervention, three))


async def _in_one_process(
    context: Context, call: TriedCall, interventions: Sequence[Intervention]
) -> Mapping[str, Three]:
    """The three calls of each intervention, by its key."""
    plan = [Planned("before")]
    for place, each in enumerate(interventions):
        plan += _references(each, f"{place}-")
        plan += [as_planned(each, f"with-{place}"), Planned(f"again-{place}")]
    seen = await carry_out(context, call, plan)
    found: dict[str, Three] = {}
    before = seen["before"]
    _check_expectation(before)
    for place, each in enumerate(interventions):
        after, again = (seen.get(f"{name}-{place}", NOT_MADE) for name in ("with", "again"))
        _check_expectation(after, before)
        found[each.key] = Three(before, after, again)
        before = again if again.ended != "not_made" else before
    return found


def _references(intervention: Intervention, prefix: str) -> list[Planned]:
    return [
        Planned(f"{prefix}minimal-{place}", intervention.key, changes, reference=True)
        for place, changes in enumerate(intervention.minimal)
    ]


async def _apart(context: Context, call: TriedCall, intervention: Intervention, apart: Apart) -> Three:
    """The three calls with a load, or a process, for each."""
    changed = as_planned(intervention, "with-0")
    if apart == "loads":
        plan = [Planned("before"), *_references(intervention, ""), changed, Planned("again-0")]
        seen = await carry_out(context, replace(call, fresh=True), plan)
    else:
        kept = context.fresh("reference") / "outputs.pt"
        seen = await carry_out(context, call, [Planned("before", save=kept)])
        against = {**call.request, **({"against": kept} if kept.exists() else {})}
        there = replace(call, request=against)
        references = [] if kept.exists() else _references(intervention, "")
        seen |= await carry_out(context, there, [*references, changed])
        seen |= await carry_out(context, there, [Planned("again-0")])
    _check_expectation(seen["before"])
    return Three(*(seen.get(label, NOT_MADE) for label in ("before", "with-0", "again-0")))


def _judged(intervention: Intervention, three: Three) -> Trial:
    effect, reason = effect_of(three.before, three.after)
    return Trial(
        intervention=intervention,
        effect=effect,
        before=three.before,
        after=three.after,
        again=three.again,
        side_effects=side_effects_of(three.after, three.again),
        failed=int(fails(three.before)) + int(fails(three.again)),
        reason=reason,
    )


def _not_made(intervention: Intervention) -> Trial:
    return Trial(
        intervention,
        Effect.NOT_APPLICABLE,
        *(NOT_MADE, NOT_MADE, NOT_MADE),
        calls=0,
        failed=0,
        tries=0,
        reason=intervention.unavailable,
    )


def _with_command(call: TriedCall, trial: Trial) -> Trial:
    spelling = trial.intervention.spelling
    if not (call.spelling and spelling):
        return trial
    return replace(trial, command=shlex.join(["aoti-debug", "try-fix", *call.spelling, *spelling]))


def _check_expectation(seen: Seen, before: Seen | None = None) -> None:
    """Raise ProblemError for an expectation that has another layout than what the call gives.

    A call whose inputs got other shapes gives other shapes, too.
    """
    facts = seen.facts
    if facts is None or facts.expected is None or not facts.expected.layout:
        return
    if any(change.layout for change in facts.inputs) or (before is not None and before.ended == "ok"):
        return
    place = next(output.output for output in facts.expected.outputs if output.layout)
    raise ProblemError(
        f"the expectation does not fit the outputs of the call: output {place} has {facts.expected.layout}",
        allowed="a file of torch.save with one tensor for each output, of the shapes of the outputs",
    )


__all__ = ["MOST_CHANCE", "try_intervention", "try_interventions"]
