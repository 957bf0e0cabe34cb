"""Inputs and constants on another CUDA device than the package: no check of torch compares the index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mcp_server.diagnosis.case import Case, CounterResult
from mcp_server.diagnosis.detectors import constants, contract
from mcp_server.diagnosis.judge import confidence
from mcp_server.package.match import compare_inputs
from tests.conftest import ZooPackage
from tests.diagnosis.support import GOOD_IDS, called, capture, failing, package_case, phase, run

FAULT = "CUDA error: an illegal memory access was encountered"


def on_second_card(zoo: ZooPackage) -> Case:
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
    (found,) = contract.detect(case)
    assert (found.category, found.guilty.input_index, found.weak) == ("device_mismatch", 0, False)
    assert found.counter is not None
    assert found.counter.changes == ({"change": "move", "input": 0, "device": "cuda:0"},)
    case.counters[found.counter.key] = CounterResult(passed=True, what="moved")
    assert confidence(found, case) == "proven"


def test_a_call_that_works_with_an_input_elsewhere_is_no_fault(zoo: ZooPackage) -> None:
    """Cards that reach each other's memory compute the right numbers."""
    case = on_second_card(zoo)
    case.runs["plain"] = run("plain", "", called())
    (found,) = contract.detect(case)
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
    told = [h for h in constants.detect(case) if (h.guilty.value or "").startswith("device")]
    assert [(h.guilty.value or "").split("compiled: ")[1].rstrip(")") for h in told] == names
