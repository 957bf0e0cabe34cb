"""Weighs suspects, and makes the verdict that users see.

A suspect may prove to be a cause, or a bystander. `proven` is earned in two ways only: the failure
disappeared with the cause and returned with it, or the system itself rejected and named the component
(`REFUSALS`). The number of views that show a suspect proves nothing. The failure is never evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from mcp_server.diagnosis import words
from mcp_server.diagnosis.causes.compiler import as_rounding, compiler_suspect, is_rounding, may_be_decided
from mcp_server.diagnosis.components import operators_from, seen
from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Seen,
    Trial,
    change_in_words,
    fix_in_words,
    trial_in_words,
    unchanged_in_words,
)
from mcp_server.diagnosis.next_steps import (
    command_for,
    cut_off,
    next_steps,
    no_torch,
    not_called,
    open_question,
    reduction,
    settling,
    unseen_symptom,
)
from mcp_server.diagnosis.program_seen import OWN_RUNS
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import REFUSALS, CausalLevel, Suspect
from mcp_server.errors import argument
from mcp_server.model import (
    CHECK,
    Cause,
    Component,
    Confidence,
    Confirmed,
    Evidence,
    Fix,
    FixRun,
    InterventionRun,
    Outcome,
    PackageWorkload,
    RuledOut,
    ScriptWorkload,
    Verdict,
)
from mcp_server.plurals import counted, was
from mcp_server.runtime.context import Context

ORDER: tuple[Confidence, ...] = ("possible", "likely", "proven")


# Fields that are taken from the first view that has a value.
OF_ANY_VIEW = ("crashing", "fix", "intervention", "refusal", "observed", "harmful")


def merged(suspects: Iterable[Suspect]) -> list[Suspect]:
    """Merge the suspects of each cause into the most specific one, with the evidence of all."""
    views: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        views.setdefault(suspect.key, []).append(suspect)
    found = []
    for of_one_cause in views.values():
        # If views were merged in pairs, the result would depend on the order of the detectors.
        joined, *others = sorted(of_one_cause, key=_detail, reverse=True)
        for other in others:
            joined = replace(
                joined,
                evidence=tuple({e.fact: e for e in (*joined.evidence, *other.evidence)}.values()),
                only_in_program=joined.only_in_program and other.only_in_program,
                **{name: getattr(joined, name) or getattr(other, name) for name in OF_ANY_VIEW},
            )
        found.append(joined)
    return found


def _detail(suspect: Suspect) -> tuple[bool, bool, int, bool]:
    """A key that is larger for a more specific view. Weak views and views from a log are smallest."""
    from_log_alone = bool(suspect.evidence) and not suspect.steps
    return not suspect.weak, not from_log_alone, suspect.level, suspect.guilty.launch_index is not None


_FAILS_STILL = (Effect.SAME, Effect.CHANGED)


def trials_of(suspect: Suspect, case: DiagnosisState) -> list[Trial]:
    """The trials of the interventions that would remove the suspect, if they were made.

    If a change alone leaves a failure, but together with others leaves none, the trial of all counts.
    """
    found = [case.trials[each.key] for each in suspect.interventions if each.key in case.trials]
    joint = _joint(case) if any(trial.effect in _FAILS_STILL for trial in found) else None
    if joint is None:
        return found
    hidden = (t.effect in _FAILS_STILL and t.intervention.key in joint.intervention.parts for t in found)
    return [joint if is_hidden else trial for trial, is_hidden in zip(found, hidden, strict=True)]


def _joint(case: DiagnosisState) -> Trial | None:
    """The trial of the fewest changes that together remove the failure, if all are needed."""
    tried = {frozenset(key.parts or (key.key,)) for key in (t.intervention for t in case.trials.values())}
    together = (t for t in case.trials.values() if t.gone and t.proves and t.intervention.parts)
    for trial in sorted(together, key=lambda trial: len(trial.intervention.parts)):
        parts = frozenset(trial.intervention.parts)
        if len(parts) > 1 and all(parts - {part} in tried for part in parts):
            return trial
    return None


def untried(suspect: Suspect, case: DiagnosisState) -> list[Intervention]:
    return [each for each in suspect.interventions if each.key not in case.trials]


def is_bystander(suspect: Suspect, case: DiagnosisState) -> bool:
    """Whether the call fails in the same way without the suspect."""
    alike = [trial.effect is Effect.SAME for trial in trials_of(suspect, case)]
    # If the fault is that a part has no effect, omitting the part changes nothing.
    by_part = suspect.leaves_out and case.failure_of("plain") == "differs"
    if any(alike) and not (by_part and (untried(suspect, case) or not all(alike))):
        return True
    script, plain = case.script_run, case.plain_run
    if not suspect.only_in_program or script is None or plain is None or script.failure != plain.failure:
        return False
    # The repeated call fails as the program did, so nothing else in the program is the cause.
    same = script.family is None or plain.family is None or script.family == plain.family
    return same and plain.failure not in ("none", "differs", "timeout")


def is_cause(suspect: Suspect, case: DiagnosisState) -> bool:
    """Whether the failure disappeared and returned with the suspect, or the system named the suspect."""
    trials = trials_of(suspect, case)
    decided = trials and not untried(suspect, case) and all(_decides(trial) for trial in trials)
    # A smaller call may have succeeded only because it needs less memory.
    memory = suspect.leaves_out and suspect.category != "out_of_memory" and case.ran_out_of_memory
    # A rejection that is only in a log was not seen here.
    reproduced = case.log is None or bool(case.runs) or case.package_error is not None
    return (bool(decided) and not memory) or (suspect.refusal in REFUSALS and reproduced)


def _decides(trial: Trial) -> bool:
    """Whether a trial proves a cause. If the process only died in another way, that may be chance."""
    by_values = trial.after.failure in ("differs", "nonfinite") and trial.before.failure != "signal"
    definite = trial.gone or trial.before.ended == "raised" or by_values
    return trial.proves and definite and not trial.intervention.hides


def confidence(suspect: Suspect, case: DiagnosisState) -> Confidence:
    """`proven` for a cause, `likely` if a step saw the mechanism, otherwise `possible`."""
    if suspect.weak:
        return "possible"
    if is_cause(suspect, case):
        return "proven"
    return "likely" if suspect.observed else "possible"


def ranked(suspects: Iterable[Suspect], case: DiagnosisState) -> list[Suspect]:
    """Sort the suspects, without bystanders. The verdict names the first.

    They are sorted by these questions, in this order: does it do harm, is it more than a hint, is it proven,
    is it proven on the whole call and not on a part of it, and how close is it to the root cause.
    """

    def rank(suspect: Suspect) -> tuple[bool, bool, bool, bool, int, int, int]:
        sure = confidence(suspect, case)
        return (
            suspect.harmful,
            not suspect.weak,
            sure == "proven",
            sure == "proven" and not suspect.leaves_out,
            suspect.level,
            ORDER.index(sure),
            len(suspect.steps),
        )

    alive = [s for s in merged(suspects) if not is_bystander(s, case) and (s.harmful or not s.weak)]
    return sorted(alive, key=rank, reverse=True)


def bystanders(suspects: Iterable[Suspect], case: DiagnosisState) -> list[RuledOut]:
    """Defects that are harmless here, each with the run that cleared it."""
    found = []
    for suspect in (each for each in merged(suspects) if is_bystander(each, case)):
        same = (trial for trial in trials_of(suspect, case) if trial.effect is Effect.SAME)
        by = next((unchanged_in_words(trial) for trial in same), FAILS_ALONE)
        if suspect.category == "input_mismatch":
            by += ", so this is not why; but the input does not fit the package"
        found.append(RuledOut(hypothesis=suspect.summary, by=by))
    return found


FAILS_ALONE = (
    "the call fails in the same way when it is repeated alone, in one thread, on its own copy of the inputs"
)


MAX_EVIDENCE = 10
MAX_RULED_OUT = 6


def conclude(suspects: Sequence[Suspect], case: DiagnosisState, context: Context) -> Verdict:
    """The verdict on what is known now: a fault, no fault, or inconclusive."""
    order = ranked(suspects, case)
    best = order[0] if order else None
    outcome = _outcome(best, case)
    if best is None or outcome == "no_fault":
        found = _without_fault(outcome, suspects, case, context)
        return as_rounding(found, case) if outcome == "no_fault" and is_rounding(case) else found
    guilty = placed(best.guilty, case)
    rank = f"Rank {case.failed_rank.rank}: " if case.failed_rank else ""
    causes = _causes(order, case) if outcome == "fault" else []
    # A proven cause needs no further search, except for the compiler pass behind a wrong launch.
    decided = reduction(best, case) if causes and may_be_decided(best) else []
    steps = decided if causes else next_steps(best, case) or settling(outcome, case)
    # A suspect of this level only restates the failure.
    others = (s for s in order[1:] if not s.weak and s.level is not CausalLevel.SYMPTOM)
    explained = [s for s in others if s.level < best.level]
    found = Verdict(
        outcome=outcome,
        category=best.category,
        confidence=confidence(best, case) if outcome == "fault" else "possible",
        headline=words.headline_of(best.category, best.guilty, case, known=outcome == "fault"),
        summary=f"{rank}{best.summary}" if outcome == "fault" else _open_summary(order, case),
        call=words.call_of(case),
        eager=words.eager_of(best.category, case),
        guilty=guilty if best.guilty.name else None,
        crashing=best.crashing,
        causes=causes,
        intervention=_deciding(best, case),
        evidence=_evidence(best, case)[:MAX_EVIDENCE],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        ruled_out=[
            RuledOut(hypothesis=s.summary, by=f"explained by {best.category} of {best.guilty.name}")
            for s in explained[:MAX_RULED_OUT]
        ],
        remarks=list(_remarks(order, outcome, case)),
        fix=_at_call_site(fix_of(best, case), case),
        confirmed=confirmed_by(best, case) if outcome == "fault" else None,
        next_steps=steps,
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )
    return words.in_callers_words(found, words.callers_names(*_calling_line(case)))


def _remarks(order: Sequence[Suspect], outcome: Outcome, case: DiagnosisState) -> Iterator[str]:
    """Yield what a reader may miss: why nothing is proven, what remains to do, and model lines."""
    best, others = order[0], order[1:]
    if outcome == "fault" and case.workload is not None and confidence(best, case) != "proven":
        yield f"Not proven: {_why_not_proven(best, case)}."
    left, later = another_failure(best, case), case.following
    told = any(is_cause(each, case) for each in others) or (later is not None and bool(later.causes))
    if outcome == "fault" and left is not None and not told:
        failure = left.reason or left.after.describe()
        yield f"Another failure remains after this change: {failure}. Make it, then diagnose again."
    yield from _beside_the_call(best, case)
    launched = any(party and party.launch_index is not None for party in (best.guilty, best.crashing))
    package = case.package
    if launched and package is not None and not package.kernel_information and case.program_path is None:
        yield (
            "The package does not record the lines of the model. To see them, compile it with "
            f"INDUCTOR_PROVENANCE=1, or diagnose the package with its program ({argument('exported')})."
        )


def _beside_the_call(best: Suspect, case: DiagnosisState) -> Iterator[str]:
    """Yield other trouble in the program: a wait for the failed call, and NaN in another call."""
    call, script = case.suspect_call, case.script_run
    if call is None:
        return
    if script is not None and script.failure == "timeout" and call.outcome == "failed":
        of = f" of thread {call.thread_name}" if call.thread_name not in ("", "MainThread") else ""
        yield f"The program did not end. It may wait for what this call{of} should have returned."
    elif script is not None and script.failure == "timeout" and best.category == "nan_or_inf":
        yield "The program did not end. A loop does not end if it waits for a comparison with NaN to hold."
    calls = [each for each in case.calls if each.pid == call.pid]
    bad = [n for n, each in enumerate(calls, 1) if each is not call and any(o.nan for o in each.outputs)]
    if bad and best.category != "nan_or_inf" and not case.nan_accepted:
        yield f"Call {bad[0]} of {len(calls)} returned NaN. If it is not meant, diagnose again after the fix."


def _why_not_proven(suspect: Suspect, case: DiagnosisState) -> str:
    left = untried(suspect, case)
    if left:
        what = left[0].what
        return (
            f"{what} was not made"
            if what.startswith("the call")
            else f"the call was not repeated with {what}"
        )
    trials = trials_of(suspect, case)
    if trials:
        last = trials[-1]
        if last.intervention.hides and last.gone:
            where = "returns, which shows where it fails, but not which value is wrong"
            return f"{last.intervention.what} {where}: change only that value with try_fix"
        return f"{last.intervention.what}: {last.reason or last.after.describe()}"
    if case.only_loaded and case.taken is not None:
        return "the process is gone, and no call of it can be repeated"
    if case.only_loaded:
        return f"no inputs of the failing call were given ({argument('inputs')})"
    if suspect.guilty.kind == "script" and isinstance(case.workload, ScriptWorkload):
        return "only an edit of your script could test this"
    if case.plain_run is not None and not case.call_fails:
        return "the call does not fail when it is repeated alone, so there is no failure to remove"
    if suspect.fix is None and suspect.category == "hang":
        return (
            "it is not known where the call waits. It may only be slow: see whether it returns with more "
            "time (--timeout-s)"
        )
    if suspect.fix is None:
        return "no change was tested that removes the failure"
    if compiler_suspect([suspect], case) is not None:
        return "no compile without the faulty step was tested"
    return "the fix was not tested"


def _deciding(suspect: Suspect, case: DiagnosisState) -> InterventionRun | None:
    """The most informative trial of a suspect: one that removed the failure, or the last one made."""
    last = next(iter(sorted(trials_of(suspect, case), key=lambda trial: trial.proves)[-1:]), None)
    return last.record() if last is not None else None


def _causes(order: Sequence[Suspect], case: DiagnosisState) -> list[Cause]:
    """All proven causes, starting with those that must be fixed first.

    The first cause has no lines, summary or trial, because the verdict has them.
    """
    causes = [
        Cause(
            **placed(suspect.guilty, case).model_dump(),
            category=suspect.category,
            confidence="proven",
            summary=suspect.summary,
            intervention=_deciding(suspect, case),
        )
        for suspect in order
        if suspect.harmful and confidence(suspect, case) == "proven"
        # A bad constant, and where its value shows, are one cause.
        if suspect is order[0]
        or (suspect.guilty.kind, suspect.guilty.name) != ("constant", order[0].guilty.name)
    ]
    first: dict[str, object] = {"model_locations": [], "summary": "", "intervention": None}
    later, found = case.following, []
    if later is not None and later.causes and later.guilty is not None:
        told: dict[str, object] = {"summary": later.summary, "intervention": later.intervention}
        told["model_locations"] = later.guilty.model_locations
        found = [later.causes[0].model_copy(update=told), *later.causes[1:]]
    return [cause.model_copy(update=first) for cause in causes[:1]] + causes[1:] + found


def another_failure(suspect: Suspect, case: DiagnosisState) -> Trial | None:
    """The trial that removed this cause and left another failure, or None."""
    return next((t for t in trials_of(suspect, case) if t.proves and t.effect is Effect.CHANGED), None)


def fix_of(suspect: Suspect, case: DiagnosisState) -> Fix | None:
    """What to ship: the change that ran if it can be shipped, otherwise the suspect's advice."""
    trial, advice = removing(suspect, case), suspect.fix
    if trial is None or trial.intervention.hides:
        return advice
    tried = _worded(trial, suspect)
    if tried.is_experiment or (trial.side_effects and not _misread(trial, suspect)):
        return advice
    return Fix(
        text=tried.action or (advice.text if advice else f"make the call {change_in_words(tried.what)}"),
        before=tried.before_code or (advice.before if advice else None),
        after=tried.after_code or (advice.after if advice else None),
        ran=FixRun(result=fix_in_words(trial), command=trial.command),
    )


