"""Turns a judged case into the verdict that users see."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import OWN_RUNS, Case, RunSeen
from mcp_server.diagnosis.checked_call import checked_call
from mcp_server.diagnosis.commands import again, command_for
from mcp_server.diagnosis.health import health_confidence, health_evidence, health_summary
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.inner_line import deepened
from mcp_server.diagnosis.judge import confidence, ranked, ruled_out
from mcp_server.diagnosis.next_steps import next_steps
from mcp_server.diagnosis.operators_from import operators_from
from mcp_server.model import Confidence, Evidence, Outcome, Party, RuledOut, Verdict
from mcp_server.steps.context import Context

MAX_EVIDENCE = 10
MAX_RULED_OUT = 6


def conclude(hypotheses: Sequence[Hypothesis], case: Case, context: Context) -> Verdict:
    """The verdict for what is known now; `inconclusive` when no hypothesis stands alone."""
    order = ranked(hypotheses, case)
    best = order[0] if order else None
    outcome = _outcome(best, case)
    if best is None or outcome == "no_fault":
        return _without_fault(outcome, hypotheses, case, context)
    guilty, inferred = deepened(placed(best.guilty, case), best.category, case)
    return Verdict(
        outcome=outcome,
        category=best.category,
        confidence=_stated(outcome, best, case),
        summary=_of_rank(best.summary, case) if outcome == "fault" else _open_summary(order, case),
        guilty=guilty if best.guilty.name else None,
        crashing=best.crashing,
        evidence=[*_evidence(best, case), *inferred][:MAX_EVIDENCE],
        ruled_out=_ruled_out(best, order, hypotheses, case),
        fix=best.fix,
        next_steps=next_steps(best, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def placed(party: Party, case: Case) -> Party:
    """The guilty party with the user's line that failed, where no line is known that tells more.

    Each line once: a comprehension has two frames at one.
    """
    lines = party.model_locations or case.failing_locations or case.call_locations
    return party.model_copy(update={"model_locations": list(dict.fromkeys(lines))})


def _outcome(best: Hypothesis | None, case: Case) -> Outcome:
    if best is None:
        return "no_fault" if case.healthy else "inconclusive"
    if not best.harmful and case.healthy:
        return "no_fault"
    if best.weak:
        return "inconclusive"
    return "fault"


def _stated(outcome: Outcome, best: Hypothesis, case: Case) -> Confidence:
    return confidence(best, case) if outcome == "fault" else "possible"


def _without_fault(
    outcome: Outcome, hypotheses: Sequence[Hypothesis], case: Case, context: Context
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
        else f"{_unknown_log(case)}{case.open_question}",
        evidence=[
            _with_command(e, case) for e in (*_bad_ends(outcome, case), *health_evidence(case), *notes)
        ][:MAX_EVIDENCE],
        ruled_out=ruled_out(hypotheses, case)[:MAX_RULED_OUT],
        next_steps=next_steps(None, case),
        decisions=case.decisions,
        cost=context.cost.cost(),
        artifacts=case.artifacts,
    )


def _bad_ends(outcome: Outcome, case: Case) -> list[Evidence]:
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
    return f"died of {ended.signal}" if ended.signal else f"ended with exit code {ended.returncode}"


def _unknown_log(case: Case) -> str:
    """That a log alone holds no error text: the program may have ended well, or said it elsewhere."""
    if case.workload is not None or case.log is None or case.log.root is not None:
        return ""
    return f"No error is known among the {case.log.lines} lines of the log. "


def _open_summary(order: Sequence[Hypothesis], case: Case) -> str:
    """What is suspected and what would settle it, where that is known; else the categories that are open."""
    if order[0].settle:
        return f"Not settled: {order[0].summary} {order[0].settle}"
    categories = list(dict.fromkeys(h.category for h in order))[:4]
    return f"Not settled: the evidence admits {', '.join(categories)}. {case.open_question}"


def _evidence(best: Hypothesis, case: Case) -> list[Evidence]:
    """What supports the verdict, then which rank it was, then the counter-test, each once."""
    told = (*best.evidence, *checked_call(case), *operators_from(case), *_rank(case))
    found = list({e.fact: e for e in told}.values())
    result = case.counters.get(best.counter.key) if best.counter else None
    if result is not None:
        repeat = again(result.run.worker, case) if result.run is not None else ""
        found.append(Evidence(step="counter_test", fact=result.what, command=repeat))
    return [_with_command(evidence, case) for evidence in found[:MAX_EVIDENCE]]


def _of_rank(summary: str, case: Case) -> str:
    end = case.capture.rank if case.capture is not None else None
    return f"Rank {end.rank}: {summary}" if end else summary


def _rank(case: Case) -> list[Evidence]:
    """Which of the processes of a launcher failed."""
    end = case.capture.rank if case.capture is not None else None
    return (
        [Evidence(step="capture", fact=f"rank {end.rank} failed: {end.how}", source="launcher")]
        if end
        else []
    )


def _with_command(evidence: Evidence, case: Case) -> Evidence:
    if evidence.command:
        return evidence
    return evidence.model_copy(update={"command": command_for(evidence.step, case)})


def _ruled_out(
    best: Hypothesis, order: Sequence[Hypothesis], hypotheses: Sequence[Hypothesis], case: Case
) -> list[RuledOut]:
    """Refuted hypotheses, then those that the verdict explains."""
    found = ruled_out(hypotheses, case)
    explained = [
        RuledOut(hypothesis=h.summary, by=f"explained by {best.category} of {best.guilty.name}")
        for h in order[1:]
        if not h.weak and h.depth < best.depth
    ]
    return [*found, *explained][:MAX_RULED_OUT]
