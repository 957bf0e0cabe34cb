"""Turns the ranked state into the verdict that users see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcp_server.diagnosis.components import operators_from
from mcp_server.diagnosis.interventions.base import (
    UNSEEN,
    Effect,
    change_in_words,
    fix_in_words,
    trial_in_words,
)
from mcp_server.diagnosis.next_steps import command_for, next_steps, open_question, unseen_symptom
from mcp_server.diagnosis.ranking import (
    bystanders,
    compared,
    confidence,
    health_evidence,
    health_summary,
    is_cause,
    ranked,
    trials_of,
)
from mcp_server.diagnosis.state import OWN_RUNS, DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import deepened
from mcp_server.model import (
    Cause,
    Component,
    Evidence,
    Fix,
    FixRun,
    InterventionRun,
    Outcome,
    PackageWorkload,
    RuledOut,
    Verdict,
)
from mcp_server.plurals import counted, listed, was
from mcp_server.tools.context import Context

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
    rank = f"Rank {case.failed_rank.rank}: " if case.failed_rank else ""
    causes = _causes(order, case) if outcome == "fault" else []
    # A symptom is the failure itself, in other words.
    others = (s for s in order[1:] if not s.weak and s.level is not CausalLevel.SYMPTOM)
    explained = [s for s in others if s.level < best.level]
    return Verdict(
        outcome=outcome,
        category=best.category,
        confidence=confidence(best, case) if outcome == "fault" else "possible",
        summary=f"{rank}{best.summary}" if outcome == "fault" else _open_summary(order, case),
        guilty=guilty if best.guilty.name else None,
        crashing=best.crashing,
        causes=causes,
        intervention=_deciding(best, case),
        evidence=[*_evidence(best, case), *inferred][:MAX_EVIDENCE],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        ruled_out=[
            RuledOut(hypothesis=s.summary, by=f"explained by {best.category} of {best.guilty.name}")
            for s in explained[:MAX_RULED_OUT]
        ],
        fix=fix_of(best, case),
        next_steps=[] if causes else next_steps(best, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _deciding(suspect: Suspect, case: DiagnosisState) -> InterventionRun | None:
    """The trial that says most of a suspect: one that removed the failure, else the last one made."""
    last = next(iter(sorted(trials_of(suspect, case), key=lambda trial: trial.proves)[-1:]), None)
    if last is None:
        return None
    return InterventionRun(
        what=last.intervention.what,
        before=last.before.describe(),
        after=last.reason or last.after.describe(),
        result=last.effect.value,
    )


def _causes(order: Sequence[Suspect], case: DiagnosisState) -> list[Cause]:
    """All proven causes, those that have to be fixed first before the others.

    Lines, summary and trial of the first one are left out, as the verdict has them: an agent pays for every
    word.
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
        if suspect.harmful and is_cause(suspect, case)
    ]
    first: dict[str, object] = {"model_locations": [], "summary": "", "intervention": None}
    return [cause.model_copy(update=first) if place == 0 else cause for place, cause in enumerate(causes)]


def fix_of(suspect: Suspect, case: DiagnosisState) -> Fix | None:
    """The fix of a suspect: the change that ran, where one removed the failure and harmed nothing else."""
    trial = next((t for t in trials_of(suspect, case) if t.proves and t.effect is Effect.GONE), None)
    advice = suspect.fix
    if trial is None or (trial.intervention.hides and not trial.side_effects.known):
        return advice
    same = (each for each in suspect.interventions if each.key == trial.intervention.key)
    tried, effects = next(same, trial.intervention), trial.side_effects  # worded as the suspect has it
    harm = "none; every output element that was not at fault is unchanged" if effects.known else ""
    if effects.layout:
        harm = f"changes the layout of an output ({effects.layout})"
    elif effects.elements:
        harm = (
            f"changes {counted(effects.elements, 'output element')} that {was(effects.elements)} not at fault"
        )
    elif effects.unseen:
        harm = UNSEEN
    if effects:
        # The change also changed what was not at fault: it is no fix, and the advice is given without it.
        harm = f"not offered as a fix: {fix_in_words(trial)}, but this also {harm}"
        return Fix(action=advice.action, side_effects=harm) if advice is not None else None
    return Fix(
        action=tried.action or (advice.action if advice else f"make the call {change_in_words(tried.what)}"),
        before=tried.before_code or (advice.before if advice else None),
        after=tried.after_code or (advice.after if advice else None),
        ran=FixRun(result=fix_in_words(trial), command=trial.command),
        side_effects=harm,
    )


