"""How suspects are weighed, and what the verdict claims."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect, Kind, Seen, SideEffects
from mcp_server.diagnosis.observe.intervene import combined
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import OF_TEXTS, REFUSALS, CausalLevel, Suspect
from mcp_server.diagnosis.verdict import conclude, confidence, is_bystander, merged, ranked
from mcp_server.jobs.child import Finished
from mcp_server.logs.log import read_log
from mcp_server.model import Fix, Verdict
from mcp_server.runtime.context import Context
from mcp_server.worker.protocol import Change
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    LOG,
    RAISED,
    called,
    capture,
    failing,
    intervention,
    package_case,
    run,
    suspect,
    trial,
)

TRIED = intervention()
REFUSED = ("Segmentation fault", "torch.cuda.OutOfMemoryError: CUDA out of memory.")
NOT_REPRODUCED = "RuntimeError: Error: input_handles[0]: unmatched dtype, expected: 4(at::kLong), but got: 3"


def seen_case(text: str = "Segmentation fault") -> DiagnosisState:
    return failing(DiagnosisState(None), text)


def log_case(text: str) -> DiagnosisState:
    case = DiagnosisState(None)
    case.log, case.log_source = read_log(text.splitlines()), "crash.log"
    return case


def verdict(case: DiagnosisState, *suspects: Suspect, directory: Path = Path("job")) -> Verdict:
    return conclude(list(suspects), case, Context(directory, Path(sys.executable)))


def test_proven_is_earned_by_a_trial() -> None:
    """Proven if the failure disappeared with the change or became another error; not for another death.

    Damaged memory may end a process in several ways, and a bounds guard hides where the call fails.
    """
    case, guard = seen_case(), replace(TRIED, kind=Kind.KERNEL, hides=True)
    died = replace(trial(TRIED, Effect.CHANGED), before=Seen("died", signal="SIGSEGV"))
    for tried, sure in (
        *((trial(TRIED, effect), "proven") for effect in (Effect.GONE, Effect.CHANGED)),
        *((trial(TRIED, effect), "likely") for effect in (Effect.SAME, Effect.NOT_APPLICABLE)),
        *((each, "likely") for each in (died, trial(guard, Effect.GONE))),
    ):
        case.trials["key"] = tried
        made = suspect("a", "nan_or_inf", "capture", intervention=tried.intervention)
        assert confidence(made, case) == sure


def test_all_parts_of_a_suspect_have_to_remove_the_failure() -> None:
    """A batch cut to its first part proves nothing until its last part passes as well."""
    case, last = seen_case(), intervention("last")
    cut = suspect("a", "shape_out_of_range", "check_devices", intervention=TRIED, parts=(last,))
    case.trials["key"] = trial(TRIED, Effect.GONE)
    assert confidence(cut, case) == "likely"
    case.trials["last"] = trial(last, Effect.SAME)
    assert is_bystander(cut, case)
    case.trials["last"] = trial(last, Effect.GONE)
    assert confidence(cut, case) == "proven"


@given(st.sets(st.integers(0, 4), min_size=1))
def test_changes_that_only_help_together_are_causes(wrong: set[int]) -> None:
    """Each change alone leaves the failure, as does any set without all that are wrong.

    The wrong ones are proven, in one fix that ran. The others are bystanders.
    """
    case, tried = seen_case(), [intervention(f"input:{n}") for n in range(5)]
    seen: Any = ("device_mismatch", "check_devices")
    suspects = [suspect(f"args[{n}]", *seen, intervention=each) for n, each in enumerate(tried)]
    while wanted := [each for each in tried if each.key not in case.trials] or combined(suspects, case):
        for each in wanted:
            cured = {f"input:{n}" for n in wrong} <= set(each.parts or (each.key,))
            case.trials[each.key] = trial(each, Effect.GONE if cured else Effect.SAME)
    assert {n for n in range(5) if confidence(suspects[n], case) == "proven"} == wrong
    assert {n for n in range(5) if is_bystander(suspects[n], case)} == set(range(5)) - wrong
    fix = verdict(case, *suspects).fix
    assert fix is not None and fix.ran is not None
    assert (len(wrong) > 1) == ("none of these changes alone is enough" in fix.text)


def test_a_bystander_is_named_with_the_run_that_cleared_it() -> None:
    """If the failure stays without a suspect, the verdict names another, and says so."""
    case = seen_case()
    case.trials["key"] = trial(TRIED, Effect.SAME)
    cleared = suspect("a", "nan_or_inf", "capture", intervention=TRIED)
    other = suspect("b", "hang", "capture")
    assert [each.guilty.name for each in ranked([cleared, other], case)] == ["b"]
    (found,) = verdict(case, cleared, other).bystanders
    assert found.hypothesis == cleared.summary and "the call fails in the same way" in found.by


def test_what_is_around_a_call_is_cleared_by_the_call_alone() -> None:
    """Threads that overlap at warm-up do not explain a call that fails by itself."""
    case = DiagnosisState(None)
    case.runs["script"] = case.runs["plain"] = run("script", RAISED)
    threads = suspect("threads", "concurrency", "capture", only_in_program=True)
    assert is_bystander(threads, case)
    case.runs["plain"] = run("plain", "", called())
    assert not is_bystander(threads, case) and confidence(threads, case) == "likely"


def test_the_deeper_suspect_explains_the_other() -> None:
    """A bad call explains a bad value, and the verdict says so. The proven one comes first."""
    case = seen_case()
    deep = suspect("deep", "input_mismatch", "check_devices", level=CausalLevel.CALL)
    value = suspect("value", "nan_or_inf", "run", level=CausalLevel.BAD_VALUE, intervention=TRIED)
    found = verdict(case, value, deep)
    assert found.guilty is not None and found.guilty.name == "deep"
    assert [each.by for each in found.ruled_out] == ["explained by input_mismatch of deep"]
    case.trials["key"] = trial(TRIED, Effect.GONE)
    found = verdict(case, deep, value)
    assert found.guilty is not None and (found.guilty.name, found.confidence) == ("value", "proven")
    assert [cause.name for cause in found.causes] == ["value"] and found.next_steps == []


def test_the_fix_is_the_change_that_ran() -> None:
    """A cast can be shipped, and has its run. If it harms other elements, the advice replaces it."""
    case = seen_case()
    cast = (Change("cast", 0, dtype="float32"),)
    changed = replace(TRIED, changes=cast, before_code="x", after_code="x.float()")
    tried = suspect("a", "index_out_of_bounds", "run", intervention=changed, fix=Fix(text="convert it"))
    case.trials["key"] = replace(trial(changed, Effect.GONE), command="aoti-debug try-fix m.pt2")
    ran = verdict(case, tried).fix
    assert ran is not None and ran.after == "x.float()"
    assert ran.ran is not None and ran.ran.command == "aoti-debug try-fix m.pt2"
    case.trials["key"] = replace(case.trials["key"], side_effects=SideEffects(elements=3))
    found = verdict(case, tried)
    assert found.fix == Fix(text="convert it")
    assert found.confirmed is not None and "3 output elements" in found.confirmed.side_effects


names = st.sampled_from("abc")
steps = st.lists(st.sampled_from(sorted({*OF_TEXTS, "capture", "interpret", "locate_fault"})), max_size=8)
effects = st.sampled_from([None, Effect.SAME, Effect.NOT_APPLICABLE])
made = st.builds(
    lambda name, steps, level, flags, tried: suspect(
        name,
        "nan_or_inf",
        *steps,
        level=level,
        **dict(zip(("weak", "harmful", "observed", "only_in_program"), flags, strict=True)),
        intervention=tried,
    ),
    names,
    steps,
    st.sampled_from(CausalLevel),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([None, TRIED]),
)


@given(st.lists(made, max_size=8), effects, st.sampled_from(["", RAISED, "Segmentation fault"]))
def test_no_set_of_observations_is_proof(suspects: list[Suspect], effect: Effect | None, text: str) -> None:
    """Nothing is proven without an intervention that removed the failure, or a direct refusal."""
    case = seen_case(text)
    case.runs["script"] = run("script", text)
    if effect is not None:
        case.trials["key"] = trial(TRIED, effect)
    assert all(confidence(each, case) != "proven" for each in merged(suspects))
    found = verdict(case, *suspects)
    assert found.confidence != "proven" and found.causes == []


@given(st.lists(made, max_size=6), st.randoms())
def test_the_order_of_the_detectors_does_not_matter(suspects: list[Suspect], random: Any) -> None:
    """The same cause comes first in any order, no weak one before a strong one, with all evidence."""
    shuffled, case = list(suspects), seen_case()
    random.shuffle(shuffled)
    one, other = (ranked(order, case) for order in (suspects, shuffled))
    first = [[(confidence(x, case), x.level) for x in order[:1]] for order in (one, other)]
    assert first[0] == first[1]
    harmful = [each for each in one if each.harmful]
    assert [each.weak for each in harmful] == sorted(each.weak for each in harmful)
    assert {confidence(each, case) for each in harmful if each.weak} <= {"possible"}
    joined = {each.key: {e.fact for e in each.evidence} for each in merged(suspects)}
    assert all({e.fact for e in each.evidence} <= joined[each.key] for each in suspects)


def test_a_healthy_run_has_no_fault(zoo: Zoo) -> None:
    """Matching inputs and a good call are no_fault, with the run as evidence, even with a harmless defect."""
    case = package_case(zoo("ranker"), GOOD_IDS)
    case.runs["plain"] = run("plain", "", called())
    for suspects in (detect(case), [suspect("a", "wrong_output", "eager", harmful=False)]):
        found = verdict(case, *suspects)
        assert (found.outcome, found.category, found.guilty) == ("no_fault", None, None)
        assert found.evidence and found.confidence == "possible"


@pytest.mark.parametrize("text", [NOT_REPRODUCED, RAISED, *REFUSED])
def test_a_log_alone_is_never_proof(text: str) -> None:
    """Whatever its text, a log alone gives at most `likely`, and asks for the program."""
    case = log_case(text)
    refused = [suspect("a", "invalid_package", "open_package", refusal=each) for each in sorted(REFUSALS)]
    assert {confidence(each, seen_case()) for each in refused} == {"proven"}
    assert {confidence(each, case) for each in refused} == {"likely"}
    found = verdict(case, *detect(case))
    assert found.confidence != "proven"
    assert [step.tool for step in found.next_steps] == ["diagnose"]


def test_an_end_that_nothing_explains_is_told(tmp_path: Path) -> None:
    """An open verdict says how the program ended: by a signal or at its time limit."""
    case = DiagnosisState(None)
    case.capture = capture()
    ends: Any = (("signal", "SIGSEGV", "died with SIGSEGV"), ("timeout", None, "did not end"))
    for ending, signal, words in ends:
        ended = Finished(ending, None, signal, 2.0, LOG, LOG, LOG)
        case.runs["script"] = RunSeen("script", ended, read_log([]))
        found = verdict(case, directory=tmp_path)
        assert found.outcome == "inconclusive" and words in found.evidence[0].fact


def test_what_is_not_proven_says_why(zoo: Zoo) -> None:
    """The reason is a change that was not tried or did not apply, or a call that does not fail alone."""
    tried, case = intervention(), failing(package_case(zoo("ranker")))

    def notes(**more: Any) -> list[str]:
        found = verdict(case, suspect("a", "nan_or_inf", "x", **more))
        return [each for each in found.remarks if each.startswith("Not proven")]

    assert notes(intervention=tried) == [f"Not proven: {tried.what} was not made."]
    case.trials[tried.key] = trial(tried, Effect.NOT_APPLICABLE, "the package is too large")
    assert notes(intervention=tried) == [f"Not proven: {tried.what}: the package is too large."]
    case.trials[tried.key] = trial(tried, Effect.GONE)
    assert notes(intervention=tried) == []
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called())
    (why,) = notes(observed=True)
    said = "Not proven: the call does not fail when it is repeated alone, so there is no failure to remove."
    assert why == said
