"""Inputs in each other's place, and what a program had when its own check failed."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.diagnosis.causes import input_mismatch
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Trial
from mcp_server.diagnosis.observe.intervene import against_program
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.diagnosis.verdict import confidence
from mcp_server.package.mismatch import GivenTensor
from tests.conftest import ZooPackage
from tests.diagnosis.support import called, package_case, run, worker_run

TEST = Intervention("exchange:0:1", Kind.INPUT, "the call with inputs 0 and 1 exchanged")
ALIKE = {"dtype": "float32", "shape": [8, 16], "stride": [16, 1]}


def judged(tried: Intervention, plain: RunSeen, after: RunSeen) -> Trial:
    """The trial between two calls as they are, which give the same."""
    return against_program(tried, plain, after, plain)


def held(**equal: bool) -> dict[str, Any]:
    return {"event": "compared_frame_tensors", "equal": equal}


@pytest.mark.parametrize(
    ("before", "after", "passed"),
    [
        ({"got": True, "want": False}, {"got": False, "want": True}, True),
        ({"got": True, "want": False}, {"got": False, "want": False}, False),
        ({"got": True}, {"got": True}, False),
        ({"got": True}, {"got": True, "want": True}, False),
    ],
    ids=["reached", "another result", "no effect", "not there before"],
)
def test_a_test_passes_that_gives_what_the_program_had(
    before: dict[str, bool], after: dict[str, bool], passed: bool
) -> None:
    """Only what the call did not give before counts; a test that reaches nothing refutes nothing."""
    plain = run("plain", "", called(), held(**before))
    result = judged(TEST, plain, run("t", "", called(), held(**after)))
    assert result.effect is (Effect.GONE if passed else Effect.NOT_APPLICABLE)


def pair(zoo: ZooPackage, **equal: bool) -> DiagnosisState:
    """A package of two inputs, called with two of one layout, which gives what its program gives."""
    case = package_case(zoo("logarithm"), *([GivenTensor("float32", (8, 16))] * 2))
    case.mismatches = ()
    case.leaves = [ALIKE, ALIKE]
    case.interpreted = worker_run({"event": "compared", "equal": True})
    case.runs["plain"] = run("plain", "", called(), held(**equal))
    return case


def test_inputs_of_one_layout_are_exchanged_and_tried(zoo: ZooPackage) -> None:
    """A mere possibility until the exchanged call gives what the program expected, which proves it."""
    case = pair(zoo, want=False)
    case.suspects = list(input_mismatch.detect_argument_order(case))
    (found,) = case.suspects
    assert found.weak and found.intervention is not None
    assert found.intervention.changes[0].order == (1, 0)
    plain = case.runs["plain"]
    test = found.intervention
    case.trials[test.key] = judged(test, plain, run("t", "", called(), held(want=True)))
    (found,) = input_mismatch.detect_argument_order(case)
    assert not found.weak and confidence(found, case) == "proven"
    case.trials[test.key] = judged(test, plain, run("t", "", called(), held(want=False)))
    assert not list(input_mismatch.detect_argument_order(case))


@pytest.mark.parametrize(
    "why", ["nothing expected", "expected as given", "other layouts", "departs from eager"]
)
def test_no_order_is_suspected_without_need(zoo: ZooPackage, why: str) -> None:
    """No other tensor of the program, other layouts, and a package that is wrong itself say nothing."""
    case = pair(zoo, want=False)
    if why == "other layouts":
        case.leaves = [ALIKE, {**ALIKE, "dtype": "float64"}]
    if why == "departs from eager":
        case.interpreted = worker_run({"event": "compared", "equal": False})
    if why == "nothing expected":
        case.runs["plain"] = run("plain", "", called())
    if why == "expected as given":
        case.runs["plain"] = run("plain", "", called(), held(want=True))
    assert not list(input_mismatch.detect_argument_order(case))
