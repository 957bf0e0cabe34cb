"""Makes the failing call with one thing changed, and with its custom operators watched."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mcp_server.diagnosis.causes.custom_op import KEPT, REPAIRED, SAME
from mcp_server.diagnosis.components import own_operators
from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Kind,
    Seen,
    SideEffects,
    Trial,
    change_in_words,
)
from mcp_server.diagnosis.interventions.input import together
from mcp_server.diagnosis.interventions.run import TriedCall, try_intervention, try_interventions
from mcp_server.diagnosis.next_steps import call_arguments, package_words
from mcp_server.diagnosis.observe import LOCATES, REMOVES, Observation, limit_of
from mcp_server.diagnosis.observe.calls import interpret, run_call
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState, equal_to_program
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import is_cause, ranked, untried
from mcp_server.operations.arguments import option_words
from mcp_server.plurals import listed
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.worker import events
from mcp_server.worker.events import CallFacts

MAX_ROUNDS = 4
MAX_TOGETHER = 6  # interventions of one round, with one load of the package
MAX_COMBINED = 6  # suspects that are removed at the same time
SHARE = 0.4  # of the remaining budget, for one round
OF_PROGRAM = ("actual",)  # keys of a replay's request that trials do not have


class TryInterventions(Observation, seconds=4, best=REMOVES):
    """Remove the leading suspects one by one, put them back, and see if the failure leaves and returns."""

    def __init__(self) -> None:
        self._next_round(0)

    def _next_round(self, number: int) -> None:
        self.rounds, self.name = number, f"intervene_{number}"  # each round is a separate observation

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        plain = case.plain_run
        if self.rounds >= MAX_ROUNDS or plain is None or case.call is None:
            return 0.0
        # Try only a call that fails, or whose inputs differ from those of the compile.
        if plain.failure == "none" and not _by_program(case) and not case.mismatches:
            return 0.0
        return self.best if _wanted(case, open_suspects) else 0.0

    def after_proof(self, case: DiagnosisState) -> bool:
        """Whether a failure remains that only a combination of changes may remove."""
        return bool(combined(case.suspects, case))

    async def act(self, case: DiagnosisState, context: Context) -> None:
        self._next_round(self.rounds + 1)
        wanted = _wanted(case, case.suspects)
        if _by_program(case):
            # Judge the call with the change, and again without it, by whether it changes its input.
            (tried, *_), number = wanted, self.rounds
            extra = {"changes": tried.changes, **tried.options.request()}
            after = await run_call(case, context, f"with-{number}", extra=extra, record=False)
            again = await run_call(case, context, f"again-{number}", record=False)
            trials = [by_changed_input(tried, case.runs["plain"], after, again)]
        else:
            seen = await try_interventions(context, tried_call(case), wanted)
            trials = [await against_program(judged(trial), case, context) for trial in seen]
        case.trials |= {trial.intervention.key: trial for trial in trials}


def tried_call(case: DiagnosisState) -> TriedCall:
    """The failing call in the form for trials, with the program's reference outputs if it has any."""
    assert case.call is not None
    symptom, actual = case.symptom, case.call.request.get("actual")
    # `try-fix` takes no check command, and needs all parts of a call in files.
    taken = not (symptom.check or case.call.updated)
    arguments = call_arguments(case) if taken else {}
    words = package_words(arguments) if arguments else ()
    if words:
        judged = {"rtol": symptom.rtol, "atol": symptom.atol, "expect": symptom.expect}
        words += tuple(option_words({name: value for name, value in judged.items() if value is not None}))
    seconds = limit_of(case, share=SHARE).seconds
    return TriedCall(
        request={name: value for name, value in case.call.request.items() if name not in OF_PROGRAM},
        # Whole minutes, so that a resumed job asks for the same calls and reuses their results.
        timeout_s=math.ceil(seconds / 60) * 60.0,
        gpus=gpus_of(case.device, case.device_index),
        symptom=symptom if actual is None or symptom.judges else replace(symptom, expect=Path(str(actual))),
        spelling=words,
        **case.surroundings,
    )


def _wanted(case: DiagnosisState, suspects: Sequence[Suspect]) -> list[Intervention]:
    """Untried interventions of the leading suspects; if there are none, combinations of changes."""
    found: dict[str, Intervention] = {}
    ends_well = case.runs["plain"].failure == "none" and not _by_program(case)
    for suspect in ranked(suspects, case):
        if is_cause(suspect, case) and not suspect.leaves_out:
            break
        # If the call returns, try only changes that keep values, or that the exported program can judge.
        told = case.equals_eager is False
        left = (each for each in untried(suspect, case) if each.keeps_values or (told and each.leaves_out))
        found |= {each.key: each for each in (left if ends_well else untried(suspect, case))}
    if not found and not ends_well:
        found = {each.key: each for each in combined(suspects, case)}
    return list(found.values())[:MAX_TOGETHER]


