"""Tries interventions on a failing call, and judges whether each removed the failure.

The call is made unchanged, with the change, and unchanged again. If the failure is intermittent, calls are
repeated until the result is clear. A plan of calls runs in one process. If a call ends the process, another
one continues the plan.
"""

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcp_server.diagnosis.interventions.base import (
    MOST_CHANCE,
    Effect,
    Intervention,
    Kind,
    Seen,
    SideEffects,
    Trial,
)
from mcp_server.diagnosis.program_seen import Symptom, misfit
from mcp_server.errors import ProblemError
from mcp_server.logs.log import read_log
from mcp_server.logs.text import bound, clean, kernel_message
from mcp_server.model import PackageWorkload
from mcp_server.package.view import view_package
from mcp_server.plurals import counted, is_
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import read_output
from mcp_server.tools.requests import run_request
from mcp_server.worker import events
from mcp_server.worker.events import CallFacts
from mcp_server.worker.protocol import Change

START_S = 120.0  # to start the interpreter, import torch and load the package
MOST_LIMITS = 4  # time limits of calls that one process may use up
_NUMBER = re.compile(r"-?\d+")
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|(?:/[\w.+\-]+)+/|\b[a-z0-9]{40,}\b")


@dataclass(frozen=True)
class TriedCall:
    """The failing call: a request of the worker's `run` or `replay`, and its environment.

    `symptom` says what the outputs should be; `fresh` loads the package again for each call. `timeout_s` is
    the limit of one call. `spelling` are the arguments of `try-fix` that name this call.
    """

    request: Mapping[str, object]
    env: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    cwd: Path | None = None
    timeout_s: float = 300.0
    gpus: tuple[int, ...] | None = None
    symptom: Symptom = field(default_factory=Symptom)
    fresh: bool = False
    spelling: tuple[str, ...] = ()


AS_IT_IS = Intervention("", Kind.CALL, "the call as it is")


@dataclass(frozen=True)
class Planned:
    """One call of a plan, with all changes of the intervention or with its `minimal` changes."""

    label: str
    intervention: Intervention = AS_IT_IS
    minimal: tuple[Change, ...] = ()
    save: Path | None = None

    def request(self) -> dict[str, object]:
        made = self.intervention
        return {
            "label": self.label,
            "key": made.key,
            "changes": self.minimal or made.changes,
            "options": made.options.request() if not self.minimal else {},
            "reference": bool(self.minimal),
            "smallest": made.smallest and not self.minimal,
            "save": self.save,
        }


def call_of_package(workload: PackageWorkload, symptom: Symptom | None = None) -> TriedCall:
    """The call of a package with its inputs. Raises `ProblemError` if there are none."""
    package = view_package(workload.package, workload.model_name).package
    return TriedCall(
        request=run_request(workload),
        env=workload.env,
        python=workload.python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
        gpus=gpus_of(package.device_type, workload.device_index),
        symptom=symptom or Symptom(),
    )


async def carry_out(
    context: Context, call: TriedCall, plan: Sequence[Planned], *, name: str = "intervene"
) -> dict[str, Seen]:
    """Make the calls of the plan. Return how each ended, by label.

    Raise `ProblemError` if no call can be made at all, or if a change does not apply to the call.
    """
    seen: dict[str, Seen] = {}
    rest = list(plan)
    while rest:
        done = await context.worker(
            "intervene",
            {**_request(call), "plan": [planned.request() for planned in rest]},
            name=name,
            env={**call.env, **rest[0].intervention.options.env},
            timeout_s=START_S + min(len(rest), MOST_LIMITS) * call.timeout_s,
            python=call.python,
            cwd=call.cwd,
            gpus=call.gpus,
        )
        ended = _read(done, call)
        if not ended:
            failed = done.last(events.Failed)
            why = failed.text[:500] if failed else f"the worker ended in {done.phase}"
            raise ProblemError(f"the call could not be made: {why}", value=done.finished.ending)
        if not done.finished.reused:
            context.cost.runs += len(ended) - 1  # the process is already counted
        seen.update(ended)
        rest = rest[len(ended) :]
        came_back = any(each.ended == "ok" and each.facts and not each.facts.key for each in seen.values())
        if rest and rest[0].intervention is not AS_IT_IS and came_back:
            # The reference outputs were lost with the process, so begin with the unchanged call.
            rest = [Planned(f"reference-{len(seen)}"), *rest]
    return seen