def _calling_line(case: DiagnosisState) -> tuple[str, int]:
    """The program line that makes the call, and the number of inputs. Empty if not all are positional."""
    lines, places = case.call_locations, [each.path or "" for each in case.compiled_inputs]
    plain = lines and all(path == f"args[{n}]" for n, path in enumerate(places))
    return (lines[0].code, len(places)) if plain else ("", 0)


def _at_call_site(fix: Fix | None, case: DiagnosisState) -> Fix | None:
    """Write the fix in the calling line if it changes an argument; say where to put a check."""
    if fix is None:
        return None
    if (fix.after or "").startswith(CHECK):
        at = next((f", {PurePath(line.file).name}:{line.line}" for line in case.call_locations), "")
        code, mark = (words.in_cpp(fix.after), "//") if case.of_cpp_host else (fix.after, "#")
        return fix.model_copy(update={"after": code and f"{code}  {mark} before the call{at}"})
    if "args[" in (fix.after or "") and case.of_cpp_host:
        return fix.model_copy(update={"before": None, "after": words.in_cpp(fix.after)})
    fix = words.at_call_site(fix, *_calling_line(case))
    again = fix.before is not None and (fix.after or "").startswith(f"{fix.before} = ")
    return fix.model_copy(update={"before": None}) if again else fix


