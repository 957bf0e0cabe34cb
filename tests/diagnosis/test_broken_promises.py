"""Operators that break their promises: whether that explains what package and exported program differ in."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes import custom_op
from mcp_server.diagnosis.causes.custom_op import REPAIRED, SAME, kept_promise
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.intervene import in_eager
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, is_bystander
from tests.diagnosis.support import run, trial, worker_run

FOUND = trial(REPAIRED, Effect.NOT_APPLICABLE, SAME)
LAYOUT = {"shape": [2, 3], "stride": [3, 1], "dtype": "torch.float32", "device": "cpu"}


def test_a_write_that_only_the_model_sees_is_proven_by_the_model_without_it() -> None:
    """The package is right as it is; the program differs from it until the operator works on copies."""
    assert in_eager(worker_run({"event": "compared", "equal": True}), FOUND).proves


@pytest.mark.parametrize("events", [({"event": "compared", "equal": False},), ()], ids=["departs", "failed"])
def test_a_model_that_departs_all_the_same_decides_nothing(events: tuple[dict[str, object], ...]) -> None:
    """Then the broken promise is neither the cause nor cleared."""
    result = in_eager(worker_run(*events), FOUND)
    assert result.effect is Effect.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        ({"dtype": "torch.float64"}, "dtype"),
        ({"shape": [2, 2], "stride": [2, 1]}, "shape"),
        ({"stride": [1, 2]}, "stride"),
    ],
)
def test_the_fix_names_what_differs(returned: dict[str, object], what: str) -> None:
    """A fake function that is wrong in one respect is to be mended in that one."""
    assert f"return the {what} of the real" in kept_promise("op", LAYOUT, {**LAYOUT, **returned})


def watched(*, failing: bool) -> DiagnosisState:
    """An operator was seen to write to its argument, and the package's outputs did not depend on that."""
    case = DiagnosisState(None)
    told = {"op": "own.trim", "call": 1, "layouts": [], "mutated": ["level"], "aliases": []}
    case.operators = worker_run({"event": "operator", **told})
    case.runs["plain"] = run("plain", "Error: wrong" if failing else "")
    case.trials[REPAIRED.key] = in_eager(None, FOUND)
    return case


@pytest.mark.parametrize("failing", [True, False])
def test_a_broken_promise_without_effect_is_neither_cleared_nor_claimed(failing: bool) -> None:
    """Without a program to hold the package against, a call that is well leaves the question open."""
    case = watched(failing=failing)
    (found,) = custom_op.detect_operator_results(case)
    assert not is_bystander(found, case) and found.weak != failing
    assert confidence(found, case) == "possible"


def test_a_write_beyond_its_memory_is_told_before_any_other_promise() -> None:
    """It spoils what others use, whether or not this call shows it."""
    case = watched(failing=False)
    assert case.operators is not None
    (event,) = case.operators.all("operator")
    event["overrun"] = [{"shape": [75, 3], "dtype": "torch.float32", "before": 0, "after": 124}]
    (found,) = custom_op.detect_operator_results(case)
    assert (found.category, found.guilty.name) == ("illegal_memory_access", "torch.ops.own.trim")
    assert "124 bytes past the end" in found.summary and not found.weak