def _request(call: TriedCall) -> dict[str, object]:
    symptom = call.symptom
    return {
        **call.request,
        "expect": symptom.expect,
        "rtol": symptom.rtol,
        "atol": symptom.atol,
        "check": list(symptom.check),
        "infinities": symptom.infinities,
        "fresh": call.fresh,
        "call_limit_s": call.timeout_s,
    }


def _read(done: WorkerRun, call: TriedCall) -> dict[str, Seen]:
    """The calls made, in order. The last one may have ended the process."""
    seen: dict[str, Seen] = {}
    for facts in done.all(CallFacts):
        seen[facts.label] = _of_facts(facts, infinities=call.symptom.infinities)
    begun = [phase.about for phase in done.phases("intervening")]
    if begun and begun[-1] not in seen:
        seen[begun[-1]] = _ended_process(done)
    return seen


def _of_facts(facts: CallFacts, *, infinities: bool) -> Seen:
    """The outcome of a call that returned, raised, or was rejected."""
    if facts.ended == "ok":
        return Seen("ok", facts, infinities=infinities)
    if facts.ended == "refused":
        return Seen("refused", facts, text=facts.error_text)
    first = f"{facts.error_type.removeprefix('builtins.')}: {facts.error_text}"
    raised = ["Traceback (most recent call last):", '  File "call.py", line 1, in call', *first.splitlines()]
    root = read_log(raised).root
    return Seen(
        "raised",
        facts,
        text=bound("\n".join(map(clean, facts.error_text.splitlines()))),
        family=root.family.id if root else "",
        essence=_essence(facts.error_text),
    )


def _ended_process(done: WorkerRun) -> Seen:
    finished = done.finished
    root = read_output(finished.output).root
    text = root.text if root else finished.note
    # Threads that throw at once may end the process before any of their messages is printed.
    family = root.family.id if root and "ending" not in root.family.tags else ""
    # The worker ends itself, with this text, if a call takes longer than `call_limit_s`.
    printed = finished.stderr.read_text(errors="replace") if finished.stderr.exists() else ""
    if finished.ending == "timeout" or (finished.returncode == 1 and "Timeout (" in printed):
        return Seen("timeout", text=text)
    if finished.ending == "out_of_memory":
        return Seen("out_of_memory", text=text, family=family)
    signal = finished.signal or f"exit status {finished.returncode}"
    essence = _essence(kernel_message(text) or text) if family else ""
    return Seen("died", signal=signal, text=text, family=family, essence=essence)


def _essence(text: str) -> str:
    """The first line without addresses and directories, which vary by run."""
    lines = text.strip().splitlines()
    return _VOLATILE.sub("", lines[0]).strip() if lines else ""


NOT_MADE = Seen("not_made")
MOST_PLACES = 8  # listed elements that changed although they were not at fault


@dataclass(frozen=True)
class Three:
    """The three calls around one intervention."""

    before: Seen
    after: Seen
    again: Seen

    @property
    def fails(self) -> bool:
        """Whether the unchanged call failed at least once."""
        return fails(self.before) or fails(self.again)

    @property
    def steady(self) -> bool:
        """Whether both unchanged calls ended alike. Numbers in error texts may differ."""
        return not self.fails or of_one_kind(self.before, self.again)


async def try_intervention(context: Context, call: TriedCall, intervention: Intervention) -> Trial:
    """Like `try_interventions`, for one intervention."""
    return (await try_interventions(context, call, [intervention]))[0]