_WHAT_RAN = re.compile("the (?P<subject>call|export|compile|program) ")


def confirmed_by(suspect: Suspect, case: DiagnosisState) -> Confirmed | None:
    """The change that removed the failure, and the result. None if no change did."""
    trial = removing(suspect, case)
    if trial is None or trial.intervention.hides:
        return None
    tried = _worded(trial, suspect)
    ran = _WHAT_RAN.match(trial.reason)
    return Confirmed(
        subject=ran["subject"] if ran is not None else "call",
        what=change_in_words(tried.what).removeprefix("with "),
        before=_as_it_is(trial, trial.before),
        after=_came_back(trial),
        again=_as_it_is(trial, trial.again),
        command=trial.command,
        side_effects=_side_effects(trial, suspect),
        not_for_shipping=words.not_for_shipping(tried),
    )


TWICE = 2  # unchanged calls of a trial, if both failed


def _as_it_is(trial: Trial, call: Seen) -> str:
    """Say how an unchanged call ended or, if there were several calls, how many failed."""
    if trial.calls > TWICE:
        return f"failed {trial.failed} of {trial.calls} times ({call.describe()})"
    return "returned the original values" if call.failure == "none" else call.describe()


def _came_back(trial: Trial) -> str:
    """Say how the call with the change ended, and describe its outputs."""
    described = trial.after.describe()
    if trial.calls > TWICE:
        return f"never failed in that way; the probability that this is chance is {trial.chance:.2%}"
    ran = _WHAT_RAN.match(trial.reason)
    if ran is not None:
        return trial.reason[ran.end() :]
    finite = trial.before.failure == "nonfinite" and not trial.after.non_finite
    expected = trial.before.failure == "differs" and trial.after.failure == "none"
    return (
        f"{described} {'finite' if finite else 'the expected'} outputs" if finite or expected else described
    )


