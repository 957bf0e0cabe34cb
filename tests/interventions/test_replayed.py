"""Trials of a captured call: with updates of constants and calls before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import compiled_values, constant_own_memory
from mcp_server.diagnosis.interventions.run import TriedCall
from mcp_server.diagnosis.symptom import Symptom
from tests.conftest import ZooPackage
from tests.interventions.support import tried
from tests.worker.support import saved

pytestmark = pytest.mark.slow


def captured(package: Path, given: Path, *before: Mapping[str, object]) -> TriedCall:
    """The request of a replay: those steps, then the call."""
    steps = [*before, {"do": "call", "file": str(given), "threads": 1}]
    return TriedCall({"package": package, "steps": steps})


def test_an_update_with_nan_is_the_cause_and_the_compiled_values_remove_it(
    zoo: ZooPackage, tmp_path: Path
) -> None:
    """The package is loaded anew without the update, for that one call."""
    package = zoo("logarithm")
    name = "inp.bias"
    bad = saved(tmp_path, "bias.pt", {name: torch.full((16,), float("nan"))})
    update = {"do": "constants", "file": str(bad), "how": "load_constants", "arguments": [False, False]}
    call = captured(package, package.with_name("logarithm.inputs.pt"), update)
    steps = call.request["steps"]
    assert isinstance(steps, list)
    copied = constant_own_memory([name])
    right, wrong = tried(tmp_path, call, [compiled_values(steps), copied])
    assert right.before.failure == "nonfinite" and right.effect is Effect.GONE and right.proves
    assert wrong.effect is Effect.SAME


def test_a_call_that_fails_for_what_an_earlier_one_left_is_made_alone(
    zoo: ZooPackage, tmp_path: Path
) -> None:
    """The counter keeps its state: its second call gives another number than the expected first one."""
    package = zoo("counter")
    given = package.with_name("counter.inputs.pt")
    loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
    first = saved(tmp_path, "first.pt", loader.run(torch.load(given, weights_only=True)))
    earlier = {"do": "call", "file": str(given)}
    call = captured(package, given, earlier)
    steps = call.request["steps"]
    assert isinstance(steps, list)
    expecting = TriedCall(call.request, symptom=Symptom(expect=first))
    alone = Intervention("alone", Kind.CALL, "the call alone", options=Options(steps=tuple(steps[-1:])))
    (trial,) = tried(tmp_path, expecting, [alone])
    assert trial.before.failure == trial.again.failure == "differs" and trial.effect is Effect.GONE