async def try_interventions(
    context: Context, call: TriedCall, interventions: Sequence[Intervention]
) -> list[Trial]:
    """Try each intervention between two unchanged calls, in one process if no call ends it.

    If only one of the unchanged calls fails, repeat the calls, each with a fresh load, then each in its own
    process. If the failure is still intermittent, repeat them until the probability of chance is below 1 %.
    Raises `ProblemError` if no call can be made, or if the expectation does not fit the outputs.
    """
    shared = [each for each in interventions if not (each.unavailable or each.options.env)]
    seen = await _in_one_process(context, call, shared) if shared else {}
    trials = []
    for intervention in interventions:
        if intervention.unavailable:
            nothing = (NOT_MADE, NOT_MADE, NOT_MADE)
            reason = intervention.unavailable
            trial = Trial(intervention, Effect.NOT_APPLICABLE, *nothing, calls=0, failed=0, reason=reason)
        else:
            trial = await _tried(context, call, intervention, seen.get(intervention.key))
            if call.spelling and intervention.spelling:
                command = ["aoti-debug", "try-fix", *call.spelling, *intervention.spelling]
                trial = replace(trial, command=shlex.join(command))
        trials.append(trial)
    return trials


async def _tried(context: Context, call: TriedCall, intervention: Intervention, three: Three | None) -> Trial:
    """The trial of one intervention from the calls in `three` or, if needed, from new ones."""
    came = False
    for fresh in (False,) if three is None else (True, False):
        if three is not None:
            came = came or three.fails
            if three.steady and (fails(three.before) or not came):
                break
        if fresh:
            apart = await _in_one_process(context, replace(call, fresh=True), [intervention])
            three = apart[intervention.key]
        else:
            three = await _in_own_processes(context, call, intervention)
    assert three is not None
    if not three.steady or (came and not fails(three.before)):
        return await try_flaky(context, call, intervention)
    effect, reason = effect_of(three.before, three.after, three.again)
    return Trial(
        *(intervention, effect, three.before, three.after, three.again),
        side_effects=side_effects_of(three.after, three.again),
        failed=int(fails(three.before)) + int(fails(three.again)),
        reason=reason,
    )


async def _in_one_process(
    context: Context, call: TriedCall, interventions: Sequence[Intervention]
) -> Mapping[str, Three]:
    """Make the three calls of each intervention in one process. Return them by key."""
    plan = [Planned("before")]
    for place, each in enumerate(interventions):
        plan += [Planned(f"{place}-minimal-{n}", each, made) for n, made in enumerate(each.minimal)]
        plan += [Planned(f"with-{place}", each), Planned(f"again-{place}")]
    seen = await carry_out(context, call, plan)
    found: dict[str, Three] = {}
    before = seen["before"]
    if not any(change.change in ("reshape", "reorder") for each in interventions for change in each.changes):
        _check_expectation(before)  # with inputs of another rank, outputs may have another layout
    for place, each in enumerate(interventions):
        after, again = (seen.get(f"{name}-{place}", NOT_MADE) for name in ("with", "again"))
        _check_expectation(after, before)
        found[each.key] = Three(before, after, again)
        before = again if again.ended != "not_made" else before
    return found


async def _in_own_processes(context: Context, call: TriedCall, intervention: Intervention) -> Three:
    """Make the three calls, each in a separate process."""
    kept = context.fresh("reference") / "outputs.pt"
    seen = await carry_out(context, call, [Planned("before", save=kept)])
    plan = [Planned(f"minimal-{n}", intervention, made) for n, made in enumerate(intervention.minimal)]
    if kept.exists():
        call, plan = replace(call, request={**call.request, "against": kept}), []
    seen |= await carry_out(context, call, [*plan, Planned("with", intervention)])
    seen |= await carry_out(context, call, [Planned("again")])
    _check_expectation(seen["before"])
    return Three(*(seen.get(label, NOT_MADE) for label in ("before", "with", "again")))


