"""Tensors packed for a replay come back with the same strides, offsets, values and sharing."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.worker.tensors import (
    TooLarge,
    describe,
    pack,
    pack_leaves,
    restore,
    sharing,
    statistics,
    storage_bytes,
)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int8, torch.bool]


def through_a_file(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view into a larger storage: sliced, stepped, permuted, expanded."""
    shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    base = torch.arange(4 * 3 * max(1, torch.Size(shape).numel())).to(draw(st.sampled_from(DTYPES)))
    whole = base[draw(st.integers(0, 7)) :][: torch.Size(shape).numel()].reshape(shape)
    steps = tuple(slice(None, None, draw(st.integers(1, 3))) for _ in shape)
    view = whole[steps].permute(draw(st.permutations(range(len(shape)))))
    return view.unsqueeze(0).expand(2, *view.shape) if draw(st.booleans()) else view


@settings(max_examples=80, deadline=None)
@given(views(), st.sampled_from(["whole", "cut"]))
def test_layout_survives(tensor: torch.Tensor, how: str) -> None:
    """Whether whole storages or touched spans are kept, shape, stride and values are the same afterwards."""
    spare = torch.empty(storage_bytes([tensor]) + 1024, dtype=torch.uint8)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    tight = max(span, 0) * tensor.element_size()
    leaves = [tensor] if how == "whole" or tight >= storage_bytes([tensor]) else [tensor, spare[:0]]
    cap = storage_bytes([tensor]) if len(leaves) == 1 else max(tight, 1)
    back = through_a_file(pack_leaves(leaves, cap))[0]
    assert (back.dtype, back.shape, back.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(back, tensor)
    item = tensor.element_size()
    assert (back.storage_offset() - tensor.storage_offset()) * item % 64 == 0


def test_sharing_survives() -> None:
    """Two views of one storage still share it after the file."""
    base = torch.arange(10.0)
    leaves = through_a_file(pack_leaves([base[2:5], base[4:], torch.zeros(3)], 1 << 20))
    assert sharing(leaves) == [[0, 1]]
    leaves[0][2] = 77
    assert leaves[1][0] == 77


def test_the_tree_and_what_is_no_tensor_come_back() -> None:
    """Arguments of any built-in structure are restored; with an unknown object there are only the leaves."""
    x = torch.ones(2)
    args, kwargs = ({"b": x, "a": [x * 2, 3]},), {"flag": True}
    leaves, tree = restore(through_a_file(pack(args, kwargs, 1 << 20)))
    assert tree is not None and tree[1] == {"flag": True}
    assert list(tree[0][0]) == ["b", "a"] and tree[0][0]["a"][1] == 3 and len(leaves) == 4
    assert restore(through_a_file(pack((object(), x), {}, 1 << 20)))[1] is None


def test_the_cap_refuses_and_cuts() -> None:
    """A small view of a large storage fits a cap that the storage exceeds; a large tensor does not."""
    large = torch.zeros(1000)
    kept = pack_leaves([large[::100]], 3700)[0]
    assert storage_bytes([kept]) <= 3700 and kept.stride() == (100,)
    with pytest.raises(TooLarge):
        pack_leaves([large], 3700)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_statistics_of_every_kind_of_dtype(dtype: torch.dtype) -> None:
    """NaN and finite values are told apart in narrow and complex dtypes too."""
    values = torch.tensor([1.0, -2.0, float("nan"), 4.0]).to(dtype)
    found = statistics(values)
    assert found["nan"] == 1 and found["inf"] == 0
    if not dtype.is_complex:
        assert (found["min"], found["max"], found["mean"]) == (-2, 4, 1)


def test_statistics_without_values_or_numbers() -> None:
    """Empty tensors, all-NaN tensors and bools have what they can have."""
    assert set(statistics(torch.empty(0))) == {"checksum"}
    assert "min" not in statistics(torch.full((3,), float("nan")))
    assert describe(torch.tensor([True, False]))["max"] == 1


def test_checksums_see_values_in_logical_order() -> None:
    """A transposed copy has the checksum of the transpose, not of its memory; dtype and shape count."""
    x = torch.arange(6.0).reshape(2, 3)
    assert statistics(x.t())["checksum"] == statistics(x.t().contiguous())["checksum"]
    assert statistics(x)["checksum"] != statistics(x.reshape(3, 2))["checksum"]
