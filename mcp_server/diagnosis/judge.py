"""Weighs hypotheses: which is the root cause, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.model import Confidence, RuledOut

ORDER: tuple[Confidence, ...] = ("possible", "likely", "proven")


def merged(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """One hypothesis per cause, with the sources and evidence of all detectors that saw it."""
    found: dict[str, Hypothesis] = {}
    for new in hypotheses:
        known = found.get(new.key)
        found[new.key] = _joined(known, new) if known else new
    return list(found.values())


def _joined(a: Hypothesis, b: Hypothesis) -> Hypothesis:
    """The stronger of two views of one cause, with what the other adds."""
    main, other = (a, b) if _detail(a) >= _detail(b) else (b, a)
    return replace(
        main,
        sources=main.sources | other.sources,
        evidence=tuple({e.fact: e for e in (*main.evidence, *other.evidence)}.values()),
        crashing=main.crashing or other.crashing,
        fix=main.fix or other.fix,
        counter=main.counter or other.counter,
    )


def _detail(hypothesis: Hypothesis) -> tuple[bool, bool, int, bool]:
    """How much a view of a cause says: a log's view is the least specific, and names no launch."""
    launch = hypothesis.guilty.launch_index is not None
    return not hypothesis.weak, hypothesis.sources != {"log"}, hypothesis.depth, launch


def refuted(hypothesis: Hypothesis, case: Case) -> bool:
    """Whether its counter-test removed the cause and the failure stayed."""
    result = case.counters.get(hypothesis.counter.key) if hypothesis.counter else None
    return result is not None and result.decided and not result.passed


def confidence(hypothesis: Hypothesis, case: Case) -> Confidence:
    """Proven needs the failure itself, and a passed counter-test or a second independent observation."""
    if hypothesis.weak:
        return "possible"
    result = case.counters.get(hypothesis.counter.key) if hypothesis.counter else None
    if result is not None and result.passed:
        return "proven"
    if hypothesis.exact and len(hypothesis.sources) >= 2 and case.reproduced:
        return "proven"
    return "likely" if hypothesis.exact or len(hypothesis.sources) >= 2 else "possible"


def ranked(hypotheses: Iterable[Hypothesis], case: Case) -> list[Hypothesis]:
    """The best first: proven before likely before possible, and of equals the nearest to the root cause."""
    alive = [h for h in merged(hypotheses) if not refuted(h, case) and (h.harmful or not h.weak)]
    return sorted(alive, key=lambda h: _rank(h, case), reverse=True)


def _rank(hypothesis: Hypothesis, case: Case) -> tuple[bool, bool, int, int, int]:
    sure = ORDER.index(confidence(hypothesis, case))
    return hypothesis.harmful, not hypothesis.weak, hypothesis.depth, sure, len(hypothesis.sources)


def ruled_out(hypotheses: Iterable[Hypothesis], case: Case) -> list[RuledOut]:
    """The hypotheses that a counter-test refuted, and by what."""
    return [
        RuledOut(hypothesis=h.summary, by=case.counters[h.counter.key].what)
        for h in merged(hypotheses)
        if h.counter and refuted(h, case)
    ]
