"""Tensors that probes saved are read element by element, by index and by offset from a pointer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from mcp_server.diagnosis.origin.values import ProbedValues, Tensor
from mcp_server.model import Artifact
from mcp_server.package.launches import Argument
from mcp_server.tools.kernel_io import ArgumentValues, LaunchValues

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


def test_a_transposed_tensor_is_read_by_its_strides(tmp_path: Path) -> None:
    """A file is in row-major order, a kernel counts from its pointer: the strides lie between."""
    tensor = torch.arange(12).reshape(3, 4).t()
    found = saved(tmp_path, tensor).tensor(3, argument("buf0"), "before")
    assert found is not None
    assert [found.value_at(offset) for offset in range(12)] == list(range(12))


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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.randoms())
def test_offsets_and_indices_belong_together(sizes: list[int], order: object) -> None:
    """Whatever the order of the dimensions in memory, the index of an offset lies at that offset."""
    axes = list(range(len(sizes)))
    order.shuffle(axes)  # type: ignore[attr-defined]
    tensor = torch.empty([sizes[axis] for axis in axes]).permute(
        [axes.index(axis) for axis in range(len(axes))]
    )
    found = Tensor(tuple(tensor.shape), tuple(tensor.stride()), lambda _place: 0)
    for index in found.indices():
        assert found.index(found.offset(index)) == index
