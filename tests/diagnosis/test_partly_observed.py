"""Detectors and observations on a state of which any part may not have been looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.diagnose import detect, observations
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Instrument
from mcp_server.diagnosis.verdict import conclude, ranked
from mcp_server.tools.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import (
    GOOD_IDS,
    called,
    capture,
    failing,
    index_text,
    package_case,
    phase,
    run,
    worker_run,
)

# What an observation may leave in the state; each is as it was at first where it was not made.
PARTS = (
    *("package", "given", "leaves", "mismatches", "capture", "call", "interpreted", "repeated", "runs"),
    *("workload", "sharing", "operators"),
)
RAISED = {
    "event": "node_raised",
    "node": "embedding",
    "op": "aten.embedding.default",
    "text": "IndexError: index out of range in self",
    "stack": [{"file": "model.py", "line": 3, "code": "self.table(ids)"}],
}


def observed(package: Path) -> DiagnosisState:
    """A failing call of a program, of which everything cheap was looked at."""
    case = failing(package_case(package, GOOD_IDS), index_text(package))
    case.leaves = [{"kind": "tensor", "shape": [8, 6], "dtype": "int64", "stride": [6, 1]}]
    call = phase(3, load=1, thread=2, thread_name="worker", again=[0], outcome="failed")
    update = phase(2, load=1, how="load_constants", arguments=[True], constants={"head.bias": {"nan": 3}})
    loads = [phase(1, loader="AOTIModelPackageLoader", package=str(package), options={})]
    case.capture = capture(loads=loads, updates=[update], calls=[call])
    case.runs["script"] = run("script", index_text(package))
    case.runs["checked"] = run("checked", "", called(nan=2))
    case.interpreted = worker_run(RAISED, {"event": "compared", "equal": False, "outputs": []})
    case.repeated = worker_run({"event": "repeated", "run": "second", "equal": False})
    case.sharing = [[0, 1]]
    return case


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(missing=st.sets(st.sampled_from(PARTS)))
def test_nothing_relies_on_what_was_not_looked_at(zoo: ZooPackage, missing: set[str]) -> None:
    """Whatever is missing, every detector and every gain has an answer, and a gain lies in [0, 1]."""
    case, empty = observed(zoo("ranker")), DiagnosisState(None)
    for part in missing:
        setattr(case, part, getattr(empty, part))
    suspects = detect(case)
    assert all(suspect.summary and suspect.evidence for suspect in suspects)
    assert all(0.0 <= each.gain(case, suspects) <= 1.0 for each in observations())


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(missing=st.sets(st.sampled_from(PARTS)))
def test_a_verdict_can_be_given_at_any_time(zoo: ZooPackage, missing: set[str]) -> None:
    """The budget may end at any point: what is known by then makes a verdict, and never a proven one here.

    No intervention was tried, and the call itself is no refusal.
    """
    case, empty = observed(zoo("ranker")), DiagnosisState(None)
    for part in missing - {"workload"}:
        setattr(case, part, getattr(empty, part))
    verdict = conclude(detect(case), case, Context(Path("job"), Path("python")))
    assert verdict.confidence != "proven" and verdict.summary
    assert (verdict.outcome == "fault") <= (verdict.category is not None)


def test_a_complete_state_has_suspects_of_several_kinds(zoo: ZooPackage) -> None:
    """The state of these tests is one in which much is wrong: else they would show nothing."""
    case = observed(zoo("ranker"))
    categories = {suspect.category for suspect in ranked(detect(case), case)}
    assert {"index_out_of_bounds", "constants"} <= categories and len(categories) >= 3


@pytest.mark.parametrize("instrument", Instrument)
def test_a_step_belongs_to_one_instrument(instrument: Instrument) -> None:
    """Evidence counts as independent by its instrument: a step of two of them would count twice."""
    others: list[Any] = [step for other in Instrument if other is not instrument for step in other.value]
    assert instrument.value and not set(instrument.value).intersection(others)
