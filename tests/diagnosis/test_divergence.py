"""What a comparison launch by launch makes of a package that diverges from its exported program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes import wrong_output
from mcp_server.diagnosis.observe.launches import CompareLaunches
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.model import Artifact, Cost, ExportedWorkload
from mcp_server.tools.divergence import (
    Changed,
    ComparedWithEager,
    Difference,
    Divergence,
    Kind,
    OtherConstant,
)
from tests.conftest import ZooPackage
from tests.diagnosis.support import called, package_case, run, worker_run

DIFFERS = {"event": "compared", "equal": False, "outputs": [{"max_abs": 0.5}]}
REFERENCE = {"event": "compared_expected", "equal": False, "outputs": [{"shape": [[2], [2]]}]}


def diverged(zoo: ZooPackage, kind: Kind = "error", **facts: Any) -> DiagnosisState:
    """A script that found its numbers wrong, and whose package diverges at launch 1."""
    case = package_case(zoo("logarithm"))
    case.runs["plain"] = case.runs["script"] = run("plain", "", called(), REFERENCE)
    case.interpreted = worker_run(DIFFERS)
    first = {"kind": kind, "launch": 1, "kernel": "k1", "difference": Difference(), "summary": "it differs"}
    case.with_eager = ComparedWithEager(
        outcome="differs",
        summary="",
        first=Divergence.model_validate({**first, **facts}),
        reads_unset=kind == "uninitialised",
        varies_from=Changed(launch=0, kernel="k0", argument="buf0"),
        unset_from=Changed(launch=0, kernel="k0", argument="buf0"),
        log=Artifact(uri="u", path=Path("p"), bytes=0, what="log"),
        cost=Cost(),
    )
    return case


GUILTY: list[tuple[Kind, int, str]] = [
    ("error", 1, "likely"),
    ("uninitialised", 0, "likely"),
    ("tf32", 1, "likely"),
    ("nondeterministic", 0, "likely"),
]


@pytest.mark.parametrize(("kind", "launch", "sure"), GUILTY)
def test_the_guilty_launch_depends_on_the_kind(zoo: ZooPackage, kind: Kind, launch: int, sure: str) -> None:
    """An error is put on the launch that diverges, chance and unset memory on the one where they enter."""
    case = diverged(zoo, kind)
    (found,) = wrong_output.detect_divergence(case)
    assert (found.category, found.guilty.launch_index, found.harmful) == ("wrong_output", launch, True)
    assert confidence(found, case) == sure and found.fix is not None


def test_launches_that_could_not_be_matched_leave_a_doubt(zoo: ZooPackage) -> None:
    """A divergence that may begin earlier is not proven."""
    case = diverged(zoo, suspects=[0])
    (found,) = wrong_output.detect_divergence(case)
    assert confidence(found, case) == "likely"


def test_outputs_alone_name_the_package(zoo: ZooPackage) -> None:
    """If no launch is known, only the package is named."""
    (found,) = wrong_output.detect_divergence(diverged(zoo, launch=None, kernel=""))
    assert (found.guilty.kind, found.guilty.name) == ("package", "logarithm.pt2")


def test_other_constants_explain_a_departure(zoo: ZooPackage) -> None:
    """A package of other weights is the cause, and the launch that diverges only shows it."""
    case = diverged(zoo)
    assert case.with_eager is not None
    other = OtherConstant(name="inp.weight", launch=0, elements=64, different=3)
    case.with_eager = case.with_eager.model_copy(update={"other_constants": [other]})
    best = ranked(wrong_output.detect_divergence(case), case)[0]
    assert (best.category, best.guilty.name) == ("constants", "inp.weight")
    assert "3 of 64" in best.summary and confidence(best, case) == "likely"


def comparing(zoo: ZooPackage) -> DiagnosisState:
    case = diverged(zoo)
    case.with_eager = None
    case.workload = ExportedWorkload(exported=zoo("logarithm").with_name("logarithm.exported.pt2"))
    return case


def test_a_difference_is_looked_into(zoo: ZooPackage) -> None:
    """The comparison is worth its time once outputs were seen to differ, and not while they agree."""
    case = comparing(zoo)
    assert CompareLaunches().gain(case, []) > 0
    case.interpreted = worker_run({**DIFFERS, "equal": True})
    assert CompareLaunches().gain(case, []) == 0
    case.interpreted = None
    assert CompareLaunches().gain(case, []) > 0, "updated weights are compared here alone"


def test_nothing_is_said_without_a_comparison(zoo: ZooPackage) -> None:
    """No comparison, no divergence."""
    assert list(wrong_output.detect_divergence(comparing(zoo))) == []
