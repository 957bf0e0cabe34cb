"""Inputs and constants on another CUDA device than the package: no check of torch compares the index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import constants, input_mismatch
from mcp_server.diagnosis.causes.input_mismatch import place
from mcp_server.diagnosis.interventions.base import Change, Effect
from mcp_server.diagnosis.observe.calls import PlainRun
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import PackageWorkload
from mcp_server.package.mismatch import GivenTensor, compare_inputs
from mcp_server.tools.check_devices import Given
from tests.conftest import ZooPackage
from tests.diagnosis.support import GOOD_IDS, called, capture, failing, package_case, phase, run, trial
from tests.memory_faults.support import recorded

FAULT = "CUDA error: an illegal memory access was encountered"


def on_second_card(zoo: ZooPackage) -> DiagnosisState:
    """A package loaded on the first device, called with an input on the second."""
    case = package_case(zoo("ranker"), GOOD_IDS)
    assert case.package is not None and case.given is not None
    given = [replace(tensor, device="cuda:1") for tensor in case.given.tensors]
    found = compare_inputs(case.package.signature, given, device_index=0)
    case.mismatches = tuple(m for m in found if m.aspect == "device_index")
    return case


def test_a_call_that_fails_with_an_input_elsewhere_is_likely_and_proven_by_moving_it(zoo: ZooPackage) -> None:
    """The counter-test moves the input to the device of the load, and nothing else."""
    case = failing(on_second_card(zoo), FAULT)
    (found,) = input_mismatch.detect_contract(case)
    assert (found.category, found.guilty.input_index, found.weak) == ("device_mismatch", 0, False)
    assert found.intervention is not None
    assert found.intervention.changes == (Change("move", input=0, device="cuda:0"),)
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"


def test_a_call_that_works_with_an_input_elsewhere_is_no_fault(zoo: ZooPackage) -> None:
    """Cards that reach each other's memory compute the right numbers."""
    case = on_second_card(zoo)
    case.runs["plain"] = run("plain", "", called())
    (found,) = input_mismatch.detect_contract(case)
    assert found.weak and not found.harmful


@pytest.mark.parametrize(
    ("managed", "loaded_on", "names"),
    [(True, 1, ["cuda:1"]), (True, 0, []), (False, 1, [])],
    ids=["read over there", "the same card", "copied"],
)
def test_memory_that_the_package_reads_on_another_card(
    zoo: ZooPackage, managed: bool, loaded_on: int, names: list[str]
) -> None:
    """Values that are copied may come from any card."""
    case = failing(package_case(zoo("ranker")), FAULT)
    assert case.package is not None
    weight = case.package.constants[0]
    leaf = {"dtype": weight.dtype, "shape": list(weight.shape), "device": "cuda:0"}
    case.capture = capture(
        loads=[phase(1, loader="x", package="m.pt2", current_device=loaded_on)],
        updates=[
            phase(
                2,
                load=1,
                how="load_constants",
                arguments=[False, True, managed],
                constants={weight.fqn: leaf},
            )
        ],
        calls=[phase(3, load=1, thread=1)],
    )
    named = [h for h in constants.detect(case) if (h.guilty.value or "").startswith("device")]
    assert [(h.guilty.value or "").split("compiled: ")[1].rstrip(")") for h in named] == names


@pytest.mark.parametrize(
    ("loaded_on", "devices", "error", "call"),
    [
        (1, ["cuda:1", "cuda:0"], FAULT, 2),
        (1, ["cuda:1", "cuda:1"], FAULT, None),
        (1, ["cuda:1", "cuda:0"], "expected 3 inputs", None),
        (None, ["cuda:1", "cuda:0"], FAULT, None),
        (1, ["cuda:1", "cpu"], FAULT, None),
    ],
    ids=["another card", "its own", "no error of a device", "a package for the CPU", "host"],
)
def test_the_call_with_an_input_on_another_card_is_named_whoever_met_the_error(
    loaded_on: int | None, devices: list[str], error: str, call: int | None
) -> None:
    """Two threads share the process: the first call failed, the second reached for another card's memory."""
    case = DiagnosisState(None)
    calls = [
        phase(n + 1, load=1, thread=n, leaves=[{"device": device}]) | {"number": n}
        for n, device in enumerate(devices, start=1)
    ]
    calls[0] |= {"outcome": "failed", "error": {"type": "torch.AcceleratorError", "text": error}}
    loads = [phase(1, loader="x", package="m.pt2", current_device=loaded_on)]
    case.capture = capture(loads=loads, calls=calls)
    found = list(input_mismatch.detect_other_device(case))
    assert [h.evidence[0].fact.split()[1] for h in found] == ([str(call)] if call else [])
    assert all(confidence(h, case) == "likely" for h in found)


@pytest.mark.parametrize(
    ("asked", "devices", "gpus", "placed"),
    [
        (-1, ["cuda:1", "cuda:1"], 2, 1),
        (-1, ["cuda:1", "cpu"], 2, 1),
        (-1, ["cuda:0", "cuda:1"], 2, -1),
        (-1, ["cuda:0"], 2, -1),
        (0, ["cuda:1"], 2, 0),
        (-1, ["cuda:1"], 1, -1),
    ],
    ids=["where they are", "one on the host", "scattered", "the first card", "asked for", "one card"],
)
def test_a_package_without_a_device_goes_where_its_inputs_are(
    asked: int, devices: list[str], gpus: int, placed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were saved in calls on that card; on one card nothing waits for them."""
    second = tmp_path / "nvidia1"
    if gpus > 1:
        second.touch()
    monkeypatch.setattr("mcp_server.tools.context.SECOND_GPU", second)
    case = DiagnosisState(PackageWorkload(package=tmp_path, inputs=tmp_path / "i.pt", device_index=asked))
    case.call = CallSpec("run", {"device_index": asked}, tmp_path, tmp_path / "i.pt")
    case.package = recorded("user_spread", tmp_path).package
    if asked < 0 and gpus > 1:
        assert PlainRun().gain(case, []) == 0
    case.given = Given(tuple(GivenTensor("float32", (2,), device=device) for device in devices))
    place(case)
    case.done.append("compare_inputs")
    assert case.call.request["device_index"] == placed and PlainRun().gain(case, []) > 0
    assert bool(case.notes) == (placed == 1)
