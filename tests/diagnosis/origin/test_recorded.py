"""Origins in recorded CUDA packages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.origin.find import Fault, find_origin
from mcp_server.diagnosis.origin.values import ProbedValues, Tensor
from mcp_server.package.assertion import read_assertion
from mcp_server.package.launches import Argument, Launch
from tests.support.programs import recorded


class KnownValues(ProbedValues):
    """Tensors of a call by launch, variable and phase."""

    def __init__(
        self, tensors: Mapping[tuple[int, str, Any], torch.Tensor], sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(())
        self.tensors, self.sizes = tensors, sizes or {}

    def tensor(self, launch: int, argument: Argument, when: Any) -> Tensor | None:
        known = self.tensors.get((launch, argument.target or "", when))
        if known is None:
            return None
        flat = known.flatten().tolist()
        return Tensor(tuple(known.shape), tuple(known.stride()), lambda place: flat[place])

    def scalars(self, launch: Launch) -> Mapping[str, int]:
        return {**self.sizes, **super().scalars(launch)}


def test_a_computed_index(tmp_path: Path) -> None:
    """The device assertion of a Triton kernel leads to `x * 2 + 1` and to the id that is too large."""
    view = recorded("computed_index", tmp_path)
    ids = torch.arange(12)
    ids[7] = 30
    assertion = read_assertion("Assertion `index out of bounds: 0 <= tmp8 < 40` failed.")
    assert assertion is not None
    (candidate,) = view.tracer.trace(assertion)
    known = KnownValues({(candidate.launch.index, "arg3_1", "before"): ids}, {"ynumel": 12})
    found = find_origin(view, Fault.of_candidate(candidate), known)
    assert found is not None
    assert (found.expression, found.bad_value) == ("x * 2 + 1", "61")
    assert found.allowed == "0 to 39 (the rows of table.weight)"
    assert [each.text() for each in found.elements] == ["args[0][7] = 30"]
    assert found.condition is not None
    assert (found.condition.low, found.condition.good) == (20, 19)


def test_a_logarithm_of_a_negative_number(tmp_path: Path) -> None:
    """The NaN of a fused kernel is the logarithm's, not the product's; it is finite above zero only."""
    view = recorded("logarithm", tmp_path)
    launch = next(each for each in view.wrapper.launches if "log" in each.kernel)
    tensors = {a.name: a.target or "" for a in launch.tensors}
    scale = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.1
    scale[2, 3] = -1.0
    result = torch.zeros(8, 16)
    result[2, 3] = float("nan")
    known = KnownValues(
        {
            (launch.index, tensors["in_ptr0"], "before"): torch.ones(16),
            (launch.index, tensors["in_out_ptr0"], "before"): torch.ones(8, 16),
            (launch.index, tensors["in_ptr1"], "before"): scale,
            (launch.index, tensors["in_out_ptr0"], "after"): result,
        },
        {"xnumel": 128},
    )
    fault = Fault(launch.index, "value", buffer=tensors["in_out_ptr0"], element=(2, 3), when="after")
    found = find_origin(view, fault, known)
    assert found is not None
    assert found.explanation == "log(-1) is nan"
    assert found.operation is not None and found.operation.launch_index == launch.index
    assert (found.operation.family, found.operation.text) == ("log", "log(-1)")
    assert "log(" in found.expression and found.bad_value == "nan"
    assert found.condition is not None and found.condition.text.startswith("the expression is not finite for")
    assert found.condition.high == 0


@pytest.mark.parametrize("bad", [float("nan"), 1.0])
def test_a_sum_of_atomic_additions(bad: float, tmp_path: Path) -> None:
    """Two values are added up at row 5: the one that is not finite is named, none if both are finite."""
    view = recorded("scatter", tmp_path)
    launch = next(
        each for each in view.wrapper.launches if "index_put" in each.kernel and len(each.reads) > 1
    )
    tensors = {a.name: a.target or "" for a in launch.tensors}
    added, result = torch.ones(8), torch.ones(12)
    added[3], result[5] = bad, float("nan")
    known = KnownValues(
        {
            (launch.index, tensors["in_ptr0"], "before"): torch.tensor([0, 5, 2, 5, 4, 1, 6, 7]),
            (launch.index, tensors["in_ptr1"], "before"): added,
            (launch.index, tensors["out_ptr0"], "after"): result,
        },
        {"xnumel": 8},
    )
    fault = Fault(launch.index, "value", buffer=tensors["out_ptr0"], element=(5,), when="after")
    found = find_origin(view, fault, known)
    if math.isfinite(bad):
        assert found is None
    else:
        assert found is not None and found.bad_value == "nan"
        assert [(each.index, each.value) for each in found.elements] == [([3], "nan")]


def argument(name: str) -> Argument:
    return Argument(0, "in_ptr0", name, 0, 0, "buffer", name, "read")
