"""Making the failing call with one thing changed, and with its custom operators watched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mcp_server.diagnosis.causes.custom_op import REPAIRED, SAME
from mcp_server.diagnosis.components import own_operators
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.diagnosis.interventions.run import try_intervention, try_interventions
from mcp_server.diagnosis.next_steps import call_words
from mcp_server.diagnosis.observe.calls import interpret, run_call
from mcp_server.diagnosis.planner import limit_of
from mcp_server.diagnosis.ranking import is_cause, leaves_out, ranked, trials_of, untried
from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.tools.context import Context, WorkerRun, gpus_of
from mcp_server.worker.protocol import CallFacts

MAX_ROUNDS = 4
MAX_TOGETHER = 6  # interventions of one round, which share a loaded package
MAX_COMBINED = 3  # suspects that are removed together
SHARE = 0.4  # of what the budget leaves, for one round


class TryInterventions:
    """Remove the leading suspects, one at a time, and see whether the failure goes and comes back."""

    seconds = 4.0
    alone = False

    def __init__(self) -> None:
        self.rounds = 0

    @property
    def name(self) -> str:
        return f"intervene_{self.rounds}"

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if self.rounds >= MAX_ROUNDS or not can_intervene(case):
            return 0.0
        return 0.85 if list(_wanted(case, open_suspects)) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        self.rounds += 1
        wanted = list(_wanted(case, case.suspects))
        if _by_program(case):
            wanted = wanted[:1]
            trials = [await _try_against_program(case, context, each, self.rounds) for each in wanted]
        else:
            seen = await try_interventions(context, tried_call(case), wanted)
            trials = [judged(trial) for trial in seen]
        case.trials |= {trial.intervention.key: trial for trial in trials}


def can_intervene(case: DiagnosisState) -> bool:
    """Whether there is a call to make again that fails, or that is given what it was not compiled for."""
    plain = case.runs.get("plain")
    if plain is None or case.call is None or case.call.operation == "compile":
        return False
    return plain.failure != "none" or _by_program(case) or bool(case.mismatches)


def tried_call(case: DiagnosisState) -> TriedCall:
    """The failing call, as the trials take it: with the reference of the program where it has one."""
    assert case.call is not None
    workload, request = case.workload, dict(case.call.request)
    actual = request.pop("actual", None)
    for name in ("held", "returned"):
        request.pop(name, None)
    symptom = case.symptom
    return TriedCall(
        request=request,
        env=dict(workload.env) if workload is not None else {},
        python=workload.python if workload is not None else None,
        cwd=workload.cwd if workload is not None else None,
        timeout_s=_whole_minutes(limit_of(case, share=SHARE).seconds),
        gpus=gpus_of(case.device, int(case.call.request.get("device_index", -1))),
        expect=Path(str(actual)) if actual is not None else symptom.expect,
        rtol=symptom.rtol,
        atol=symptom.atol,
        check=symptom.check,
        infinities=symptom.seen == "nan",
        spelling=_spelling(case),
    )


def _spelling(case: DiagnosisState) -> tuple[str, ...]:
    """The words of `try-fix` that name the call and the expectation; none where it does not take them."""
    symptom, words = case.symptom, call_words(case)
    if symptom.check or symptom.rtol != symptom.atol or not words:
        return ()
    tolerance = ("--tolerance", str(symptom.rtol)) if symptom.rtol is not None else ()
    return (*words, *(("--expect", str(symptom.expect)) if symptom.expect else ()), *tolerance)


def _whole_minutes(seconds: float) -> float:
    """Rounded up, so that a job that is resumed asks for the same calls and takes them from before."""
    return math.ceil(seconds / 60) * 60.0


def _wanted(case: DiagnosisState, suspects: Sequence[Suspect]) -> Iterator[Intervention]:
    """Interventions of the leading suspects that were not tried, then what removes several at once."""
    found: dict[str, Intervention] = {}
    ends_well = case.runs["plain"].failure == "none" and not _by_program(case)
    for suspect in ranked(suspects, case):
        if is_cause(suspect, case) and not leaves_out(suspect):
            break
        found |= {each.key: each for each in untried(suspect, case) if each.keeps_values or not ends_well}
    if not found and not ends_well:
        found = {each.key: each for each in _combined(suspects, case)}
    yield from list(found.values())[:MAX_TOGETHER]


def judged(trial: Trial) -> Trial:
    """The trial of a call that ends well by what it returns, and one that no expectation fits, as open."""
    if (
        trial.before.failure == "differs"
        and trial.intervention.leaves_out
        and trial.effect is not Effect.GONE
    ):
        return replace(
            trial, effect=Effect.NOT_APPLICABLE, reason="nothing is expected of a call of other sizes"
        )
    seen, again = trial.after.facts, trial.again.facts
    if trial.before.failure != "none" or seen is None or seen.beside is None or trial.after.failure != "none":
        return trial
    if seen.beside.equal:
        return replace(trial, effect=Effect.SAME, reason="the call returns the same values")
    if again is None or again.beside is None or not again.beside.equal:
        return trial
    return replace(
        trial, effect=Effect.GONE, reason="the call returns other values", calls=2, failed=2, chance=0.0
    )


def _combined(suspects: Sequence[Suspect], case: DiagnosisState) -> Iterator[Intervention]:
    """All input changes that alone left the failure as it was, together: two causes can hide each other.

    Not where one alone made it go away.
    """
    tried = [trial for suspect in suspects for trial in trials_of(suspect, case)]
    if any(trial.effect is Effect.GONE for trial in tried):
        return
    parts = {
        trial.intervention.key: trial.intervention
        for trial in tried
        if trial.intervention.kind is Kind.INPUT and trial.effect in (Effect.SAME, Effect.CHANGED)
    }
    if not 1 < len(parts) <= MAX_COMBINED:
        return
    both = combined(list(parts.values()))
    if both.key not in case.trials:
        yield both


def combined(parts: Sequence[Intervention]) -> Intervention:
    """Several changes of inputs made at once."""
    return Intervention(
        key="+".join(sorted(each.key for each in parts)),
        kind=Kind.INPUT,
        what=" and ".join(each.what for each in parts),
        changes=tuple(change for each in parts for change in each.changes),
        after_code="; ".join(each.after_code for each in parts if each.after_code),
        spelling=tuple(word for each in parts for word in each.spelling),
    )


def _by_program(case: DiagnosisState) -> bool:
    """Whether only what the program held, or an input that stays as it was, shows that the call is wrong."""
    plain = case.runs.get("plain")
    if plain is None or plain.failure not in ("none", "differs"):
        return False
    missed = plain.failure == "none" and not all(plain.held.values())
    return missed or bool(plain.left_alone)


async def _try_against_program(
    case: DiagnosisState, context: Context, intervention: Intervention, number: int
) -> Trial:
    """The call with the change, and again without it, each held against what the program held."""
    changes = [change.request() for change in intervention.changes]
    extra = {"changes": changes, **intervention.options.request()}
    after = await run_call(case, context, f"with-{number}", extra=extra, record=False)
    again = await run_call(case, context, f"again-{number}", record=False)
    return against_program(intervention, case.runs["plain"], after, again)


def against_program(intervention: Intervention, before: RunSeen, after: RunSeen, again: RunSeen) -> Trial:
    """The trial of a change by what the program held beside the call, from three runs of it."""
    effect, reason = _effect_on_program(intervention, before, after, again)
    return Trial(intervention, effect, seen_of(before), seen_of(after), seen_of(again), reason=reason)


def _effect_on_program(
    intervention: Intervention, before: RunSeen, after: RunSeen, again: RunSeen
) -> tuple[Effect, str]:
    """Whether the call gives now what the program expected, or changes the input that it left as it was."""
    if after.failure not in ("none", "differs") or again.failure not in ("none", "differs"):
        return Effect.NOT_APPLICABLE, f"the call fails then ({after.failure})"
    moved = next((change.input for change in intervention.changes if change.change == "align"), None)
    if moved is not None:
        cured = moved in before.left_alone and moved in after.changed and moved in again.left_alone
        return (Effect.GONE, "the input is changed now") if cured else (Effect.SAME, "")
    reached = [n for n, equal in after.held.items() if equal and not before.held.get(n, True)]
    if not reached or any(again.held.get(name, False) for name in reached):
        return Effect.NOT_APPLICABLE, "it gives nothing that the program held"
    name = next((name for name in reached if not name.startswith("_")), reached[0])
    return Effect.GONE, f"the call gives then what the program held as {name!r}"


def seen_of(run: RunSeen) -> Seen:
    """A run of the call that came back, as trials tell it."""
    if run.failure in ("none", "differs", "nonfinite"):
        return Seen("ok", CallFacts(run.label, "", "ok"))
    return Seen("raised", text=run.root.text if run.root else run.failure, family=run.family or "")


class WatchOperators:
    """Hold what each custom operator returns against its fake function; see whether a difference matters."""

    name = "watch_operators"
    seconds = 5.0
    alone = False

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or case.call.operation == "compile" or "plain" not in case.runs:
            return 0.0
        if case.runs["plain"].failure == "timeout" and "trace_launches" not in case.done:
            return 0.0  # it would hang again, and the trace tells where
        return 0.8 if own_operators(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        watched = await run_call(case, context, "operators", extra={"operators": "watch"}, record=False)
        case.operators = watched.worker
        if watched.worker is None or not watched.worker.all("operator"):
            return
        trial = await _trial(case, context, watched)
        if trial.effect in (Effect.SAME, Effect.NOT_APPLICABLE) and not case.equals_eager:
            kept = (
                await interpret(case, context, operators="repair") if case.interpreted is not None else None
            )
            trial = in_eager(kept, trial)
        case.trials[REPAIRED.key] = trial


async def _trial(case: DiagnosisState, context: Context, watched: RunSeen) -> Trial:
    """The call with the promises kept: whether the failure goes, else whether other values come back."""
    if case.runs["plain"].failure != "none":
        return await try_intervention(context, tried_call(case), REPAIRED)
    repaired = await run_call(case, context, "repaired", extra={"operators": "repair"}, record=False)
    return effect_on_values(case.runs["plain"], watched, repaired)


def in_eager(kept: WorkerRun | None, trial: Trial) -> Trial:
    """What the promises do to the model, where the package does not depend on them but diverges from it.

    Memory that an operator writes without saying so may be read by the model alone: the package, which was
    told of no such write, computes that value again or has it elsewhere.
    """
    compared = kept.last("compared") if kept is not None else None
    if compared is None or not compared["equal"]:
        return replace(trial, effect=Effect.NOT_APPLICABLE)
    what = "the exported program gives what the package gives once the operators keep their promises"
    return replace(trial, effect=Effect.GONE, reason=what)


def effect_on_values(plain: RunSeen, watched: RunSeen, repaired: RunSeen) -> Trial:
    """Whether a call that ends well returns other values once the promises are kept."""
    before, after, again = (seen_of(run) for run in (plain, repaired, watched))
    trial = partial(Trial, REPAIRED, before=before, after=after, again=again)
    if repaired.failure != "none":
        return trial(effect=Effect.NOT_APPLICABLE, reason=f"the call fails then ({repaired.failure})")
    if _digests(plain) != _digests(watched):
        return trial(effect=Effect.NOT_APPLICABLE, reason="the outputs differ from run to run anyway")
    if _digests(watched) == _digests(repaired):
        return trial(effect=Effect.NOT_APPLICABLE, reason=SAME)
    return trial(effect=Effect.GONE, reason="the call returns other values then, and the old ones without it")


def _digests(run: RunSeen) -> list[Any]:
    return [output.get("checksum") for output in run.outputs]
