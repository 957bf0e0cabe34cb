"""Constants that are views of a larger block, of which an update copies more than the constant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.causes import constants
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.worker.loading import update_package
from mcp_server.worker.protocol import Step
from mcp_server.worker.report import Report
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, failing, package_case, phase, trial

VIEWS = ["head.bias", "head.weight"]


def updated(zoo: ZooPackage, *calls: dict[str, Any], **more: Any) -> DiagnosisState:
    """A package whose constants were given as views, and then called."""
    case = failing(package_case(zoo("ranker")))
    update = phase(2, load=1, how="load_constants", arguments=[False, True], views=VIEWS)
    loads = [phase(1, loader="x", package="m.pt2")]
    case.capture = capture(loads=loads, updates=[{**update, **more}], calls=calls)
    return case


CALL = phase(3, load=1, thread=1, file="inputs.pt")


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"views": []}, 0),
        ({"arguments": [False, True, True]}, 0),
        ({"how": "update_constant_buffer_from_cpu"}, 0),
        ({"n": 4}, 0),
        ({"n": 4, "outcome": "unfinished"}, 1),
    ],
    ids=["views", "whole", "not copied", "copied otherwise", "after the call", "not come back"],
)
def test_views_that_an_update_copies_are_named(zoo: ZooPackage, more: dict[str, Any], count: int) -> None:
    """Possible by itself; proven when the call with constants of their own memory passes."""
    case = updated(zoo, CALL, **more)
    found = list(constants.detect_viewed_constants(case))
    assert [(h.category, h.guilty.name) for h in found] == [("constants", "head.bias")] * count
    for hypothesis in found:
        assert confidence(hypothesis, case) == "possible" and hypothesis.intervention is not None
        assert hypothesis.intervention.options.copied == tuple(VIEWS)
        case.trials[hypothesis.intervention.key] = trial(hypothesis.intervention, Effect.GONE)
        assert confidence(hypothesis, case) == "proven"


def test_the_counter_test_gives_constants_memory_of_their_own(tmp_path: Path) -> None:
    """Those that it names, with the same values."""
    block = torch.arange(12.0)
    file, got = tmp_path / "constants.pt", {}
    torch.save({"a": block[2:6], "b": block[6:]}, file)

    class Loader:
        def load_constants(self, constants: dict[str, torch.Tensor]) -> None:
            got.update(constants)

    step: Step = {"how": "load_constants", "file": str(file)}
    update_package(Loader(), step, Report(str(tmp_path / "report.jsonl")), {"copied": ["a"]})
    assert got["a"].untyped_storage().nbytes() == 16 and got["b"].untyped_storage().nbytes() == 48
    assert torch.equal(got["a"], block[2:6])