def removing(suspect: Suspect, case: DiagnosisState) -> Trial | None:
    """The trial that proves the cause: the failure disappeared with the change, and returned without it."""
    return next((t for t in trials_of(suspect, case) if t.proves and t.gone), None)


def _worded(trial: Trial, suspect: Suspect) -> Intervention:
    """The trial's intervention as the suspect words it."""
    same = (each for each in suspect.interventions if each.key == trial.intervention.key)
    return next(same, trial.intervention)


def _misread(trial: Trial, suspect: Suspect) -> bool:
    """Whether the failing call misread the bytes of a whole input, so that all its outputs were wrong."""
    return suspect.category == "input_mismatch" and trial.intervention.keeps_values


def _side_effects(trial: Trial, suspect: Suspect) -> str:
    """Say what the change did to output elements that were not at fault. Empty if unknown."""
    effects = trial.side_effects
    if trial.before.failure == "none":  # the different values are intended
        return ""
    if effects.layout:
        return f"the layout of an output changed ({effects.layout})"
    if effects.elements and _misread(trial, suspect):
        count = counted(effects.elements, "other output element")
        return f"{count} changed as well, which had been computed from the misread input"
    if effects.elements:
        count = counted(effects.elements, "output element")
        return f"{count} changed that {was(effects.elements)} not at fault"
    if not effects.known or effects.unseen or trial.before.ended != "ok":
        return ""  # without outputs, nothing else can have changed
    differs = trial.before.failure == "differs"
    return "no element that was right changed" if differs else "no output element that was finite changed"