def combined(suspects: Sequence[Suspect], case: DiagnosisState) -> list[Intervention]:
    """Combine all input changes that alone left a failure, as two causes can hide each other.

    If the combination removes the failure, reduce it: leave out each change in turn. Empty if one change
    alone removed the failure. No combination is tried twice.
    """
    alone = [each for suspect in suspects for each in suspect.interventions if each.key in case.trials]
    effects = {each.key: case.trials[each.key].effect for each in alone}
    parts = {
        each.key: each
        for each in alone
        if each.kind is Kind.INPUT and effects[each.key] in (Effect.SAME, Effect.CHANGED)
    }
    if Effect.GONE in effects.values() or not 1 < len(parts) <= MAX_COMBINED:
        return []
    every = _all_of(list(parts.values()))
    if every.key not in case.trials:
        return [every]
    tried = [trial.intervention for trial in case.trials.values() if trial.gone]
    removing = (each.parts for each in tried if each.parts and set(each.parts) <= parts.keys())
    enough = min(removing, key=len, default=())
    fewer = [[parts[key] for key in enough if key != without] for without in enough]
    return [made for each in fewer if len(each) > 1 and (made := _all_of(each)).key not in case.trials]


def _all_of(parts: Sequence[Intervention]) -> Intervention:
    """Combine these changes in one intervention."""
    changes = listed([change_in_words(part.what).removeprefix("with ") for part in parts])
    made = together("+".join(sorted(part.key for part in parts)), f"the call with {changes}", parts)
    return replace(made, action=f"make the call with {changes}: none of these changes alone is enough")


def _by_program(case: DiagnosisState) -> bool:
    """Whether the only sign of a wrong call is an input that the call failed to change."""
    plain = case.plain_run
    return plain is not None and plain.failure in ("none", "differs") and bool(plain.left_alone)


def judged(trial: Trial) -> Trial:
    """Judge a trial by the outputs, if the calls returned. NOT_APPLICABLE if no expectation fits."""
    fails_by_values, gone = trial.before.failure == "differs", trial.gone
    cut = trial.after.facts.compared if trial.after.facts is not None else None
    if fails_by_values and cut is not None and cut.part:  # the elements that are left are still wrong
        same = "a call with fewer elements returns the same values for them, including the wrong ones"
        return replace(trial, effect=Effect.SAME, reason=same)
    if fails_by_values and trial.intervention.leaves_out and not gone:
        other_sizes = "the expected outputs do not apply to a call of different sizes"
        return replace(trial, effect=Effect.NOT_APPLICABLE, reason=other_sizes)
    after, again = (seen.facts.compared if seen.facts else None for seen in (trial.after, trial.again))
    if trial.before.failure != "none" or trial.after.failure != "none" or after is None:
        return trial
    if after.equal or after.part is not None:
        same = "the same values" if after.equal else "the same values for fewer elements"
        return replace(trial, effect=Effect.SAME, reason=f"the call returns {same}")
    if again is None or not again.equal:
        return trial
    return replace(
        trial, effect=Effect.GONE, reason="the call returns different values", calls=2, failed=2, chance=0.0
    )


async def against_program(trial: Trial, case: DiagnosisState, context: Context) -> Trial:
    """Judge a call of another size, which has no expected outputs, by the exported program's outputs.

    Return the trial unchanged if the unchanged call also agrees with the program.
    """
    tried = trial.intervention
    if case.program_path is None or trial.before.failure not in ("none", "differs") or not tried.leaves_out:
        return trial
    facts, unchanged = trial.after.facts, trial.again.facts
    if trial.after.ended != "ok" or facts is None or unchanged is None:
        return trial
    if equal_to_program(case.interpreted or await interpret(case, context)) is not False:
        return trial
    agrees = equal_to_program(await interpret(case, context, changes=tried.changes))
    same = unchanged.compared is not None and unchanged.compared.equal
    if agrees is None or not same:
        return trial
    unlike = "other values than the exported program"
    before, again = (replace(seen, differs=unlike) for seen in (trial.before, trial.again))
    after = replace(trial.after, facts=replace(facts, expected=None), differs="" if agrees else unlike)
    effect = Effect.GONE if agrees else Effect.SAME
    return replace(trial, effect=effect, before=before, after=after, again=again, reason="")


def by_changed_input(intervention: Intervention, before: RunSeen, after: RunSeen, again: RunSeen) -> Trial:
    """The trial of aligning an input, from three runs. GONE if the call then changes the input."""
    trial = partial(Trial, intervention, before=seen_of(before), after=seen_of(after), again=seen_of(again))
    if after.failure not in ("none", "differs") or again.failure not in ("none", "differs"):
        return trial(effect=Effect.NOT_APPLICABLE, reason=f"then the call fails ({after.failure})")
    moved = next((change.input for change in intervention.changes if change.change == "align"), None)
    if moved is None:
        return trial(effect=Effect.NOT_APPLICABLE, reason="it aligns no input")
    cured = moved in before.left_alone and moved in after.changed and moved in again.left_alone
    return trial(effect=Effect.GONE, reason="the input is changed now") if cured else trial(Effect.SAME)


