"""Origins in recorded CUDA packages, and values that probes saved, read element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mcp_server.diagnosis.origin.find import Fault, find_origin
from mcp_server.diagnosis.origin.values import Phase, ProbedValues, Tensor
from mcp_server.model import Artifact
from mcp_server.package.assertion import read_assertion
from mcp_server.package.launches import Argument, Launch
from mcp_server.tools.kernel_io import ArgumentValues, LaunchValues
from tests.support.origins import recorded


class KnownValues(ProbedValues):
    """Tensors of a call by launch, variable and phase."""

    def __init__(
        self, tensors: Mapping[tuple[int, str, Phase], torch.Tensor], sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(())
        self.tensors, self.sizes = tensors, sizes or {}

    def tensor(self, launch: int, argument: Argument, when: Phase) -> Tensor | None:
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


DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def argument(name: str) -> Argument:
    return Argument(0, "in_ptr0", name, 0, 0, "buffer", name, "read")


def saved(folder: Path, tensor: torch.Tensor, more: Mapping[str, object] | None = None) -> ProbedValues:
    """Values of one launch that read one tensor."""
    path = folder / "t.safetensors"
    save_file({"buf0": tensor.contiguous()}, str(path))
    seen = ArgumentValues(
        name="buf0",
        when="before",
        parameter="in_ptr0",
        shape=list(tensor.shape),
        stride=list(tensor.stride()),
        saved=Artifact(uri="x://t", path=path, bytes=path.stat().st_size, what="tensor"),
    ).model_copy(update=dict(more or {}))
    return ProbedValues([LaunchValues(kernel="k", sequence=0, launch=3, arguments=[seen])])


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_read(name: str, tmp_path: Path) -> None:
    """The values of a file are those of the tensor, in every type that a kernel indexes or computes with."""
    tensor = (torch.arange(12).reshape(3, 4) - 4).to(getattr(torch, name))
    found = saved(tmp_path, tensor).tensor(3, argument("buf0"), "before")
    assert found is not None
    assert [found.value(index) for index in found.indices()] == tensor.flatten().tolist()


def test_what_was_not_seen_is_not_known(tmp_path: Path) -> None:
    """Another launch or phase, memory that nothing has set, and places outside have no value."""
    values = saved(tmp_path, torch.arange(3))
    assert values.tensor(4, argument("buf0"), "before") is None
    assert values.tensor(3, argument("buf0"), "after") is None
    found = values.tensor(3, argument("buf0"), "before")
    assert found is not None and found.value((3,)) is None and found.value_at(-1) is None
    unset = saved(tmp_path, torch.arange(3), {"uninitialised": True})
    assert unset.tensor(3, argument("buf0"), "before") is None


def test_a_damaged_file_has_no_values(tmp_path: Path) -> None:
    """A file that was cut short, and one that is no safetensors file, lead to no value and no error."""
    values = saved(tmp_path, torch.arange(30))
    path = tmp_path / "t.safetensors"
    for damaged in (path.read_bytes()[:-100], b"junk", b""):
        path.write_bytes(damaged)
        found = ProbedValues(values.launches).tensor(3, argument("buf0"), "before")
        assert found is not None and found.value((29,)) is None