def placed(party: Component, case: DiagnosisState) -> Component:
    """Return the component at fault. If it has no lines of its own, add the user's line that failed.

    Each line appears once, since a comprehension has two frames in one line.
    """
    lines = party.model_locations or case.failing_locations or case.call_locations
    return party.model_copy(update={"model_locations": list(dict.fromkeys(lines))})


def _outcome(best: Suspect | None, case: DiagnosisState) -> Outcome:
    healthy: Outcome = "inconclusive" if unseen_symptom(case) else "no_fault"
    well = case.healthy or is_rounding(case)
    if best is None:
        return healthy if well else "inconclusive"
    if not best.harmful and well:
        return healthy
    return "inconclusive" if best.weak else "fault"


def _without_fault(
    outcome: Outcome, suspects: Sequence[Suspect], case: DiagnosisState, context: Context
) -> Verdict:
    healthy = outcome == "no_fault"
    # A program that succeeded accepted its numbers. If only a package was called, nothing judged its numbers.
    judged = words.compared(case) or not isinstance(case.workload, PackageWorkload)
    unknown = ""
    if case.workload is None and case.log is not None and case.log.root is None:
        # The program may have succeeded, or logged its error elsewhere.
        unknown = f"No known error in the {counted(case.log.lines, 'line')} of the log. "
    # If nothing ran, the summary already says what is missing.
    told = case.only_loaded or (case.refused and not case.runs)
    evidence = [
        *(_bad_ends(case) if not healthy else ()),
        *words.health_evidence(case),
        *_around(case),
        *(Evidence(step="note", fact=note) for note in case.notes if not told),
    ]
    missing = f"{unknown}{unseen_symptom(case) or open_question(case)}"
    return Verdict(
        outcome=outcome,
        confidence="likely" if healthy and judged else "possible",
        headline="no fault found" if healthy else _unknown_cause(case),
        summary=words.health_summary(case) if healthy else missing,
        call=words.call_of(case),
        evidence=[_with_command(each, case) for each in evidence[:MAX_EVIDENCE]],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        next_steps=next_steps(None, case) or settling(outcome, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _unknown_cause(case: DiagnosisState) -> str:
    """The headline of an inconclusive verdict without a suspect."""
    if unseen_symptom(case):
        return "symptom not seen"
    if case.never_reached and case.ended_well:
        return "no package was called"
    if not_called(case):
        return "no inputs given"
    if case.stopped:
        return "stopped"
    if no_torch(case):
        return words.HEADLINES["environment"][0]
    if cut_off(case):
        return "too little time"
    if case.refused and not case.runs:
        return "nothing could be run"
    ended = case.own_run.finished if case.own_run is not None else None
    killed = ended is not None and ended.signal == "SIGKILL" and ended.ending != "timeout"
    return "killed by SIGKILL" if killed else "cause not known"


def _bad_ends(case: DiagnosisState) -> Iterator[Evidence]:
    """How the user's own runs ended, if they ended badly."""
    ends = [(label, case.runs[label].finished) for label in OWN_RUNS if label in case.runs]
    for label, ended in ends:
        how = f"died with {ended.signal}" if ended.signal else f"ended with exit code {ended.returncode}"
        how = "did not end" if ended.ending == "timeout" else how
        if not ended.ok:
            yield Evidence(step=label, fact=f"{how} after {ended.wall_s:.1f} s")


def _open_summary(order: Sequence[Suspect], case: DiagnosisState) -> str:
    """The leading suspect, what would settle it, and which other categories are possible."""
    unseen = unseen_symptom(case)
    if unseen:
        return f"{unseen} What stands out: {order[0].summary}"
    best = order[0]
    names = [words.HEADLINES[category][-1] for category in dict.fromkeys(each.category for each in order)][:4]
    also = f"Possible causes: {', '.join(names)}." if len(names) > 1 else ""
    settle = best.settle if not best.settle or best.settle.endswith(".") else f"To settle it: {best.settle}."
    question = "" if settle or best.category == "hang" else open_question(case)  # a hang says how it ended
    return " ".join(filter(None, (best.summary, also, settle, question)))


def _evidence(best: Suspect, case: DiagnosisState) -> list[Evidence]:
    """List the evidence for the verdict, the examined call and rank, and the trials, each once."""
    found = list({e.fact: e for e in (*best.evidence, *_around(case))}.values())
    for trial in trials_of(best, case):
        found.append(Evidence(step="intervention", fact=trial_in_words(trial), command=trial.command))
    if best.refusal and is_cause(best, case):
        found.append(Evidence(step="run", fact=best.refusal))
    return [_with_command(evidence, case) for evidence in found[:MAX_EVIDENCE]]


def _around(case: DiagnosisState) -> Iterator[Evidence]:
    """Yield which call was examined, where its operators were registered, and which rank failed."""
    yield from checked_call(case)
    yield from operators_from(case)
    if case.failed_rank:
        fact = f"rank {case.failed_rank.rank} failed: {case.failed_rank.how}"
        yield Evidence(step="capture", fact=fact, source="launcher")


def checked_call(case: DiagnosisState) -> list[Evidence]:
    """Evidence of which call was examined, if a check rejected the output of one of several calls."""
    call = case.captured.refused
    calls = [each for each in case.calls if call is not None and each.pid == call.pid]
    if call is None or call is not case.suspect_call or len(calls) == 1:
        return []
    place = f"call {calls.index(call) + 1} of {len(calls)}"
    return [seen("capture", f"the check that failed used the output of {place}, so that call was examined")]


def _with_command(evidence: Evidence, case: DiagnosisState) -> Evidence:
    if evidence.command:
        return evidence
    return evidence.model_copy(update={"command": command_for(evidence.step, case)})
