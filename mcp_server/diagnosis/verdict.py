"""Turns the ranked state into the verdict that users see."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.components import operators_from
from mcp_server.diagnosis.interventions.base import Effect, Trial
from mcp_server.diagnosis.interventions.words import change_in_words, fix_in_words, trial_in_words
from mcp_server.diagnosis.next_steps import command_for, next_steps, unseen_symptom
from mcp_server.diagnosis.ranking import (
    bystanders,
    confidence,
    health_confidence,
    health_evidence,
    health_summary,
    is_cause,
    ranked,
    trials_of,
)
from mcp_server.diagnosis.state import OWN_RUNS, DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.value_sources import deepened
from mcp_server.model import (
    Cause,
    Component,
    Confidence,
    Evidence,
    Fix,
    FixRun,
    InterventionRun,
    Outcome,
    RuledOut,
    Verdict,
)
from mcp_server.plurals import counted, listed, was
from mcp_server.tools.context import Context


def checked_call(case: DiagnosisState) -> list[Evidence]:
    """The number of the call among those of its process, where the check told it and it is the suspect."""
    seen = case.capture
    call = seen.refused if seen is not None else None
    if seen is None or call is None or call is not seen.suspect:
        return []
    calls = [each for each in seen.calls if each.pid == call.pid]
    place = calls.index(call) + 1
    if len(calls) == 1:
        return []
    fact = f"the check that failed looked at what call {place} of {len(calls)} gave: that call was examined"
    return [Evidence(step="capture", fact=fact)]


MAX_EVIDENCE = 10
MAX_RULED_OUT = 6


def conclude(suspects: Sequence[Suspect], case: DiagnosisState, context: Context) -> Verdict:
    """The verdict for what is known now; `inconclusive` when no suspect stands alone."""
    order = ranked(suspects, case)
    best = order[0] if order else None
    outcome = _outcome(best, case)
    if best is None or outcome == "no_fault":
        return _without_fault(outcome, suspects, case, context)
    guilty, inferred = deepened(placed(best.guilty, case), best.category, case)
    causes = _causes(order, case) if outcome == "fault" else []
    return Verdict(
        outcome=outcome,
        category=best.category,
        confidence=_stated(outcome, best, case),
        summary=_of_rank(best.summary, case) if outcome == "fault" else _open_summary(order, case),
        guilty=guilty if best.guilty.name else None,
        crashing=best.crashing,
        causes=causes,
        intervention=_deciding(best, case),
        evidence=[*_evidence(best, case), *inferred][:MAX_EVIDENCE],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        ruled_out=_ruled_out(best, order),
        fix=fix_of(best, case),
        next_steps=[] if causes and outcome == "fault" else next_steps(best, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _deciding(suspect: Suspect, case: DiagnosisState) -> InterventionRun | None:
    """The trial that says most of a suspect: one that removed the failure, else the last one made."""
    trials = sorted(trials_of(suspect, case), key=lambda trial: trial.proves)
    return as_run(trials[-1]) if trials else None


def as_run(trial: Trial) -> InterventionRun:
    """A trial as users see it."""
    what = trial.reason or trial.after.describe()
    return InterventionRun(
        what=trial.intervention.what,
        before=trial.before.describe(),
        after=what,
        result=trial.effect.value,
    )


def _causes(order: Sequence[Suspect], case: DiagnosisState) -> list[Cause]:
    """All that are proven, those first that have to be fixed first.

    Lines, summary and trial of the first are those of the verdict: an agent pays for every word.
    """
    found = [suspect for suspect in order if suspect.harmful and is_cause(suspect, case)]
    causes = [
        Cause(
            **placed(suspect.guilty, case).model_dump(),
            category=suspect.category,
            confidence="proven",
            summary=suspect.summary,
            intervention=_deciding(suspect, case),
        )
        for suspect in found
    ]
    first: dict[str, object] = {"model_locations": [], "summary": "", "intervention": None}
    return [cause.model_copy(update=first) if place == 0 else cause for place, cause in enumerate(causes)]


def fix_of(suspect: Suspect, case: DiagnosisState) -> Fix | None:
    """The fix of a suspect: the change that ran, where one removed the failure and harmed nothing else."""
    trial = next((t for t in trials_of(suspect, case) if t.proves and t.effect is Effect.GONE), None)
    if trial is None:
        return suspect.fix
    if trial.intervention.hides and not trial.side_effects.known:
        return suspect.fix
    if trial.side_effects:
        return _harmful_change(suspect, trial)
    advice = (
        suspect.fix.action
        if suspect.fix is not None
        else f"make the call {change_in_words(trial.intervention.what)}"
    )
    return Fix(
        action=advice,
        before=trial.intervention.before_code or (suspect.fix.before if suspect.fix else None),
        after=trial.intervention.after_code or (suspect.fix.after if suspect.fix else None),
        ran=FixRun(result=fix_in_words(trial), command=trial.command),
        side_effects=_side_effects(trial),
    )


def _harmful_change(suspect: Suspect, trial: Trial) -> Fix | None:
    """Advice without the change that ran: it changed what was not at fault, and is no fix."""
    if suspect.fix is None:
        return None
    return Fix(
        action=suspect.fix.action,
        side_effects=f"not offered as a fix: {fix_in_words(trial)}, but this also {_side_effects(trial)}",
    )


def _side_effects(trial: Trial) -> str:
    """What the change did to outputs that were not at fault."""
    seen = trial.side_effects
    if seen.layout:
        return f"changes the layout of an output ({seen.layout})"
    if seen.elements:
        return f"changes {counted(seen.elements, 'output element')} that {was(seen.elements)} not at fault"
    return "none; every output element that was not at fault is unchanged" if seen.known else ""


def placed(party: Component, case: DiagnosisState) -> Component:
    """The guilty party with the user's line that failed, where no line is known that tells more.

    Each line once: a comprehension has two frames at one.
    """
    lines = party.model_locations or case.failing_locations or case.call_locations
    return party.model_copy(update={"model_locations": list(dict.fromkeys(lines))})


def _outcome(best: Suspect | None, case: DiagnosisState) -> Outcome:
    if best is None:
        return "no_fault" if case.healthy and not unseen_symptom(case) else "inconclusive"
    if not best.harmful and case.healthy:
        return "inconclusive" if unseen_symptom(case) else "no_fault"
    if best.weak:
        return "inconclusive"
    return "fault"


def _stated(outcome: Outcome, best: Suspect, case: DiagnosisState) -> Confidence:
    return confidence(best, case) if outcome == "fault" else "possible"


def _without_fault(
    outcome: Outcome, suspects: Sequence[Suspect], case: DiagnosisState, context: Context
) -> Verdict:
    notes = [
        *checked_call(case),
        *operators_from(case),
        *_rank(case),
        *(Evidence(step="note", fact=note) for note in case.notes[:MAX_EVIDENCE]),
    ]
    return Verdict(
        outcome=outcome,
        confidence=health_confidence(case) if outcome == "no_fault" else "possible",
        summary=health_summary(case)
        if outcome == "no_fault"
        else f"{_unknown_log(case)}{unseen_symptom(case) or case.open_question}",
        evidence=[
            _with_command(e, case) for e in (*_bad_ends(outcome, case), *health_evidence(case), *notes)
        ][:MAX_EVIDENCE],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        next_steps=next_steps(None, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _bad_ends(outcome: Outcome, case: DiagnosisState) -> list[Evidence]:
    """How the user's own runs ended, where that was badly and nothing explains it."""
    ends = [(label, case.runs[label]) for label in OWN_RUNS if label in case.runs]
    failed = [(label, run) for label, run in ends if not run.finished.ok and outcome == "inconclusive"]
    return [
        Evidence(step=label, fact=f"{_how(run)} after {run.finished.wall_s:.1f} s") for label, run in failed
    ]