def _check_expectation(seen: Seen, before: Seen | None = None) -> None:
    """Raise ProblemError if the expected outputs have another layout, unless the change may explain it."""
    facts = seen.facts
    if facts is None or facts.expected is None or not facts.expected.layout:
        return
    if any(change.layout for change in facts.inputs) or (before is not None and before.ended == "ok"):
        return
    place = next(output.output for output in facts.expected.outputs if output.layout)
    raise misfit(f"output {place} has {facts.expected.layout}")


def fails(seen: Seen) -> bool:
    """Whether the call was made and failed. A rejected change is not a failure of the call."""
    return seen.ended not in ("refused", "not_made") and seen.failure != "none"


def alike(first: Seen, second: Seen) -> bool:
    """Whether two calls failed in the same way: the same kind and, for an error, the same text.

    For an error of a known family, it does not matter whether it was raised or ended the process.
    """
    if not (fails(first) and fails(second)):
        return False
    if first.failure != second.failure:
        same_text = first.essence and (first.family, first.essence) == (second.family, second.essence)
        return bool(first.family and same_text)
    if first.failure in ("nonfinite", "differs", "timeout", "out_of_memory"):
        return True
    if first.signal != second.signal or (first.family and second.family and first.family != second.family):
        return False
    return not (first.essence and second.essence) or first.essence == second.essence


def of_one_kind(first: Seen, second: Seen) -> bool:
    """Whether two calls failed alike, apart from numbers in the text (the first bad element may vary)."""
    if alike(first, second):
        return True
    texts = [_NUMBER.sub("", each.essence) for each in (first, second)]
    return fails(first) and first.failure == second.failure and texts[0] == texts[1] != ""


def effect_of(before: Seen, after: Seen, again: Seen | None = None) -> tuple[Effect, str]:
    """What the change did to the failure of `before`, and the reason unless it is GONE or SAME.

    Numbers in error texts are ignored if they differ between `before` and `again`.
    """
    if not fails(before):
        return Effect.NOT_APPLICABLE, "the unchanged call does not fail"
    if after.ended in ("refused", "not_made"):
        return Effect.NOT_APPLICABLE, after.text or "the change could not be made"
    # The changed call failed in the load or in an update, which the unchanged call had passed.
    during = after.facts.during if after.ended == "raised" and after.facts is not None else "calling"
    passed = before.facts is None or before.facts.during != during
    if during not in ("calling", "outputs") and passed:
        return Effect.NOT_APPLICABLE, f"with the change the call is not reached: {after.describe()}"
    if after.failure == "none":
        return Effect.GONE, ""
    varies = again is not None and not alike(before, again)
    if not (of_one_kind if varies else alike)(before, after):
        return Effect.CHANGED, f"with the change it {after.describe()}"
    compared = after.facts.compared if after.facts is not None else None
    if before.failure not in ("nonfinite", "differs") or compared is None:
        return Effect.SAME, ""
    # Fewer elements are at fault, and no new ones: one of several causes was removed.
    if compared.cured and not compared.new and not compared.layout:
        cured = f"{counted(compared.cured, 'element')} {is_(compared.cured)} correct now"
        still = f"{cured}, {compared.left} {is_(compared.left)} still at fault"
        return Effect.CHANGED, f"with the change it {after.describe()}: {still}"
    return Effect.SAME, ""


def side_effects_of(after: Seen, again: Seen) -> SideEffects:
    """Output elements that were not at fault but changed.

    They are unknown if repeated outputs vary, or if a check command judges them, which names no elements.
    """
    if after.facts is None or after.facts.compared is None:
        return SideEffects(known=False)
    if after.facts.check is not None and after.facts.expected is None:
        return SideEffects(known=False)
    repeated = again.facts.compared if again.facts is not None else None
    if repeated is not None and repeated.innocent:
        return SideEffects(known=False)
    compared = after.facts.compared
    return SideEffects(
        elements=compared.innocent,
        rows=tuple(sorted({row for output in compared.outputs for row in output.innocent_rows})),
        first=tuple(each for output in compared.outputs for each in output.first_innocent)[:MOST_PLACES],
        layout=compared.layout,
        unseen=again.ended != "ok",
    )