def seen_of(run: RunSeen) -> Seen:
    """A run of the call as a call of a trial."""
    if run.failure in ("none", "differs", "nonfinite"):
        return Seen("ok", CallFacts(run.label, "", "ok"))
    return Seen("raised", text=run.root.text if run.root else run.failure, family=run.family or "")


class WatchOperators(Observation, seconds=5, best=LOCATES):
    """Compare custom operators' results with their fake functions and earlier results; see what matters."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.call is None or "plain" not in case.runs:
            return 0.0
        if case.runs["plain"].failure == "timeout" and "trace_launches" not in case.done:
            return 0.0  # the repeated call would hang, and a trace shows where
        return self.best if own_operators(case) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        plain = case.runs["plain"]
        watch, repair = (_twice(case, how) for how in ("watch", "repair"))
        watched = await run_call(case, context, "operators", extra=watch, record=False)
        case.operators = watched.worker
        if watched.worker is None or not (told := watched.worker.all(events.Operator)):
            return
        # See if the failure disappears, or the values change, once the operators keep their promises.
        if plain.failure != "none":
            trial = await try_intervention(context, tried_call(case), REPAIRED)
        else:
            repaired = await run_call(case, context, "repaired", extra=repair, record=False)
            trial = effect_on_values(plain, watched, repaired)
            if not trial.proves and any(event.kept for event in told):
                again = await run_call(case, context, "again", extra=watch, record=False)
                trial = effect_on_repeats(len(_digests(plain)), watched, repaired, again) or trial
        if trial.effect in (Effect.SAME, Effect.NOT_APPLICABLE) and not case.equals_eager:
            kept = None
            if case.interpreted is not None:
                kept = await interpret(case, context, operators="repair")
            trial = in_eager(kept, trial)
        case.trials[REPAIRED.key] = trial


def _twice(case: DiagnosisState, operators: str) -> dict[str, object]:
    """The request for two calls in one process; the second may read memory that an operator kept."""
    assert case.call is not None
    steps = case.call.request.get("steps")
    again = {"steps": [*steps, steps[-1]]} if isinstance(steps, list) and steps else {"calls": 2}
    return {"operators": operators, **again}


def in_eager(kept: WorkerRun | None, trial: Trial) -> Trial:
    """Judge a trial: GONE if the exported program agrees with the package once operators do as declared.

    An operator may write memory without declaring it. The model then reads what was written. The package
    does not know of the write, and computes the value again or stores it elsewhere.
    """
    compared = kept.last(events.Compared) if kept is not None else None
    if compared is None or not compared.equal:
        return replace(trial, effect=Effect.NOT_APPLICABLE)
    what = "the exported program gives what the package gives once the operators keep their promises"
    return replace(trial, effect=Effect.GONE, reason=what)


def effect_on_values(plain: RunSeen, watched: RunSeen, repaired: RunSeen) -> Trial:
    """Judge whether a call that returns gives different values once operators keep their promises."""
    before, after, again = (seen_of(run) for run in (plain, repaired, watched))
    trial = partial(Trial, REPAIRED, before=before, after=after, again=again)
    if repaired.failure != "none":
        return trial(effect=Effect.NOT_APPLICABLE, reason=f"then the call fails ({repaired.failure})")
    calls = len(_digests(plain))
    digests = [_digests(run)[:calls] for run in (plain, watched, repaired)]
    if digests[0] != digests[1]:
        return trial(effect=Effect.NOT_APPLICABLE, reason="the outputs differ from run to run anyway")
    if digests[1] == digests[2]:
        return trial(effect=Effect.NOT_APPLICABLE, reason=SAME)
    return trial(effect=Effect.GONE, reason="the call returns different values")


UNLIKE = "other values the second time"


def effect_on_repeats(calls: int, watched: RunSeen, repaired: RunSeen, again: RunSeen) -> Trial | None:
    """The trial if repeated calls agree only with copies of the memory that operators keep."""
    made = [_digests(run)[calls - 1 :] for run in (watched, repaired, again)]
    differs = [len(each) > 1 and each[0] != each[1] for each in made]
    if differs != [True, False, True] or repaired.failure != "none":
        return None
    before, last = (replace(seen_of(run), differs=UNLIKE) for run in (watched, again))
    return Trial(KEPT, Effect.GONE, before, seen_of(repaired), last, SideEffects(known=False))


def _digests(run: RunSeen) -> list[list[str | None]]:
    """The checksums of the outputs of each call that returned."""
    calls = run.worker.all(events.Called) if run.worker is not None else ()
    return [[output.checksum for output in call.outputs] for call in calls]
