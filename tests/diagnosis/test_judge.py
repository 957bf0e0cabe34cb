"""How hypotheses are weighed, and what the verdict then claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.diagnose import detect
from mcp_server.diagnosis.actions.counter_tests import judge as judge_test
from mcp_server.diagnosis.actions.counter_tests import next_test
from mcp_server.diagnosis.case import Case, CounterResult, RunSeen
from mcp_server.diagnosis.suspect import CounterTest, CausalLevel
from mcp_server.diagnosis.judge import ORDER, confidence, merged, ranked, ruled_out
from mcp_server.diagnosis.verdict import MAX_EVIDENCE, conclude, placed
from mcp_server.evidence.log import read_log
from mcp_server.jobs.types import Ending, Finished
from mcp_server.model import Evidence, ModelLocation, Party, Verdict
from mcp_server.steps.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import (
    GOOD_IDS,
    LOG,
    RAISED,
    called,
    capture,
    failing,
    hypothesis,
    package_case,
    run,
)

TEST = CounterTest("key", "the call without it")
NOT_REPRODUCED = "RuntimeError: Error: input_handles[0]: unmatched dtype, expected: 4(at::kLong), but got: 3"


def seen_case(text: str = "Segmentation fault") -> Case:
    return failing(Case(None), text)


def log_case(text: str) -> Case:
    case = Case(None)
    case.log, case.log_source = read_log(text.splitlines()), "crash.log"
    return case


def verdict(case: Case, *suspects: Any, directory: Path = Path("job")) -> Verdict:
    return conclude(list(suspects), case, Context(directory, Path(sys.executable)))


@pytest.mark.parametrize(
    ("sources", "more", "expected"),
    [
        (("a", "b"), {}, "proven"),
        (("a",), {}, "likely"),
        (("a", "b"), {"exact": False}, "likely"),
        (("a",), {"exact": False}, "possible"),
        (("a", "b", "c"), {"weak": True}, "possible"),
    ],
)
def test_proven_needs_two_exact_sources(
    sources: tuple[str, ...], more: dict[str, Any], expected: str
) -> None:
    """Without a counter-test: two exact sources are proof, one is not, inexact or weak ones never are."""
    assert confidence(hypothesis("a", "nan_or_inf", *sources, **more), seen_case()) == expected


def test_nothing_is_proven_that_was_not_seen() -> None:
    """Two sources of which neither is a run of ours prove nothing: the failure has to be reproduced."""
    case = log_case(NOT_REPRODUCED)
    assert confidence(hypothesis("a", "input_mismatch", "log", "package file"), case) == "likely"


def test_a_passed_counter_test_proves() -> None:
    """A test that removed the cause and the failure is proof, also of an inexact hypothesis."""
    case = seen_case()
    one = hypothesis("a", "nan_or_inf", "a", exact=False, counter=TEST)
    assert confidence(one, case) == "possible"
    case.counters["key"] = CounterResult(True, "passes")
    assert confidence(one, case) == "proven"


def test_a_refuted_hypothesis_is_ruled_out() -> None:
    """When the failure stays without the suspected cause, the verdict tells that it was ruled out."""
    case = seen_case()
    case.counters["key"] = CounterResult(False, "still fails")
    suspect, other = hypothesis("a", "nan_or_inf", "a", "b", counter=TEST), hypothesis("b", "hang", "c")
    assert [h.guilty.name for h in ranked([suspect, other], case)] == ["b"]
    assert [r.by for r in ruled_out([suspect, other], case)] == ["still fails"]
    assert [r.by for r in verdict(case, suspect, other).ruled_out] == ["still fails"]


def test_an_undecided_counter_test_refutes_nothing() -> None:
    """A call that fails in another way says nothing about the cause."""
    case = seen_case()
    case.counters["key"] = CounterResult(False, "fails in another way", decided=False)
    suspect = hypothesis("a", "nan_or_inf", "a", "b", counter=TEST)
    assert ranked([suspect], case) and ruled_out([suspect], case) == []


def test_the_deeper_cause_wins() -> None:
    """A bad call explains a bad value, even with less certainty, and the verdict says what it explains."""
    deep = hypothesis("deep", "input_mismatch", "a", level=CausalLevel.CALL)
    symptom = hypothesis("symptom", "illegal_memory_access", "a", "b", level=CausalLevel.FAULT_SITE)
    found = verdict(seen_case(), symptom, deep)
    assert found.guilty is not None and found.guilty.name == "deep"
    assert [r.by for r in found.ruled_out] == ["explained by input_mismatch of deep"]


names = st.sampled_from("abc")
sources = st.sets(st.sampled_from(["x", "y", "z"]), min_size=1)
made = st.builds(
    lambda name, sources, level, weak, harmful: hypothesis(
        name, "nan_or_inf", *sources, level=level, weak=weak, harmful=harmful
    ),
    names, sources, st.sampled_from(CausalLevel), st.booleans(), st.booleans(),
)  # fmt: skip


@given(st.lists(made, max_size=6))
def test_weak_never_beats_strong(suspects: list[Any]) -> None:
    """A weak harmful hypothesis stands behind every strong harmful one, and is `possible`."""
    order = [h for h in ranked(suspects, seen_case()) if h.harmful]
    assert [h.weak for h in order] == sorted(h.weak for h in order)
    assert {confidence(h, seen_case()) for h in order if h.weak} <= {"possible"}


@given(st.lists(made, max_size=6))
def test_merging_loses_no_cause_and_no_source(suspects: list[Any]) -> None:
    """One hypothesis per cause, with all sources that any detector had for it."""
    joined = {h.key: h.sources for h in merged(suspects)}
    for one in suspects:
        assert one.sources <= joined[one.key]
    assert len(merged(suspects)) == len({h.key for h in suspects})


@given(made)
def test_more_sources_never_make_it_less_sure(one: Any) -> None:
    """Seen by two detectors, a cause is at least as sure as seen by one."""
    both = merged([one, hypothesis(one.guilty.name, "nan_or_inf", "w", level=one.level, weak=one.weak)])
    case = seen_case()
    assert ORDER.index(confidence(both[0], case)) >= ORDER.index(confidence(one, case))


def test_a_healthy_run_has_no_fault(zoo: ZooPackage) -> None:
    """Inputs that fit and a call that ended well are no_fault, with the run as evidence."""
    case = package_case(zoo("ranker"), GOOD_IDS)
    case.runs["plain"] = run("plain", "", called())
    found = verdict(case, *detect(case))
    assert (found.outcome, found.category, found.guilty) == ("no_fault", None, None)
    assert found.evidence and found.confidence == "possible"


def test_a_suspicious_size_on_a_healthy_run_is_no_fault(zoo: ZooPackage) -> None:
    """A mismatch that may be a false alarm does not accuse a call that ended well."""
    case = package_case(zoo("ranker"), type(GOOD_IDS)("int64", (65, 6)))
    case.mismatches = tuple(m.model_copy(update={"severity": "suspicious"}) for m in case.mismatches)
    case.runs["plain"] = run("plain", "", called())
    assert len(case.mismatches) == 1
    assert verdict(case, *detect(case)).outcome == "no_fault"


def test_what_did_no_harm_is_no_fault() -> None:
    """A sound observation that broke nothing, such as a departure in rounding, does not make a fault."""
    case = Case(None)
    case.runs["plain"] = run("plain", "", called())
    assert verdict(case, hypothesis("a", "wrong_output", "eager", harmful=False)).outcome == "no_fault"


def test_nothing_known_is_inconclusive() -> None:
    """No run and no hypothesis is neither a fault nor health."""
    found = verdict(Case(None))
    assert (found.outcome, found.confidence) == ("inconclusive", "possible")


def test_several_weak_candidates_are_inconclusive() -> None:
    """A text that admits several causes gives no category as a fault, and lists what it admits."""
    case = seen_case(RAISED)
    found = verdict(case, *detect(case))
    assert found.outcome == "inconclusive" and found.confidence == "possible"
    assert "index_out_of_bounds" in found.summary


@pytest.mark.parametrize(
    "text", [NOT_REPRODUCED, RAISED, "Segmentation fault", "torch.cuda.OutOfMemoryError: CUDA out of memory."]
)
def test_a_log_alone_is_never_proof(text: str) -> None:
    """Whatever the text says, only a log gives at most `likely`, and asks for the program."""
    case = log_case(text)
    found = verdict(case, *detect(case))
    assert found.confidence != "proven"
    assert [step.tool for step in found.next_steps] == ["diagnose"]


def test_evidence_is_bounded_and_told_once() -> None:
    """The same fact comes once, and a flood of facts is cut."""
    facts = tuple(Evidence(step="run", fact=str(n // 2)) for n in range(60))
    found = verdict(seen_case(), hypothesis("a", "hang", "x", evidence=facts))
    assert [e.fact for e in found.evidence] == [str(n) for n in range(MAX_EVIDENCE)]


ENDINGS = [
    ("", True, True),
    ("Segmentation fault", False, True),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.", False, False),
]


@pytest.mark.parametrize(("after", "passed", "decided"), ENDINGS, ids=["gone", "same", "other"])
def test_a_counter_test_is_judged_by_how_it_ended(after: str, passed: bool, decided: bool) -> None:
    """Gone is a pass, the same failure refutes, another failure decides nothing."""
    result = judge_test(TEST, run("plain", "Segmentation fault"), run("counter", after))
    assert (result.passed, result.decided) == (passed, decided)


def test_only_a_failure_can_be_made_to_go_away() -> None:
    """No counter-test for a call that ended well; for one that failed, the best that was not tried."""
    suspect = hypothesis("a", "hang", "x", counter=TEST)
    case = Case(None)
    case.runs["plain"] = run("plain", "", called())
    assert next_test(case, [suspect]) is None
    failing(case)
    assert next_test(case, [suspect]) == TEST
    case.counters["key"] = CounterResult(True, "passes")
    assert next_test(case, [suspect]) is None


@pytest.mark.parametrize(
    ("ending", "signal", "told"), [("signal", "SIGSEGV", "died of SIGSEGV"), ("timeout", None, "did not end")]
)
def test_an_end_that_nothing_explains_is_told(
    tmp_path: Path, ending: Ending, signal: str | None, told: str
) -> None:
    """An open verdict says how the program ended: by a signal, or at its time limit."""
    case = Case(None)
    case.capture = capture()
    ended = Finished(ending, None, signal, 2.0, LOG, LOG, LOG)
    case.runs["script"] = RunSeen("script", ended, read_log([]))
    found = verdict(case, directory=tmp_path)
    assert found.outcome == "inconclusive" and told in found.evidence[0].fact
    case.runs["script"] = run("script")
    assert all("exit code" not in each.fact for each in verdict(case, directory=tmp_path).evidence)


def test_a_line_is_told_once() -> None:
    """The frames of a comprehension and of the function around it are at one line."""
    here = ModelLocation(file="/app/serve.py", line=9, code="[model(x) for x in batch]")
    party = Party(kind="call", name="the call", model_locations=[here, here])
    assert placed(party, Case(None)).model_locations == [here]