def _how(run: RunSeen) -> str:
    ended = run.finished
    if ended.ending == "timeout":
        return "did not end"
    return f"died with {ended.signal}" if ended.signal else f"ended with exit code {ended.returncode}"


def _unknown_log(case: DiagnosisState) -> str:
    """That a log alone holds no error text: the program may have ended well, or said it elsewhere."""
    if case.workload is not None or case.log is None or case.log.root is not None:
        return ""
    return f"No known error in the {counted(case.log.lines, 'line')} of the log. "


def _open_summary(order: Sequence[Suspect], case: DiagnosisState) -> str:
    """What is suspected and what would settle it, where that is known; else the categories that are open."""
    if unseen_symptom(case):
        return f"{unseen_symptom(case)} What stands out: {order[0].summary}"
    if order[0].settle:
        return f"Inconclusive: {order[0].summary} {order[0].settle}"
    categories = list(dict.fromkeys(h.category for h in order))[:4]
    return f"Inconclusive: the evidence fits {listed(categories, 'or')}. {case.open_question}"


def _evidence(best: Suspect, case: DiagnosisState) -> list[Evidence]:
    """What supports the verdict, then which rank it was, then the trial, each once."""
    seen = (*best.evidence, *checked_call(case), *operators_from(case), *_rank(case))
    found = list({e.fact: e for e in seen}.values())
    for trial in trials_of(best, case):
        found.append(Evidence(step="intervention", fact=trial_in_words(trial), command=trial.command))
    if best.refusal and is_cause(best, case):
        found.append(Evidence(step="run", fact=best.refusal))
    return [_with_command(evidence, case) for evidence in found[:MAX_EVIDENCE]]


def _of_rank(summary: str, case: DiagnosisState) -> str:
    end = case.capture.rank if case.capture is not None else None
    return f"Rank {end.rank}: {summary}" if end else summary


def _rank(case: DiagnosisState) -> list[Evidence]:
    """Which of the processes of a launcher failed."""
    end = case.capture.rank if case.capture is not None else None
    return (
        [Evidence(step="capture", fact=f"rank {end.rank} failed: {end.how}", source="launcher")]
        if end
        else []
    )


def _with_command(evidence: Evidence, case: DiagnosisState) -> Evidence:
    if evidence.command:
        return evidence
    return evidence.model_copy(update={"command": command_for(evidence.step, case)})


def _ruled_out(best: Suspect, order: Sequence[Suspect]) -> list[RuledOut]:
    """Suspects that the verdict explains."""
    explained = [
        RuledOut(hypothesis=s.summary, by=f"explained by {best.category} of {best.guilty.name}")
        for s in order[1:]
        if not s.weak and s.level < best.level
    ]
    return explained[:MAX_RULED_OUT]