def placed(party: Component, case: DiagnosisState) -> Component:
    """The guilty party, with the user's line that failed if it has no lines of its own.

    Each line once: a comprehension has two frames at one line.
    """
    lines = party.model_locations or case.failing_locations or case.call_locations
    return party.model_copy(update={"model_locations": list(dict.fromkeys(lines))})


def _outcome(best: Suspect | None, case: DiagnosisState) -> Outcome:
    healthy: Outcome = "inconclusive" if unseen_symptom(case) else "no_fault"
    if best is None:
        return healthy if case.healthy else "inconclusive"
    if not best.harmful and case.healthy:
        return healthy
    return "inconclusive" if best.weak else "fault"


def _without_fault(
    outcome: Outcome, suspects: Sequence[Suspect], case: DiagnosisState, context: Context
) -> Verdict:
    healthy = outcome == "no_fault"
    # A program that ended well was content with its numbers; a package alone has nobody to say so.
    judged = compared(case) or not isinstance(case.workload, PackageWorkload)
    unknown = ""
    if case.workload is None and case.log is not None and case.log.root is None:
        # The program may have ended well, or said it elsewhere.
        unknown = f"No known error in the {counted(case.log.lines, 'line')} of the log. "
    evidence = [
        *([] if healthy else _bad_ends(case)),
        *health_evidence(case),
        *_around(case),
        *(Evidence(step="note", fact=note) for note in case.notes[:MAX_EVIDENCE]),
    ]
    return Verdict(
        outcome=outcome,
        confidence="likely" if healthy and judged else "possible",
        summary=health_summary(case)
        if healthy
        else f"{unknown}{unseen_symptom(case) or open_question(case)}",
        evidence=[_with_command(each, case) for each in evidence[:MAX_EVIDENCE]],
        bystanders=bystanders(suspects, case)[:MAX_RULED_OUT],
        next_steps=next_steps(None, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _bad_ends(case: DiagnosisState) -> Iterator[Evidence]:
    """How the user's own runs ended, where that was badly."""
    for label in OWN_RUNS:
        ended = case.runs[label].finished if label in case.runs else None
        if ended is None or ended.ok:
            continue
        how = f"died with {ended.signal}" if ended.signal else f"ended with exit code {ended.returncode}"
        how = "did not end" if ended.ending == "timeout" else how
        yield Evidence(step=label, fact=f"{how} after {ended.wall_s:.1f} s")


def _open_summary(order: Sequence[Suspect], case: DiagnosisState) -> str:
    """What is suspected and what would settle it, where that is known; else the categories that are open."""
    unseen = unseen_symptom(case)
    if unseen:
        return f"{unseen} What stands out: {order[0].summary}"
    if order[0].settle:
        return f"Inconclusive: {order[0].summary} {order[0].settle}"
    categories = list(dict.fromkeys(suspect.category for suspect in order))[:4]
    return f"Inconclusive: the evidence fits {listed(categories, 'or')}. {open_question(case)}"


def _evidence(best: Suspect, case: DiagnosisState) -> list[Evidence]:
    """What supports the verdict, then which call and rank it was, then the trials, each once."""
    found = list({e.fact: e for e in (*best.evidence, *_around(case))}.values())
    for trial in trials_of(best, case):
        found.append(Evidence(step="intervention", fact=trial_in_words(trial), command=trial.command))
    if best.refusal and is_cause(best, case):
        found.append(Evidence(step="run", fact=best.refusal))
    return [_with_command(evidence, case) for evidence in found[:MAX_EVIDENCE]]


def _around(case: DiagnosisState) -> Iterator[Evidence]:
    """Which call was examined, where its operators come from, and which process of a launcher failed."""
    yield from checked_call(case)
    yield from operators_from(case)
    if case.failed_rank:
        fact = f"rank {case.failed_rank.rank} failed: {case.failed_rank.how}"
        yield Evidence(step="capture", fact=fact, source="launcher")


def checked_call(case: DiagnosisState) -> list[Evidence]:
    """The number of the call among those of its process, where the check named it and it is the suspect."""
    call = case.captured.refused
    calls = [each for each in case.calls if call is not None and each.pid == call.pid]
    if call is None or call is not case.suspect_call or len(calls) == 1:
        return []
    place = f"call {calls.index(call) + 1} of {len(calls)}"
    fact = f"the check that failed looked at what {place} gave: that call was examined"
    return [Evidence(step="capture", fact=fact)]


def _with_command(evidence: Evidence, case: DiagnosisState) -> Evidence:
    if evidence.command:
        return evidence
    return evidence.model_copy(update={"command": command_for(evidence.step, case)})