def chance_of(calls: int, failed: int, tries: int) -> float:
    """The probability that none of `tries` changed calls fails by chance (one-sided Fisher's test)."""
    if not failed:
        return 1.0
    return math.comb(calls, failed) / math.comb(calls + tries, failed)


PAIRS = (10, 20, 40)  # unchanged calls in each round, alternating with as many changed calls
BUDGET_S = 120.0


async def _alone(context: Context, call: TriedCall, intervention: Intervention, calls: int) -> list[Seen]:
    """Make changed calls in processes that make no unchanged call."""
    plan = [Planned(f"alone-{place}", intervention) for place in range(calls)]
    return list((await carry_out(context, call, plan, name="intervene-flaky-alone")).values())


@dataclass
class _Calls:
    """The calls of `try_flaky`. `failing` has unchanged calls that failed like the first of them."""

    failing: list[Seen] = field(default_factory=list)
    well: list[Seen] = field(default_factory=list)
    changed: list[Seen] = field(default_factory=list)

    def add(self, made: Mapping[str, Seen], pairs: int) -> None:
        for place in range(pairs):
            if f"with-{place}" in made:
                own = made[f"as-is-{place}"]
                same = fails(own) and (not self.failing or alike(self.failing[0], own))
                (self.failing if same else self.well).append(own)
                self.changed.append(made[f"with-{place}"])

    @property
    def still(self) -> list[Seen]:
        """The changed calls that still fail."""
        return [seen for seen in self.changed if self.failing and alike(self.failing[0], seen)]

    @property
    def chance(self) -> float:
        return chance_of(len(self.failing) + len(self.well), len(self.failing), len(self.changed))


async def try_flaky(context: Context, call: TriedCall, intervention: Intervention) -> Trial:
    """Alternate unchanged and changed calls until the count decides or the budget ends.

    The trial has the first and the last failing unchanged call, and one changed call.
    """
    made, began = _Calls(), time.monotonic()
    for pairs in PAIRS:
        plan: list[Planned] = []
        for place in range(pairs):
            plan += [Planned(f"as-is-{place}"), Planned(f"with-{place}", intervention)]
        made.add(await carry_out(context, call, plan, name="intervene-flaky"), pairs)
        if made.still:  # because of the change, or of memory that an unchanged call damaged
            made.changed = await _alone(context, call, intervention, len(made.changed))
        if made.still or made.chance < MOST_CHANCE or time.monotonic() - began > BUDGET_S:
            break
    failing, changed, still, chance = made.failing, made.changed, made.still, made.chance
    as_it_is, calls = failing or made.well, len(failing) + len(made.well)
    after = (still or [seen for seen in changed if fails(seen)] or changed)[0]
    often = f"the unchanged call failed {len(failing)} of {calls} times"
    never = f"{often}, with the change 0 of {len(changed)}"
    effect = Effect.NOT_APPLICABLE
    if not failing:
        reason = f"the unchanged call did not fail once in {calls} calls"
    elif still:
        effect, reason = Effect.SAME, f"{often}, with the change {len(still)} of {len(changed)}"
    elif chance >= MOST_CHANCE:
        reason = f"{never}: that may be chance (probability {chance:.0%})"
    else:
        effect = effect_of(failing[0], after)[0]
        reason = f"{never} in that way: the probability of chance is {chance:.2%}"
    return Trial(
        *(intervention, effect, as_it_is[0], after, as_it_is[-1]),
        side_effects=side_effects_of(after, as_it_is[-1]),
        calls=calls,
        failed=len(failing),
        chance=chance,
        reason=reason,
    )
