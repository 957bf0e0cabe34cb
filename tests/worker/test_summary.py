"""Counts and extremes of tensors, against a plain count in Python, and where the first bad value is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.worker.capture.events import OddElement
from mcp_server.worker.tensors import checksum, describe, first_non_finite, summary

REALS = st.lists(
    st.one_of(st.sampled_from([0.0, math.nan, math.inf, -math.inf]), st.floats(-100, 100, width=16)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(REALS, st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
def test_counts_and_extremes_are_those_of_a_plain_count(values: list[float], dtype: torch.dtype) -> None:
    """NaN, infinities and zeros are counted, and only finite values have a part in min, max and mean."""
    tensor = torch.tensor(values, dtype=dtype)
    plain = tensor.tolist()
    finite = [value for value in plain if math.isfinite(value)]
    found = summary(tensor)
    assert found.nan == sum(map(math.isnan, plain))
    assert found.inf == sum(map(math.isinf, plain))
    assert found.zero == plain.count(0.0)
    assert (found.min is not None) == bool(finite)
    if finite:
        assert (found.min, found.max) == (min(finite), max(finite))
        assert found.mean == pytest.approx(sum(finite) / len(finite), rel=1e-9, abs=1e-9)


FEW_OPERATORS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, *FEW_OPERATORS])
def test_every_kind_of_number_is_counted(dtype: torch.dtype) -> None:
    """Whole numbers, bools, complex, small floats and wide unsigned too; complex numbers have no order."""
    found = describe(torch.tensor([0.0, 1.0, 1.0]).to(dtype))
    assert (found.nan, found.inf, found.zero) == (0, 0, 1)
    assert (found.min is not None) == (not dtype.is_complex)


def test_large_whole_numbers_stay_exact() -> None:
    """int64 extremes do not pass through a float."""
    large = 2**62 + 1
    found = summary(torch.tensor([-large, large]))
    assert (found.min, found.max) == (-large, large)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.uint8]),
    st.integers(0, 3),
    st.data(),
)
def test_a_digest_tells_values_and_places(
    count: int, dtype: torch.dtype, start: int, data: st.DataObject
) -> None:
    """It changes with one value and with two places, not with where in memory the tensor begins."""
    values = (torch.arange(count + start) % 2).to(dtype)[start:]
    place = data.draw(st.integers(0, count - 1))
    changed = values.clone()
    changed[place] = 1 - int(values[place].real if dtype.is_complex else values[place])
    assert checksum(values) == checksum(values.clone()) != checksum(changed)
    if count > 1:
        assert checksum(values) != checksum(values.roll(1)) or torch.equal(values, values.roll(1))


@settings(max_examples=40, deadline=None)
@given(st.integers(60_000, 70_000), st.integers(0, 59_999), st.integers(0, 59_999), st.integers(0, 7))
def test_a_digest_of_many_words_tells_one_bit_and_two_places(
    count: int, place: int, other: int, bit: int
) -> None:
    """Sums by row and by place in the row tell what a weighted sum of all words would."""
    values = (torch.arange(count) * 7 % 251).to(torch.uint8)
    digest = checksum(values)
    for at in (place, count - 1):
        changed = values.clone()
        changed[at] ^= 1 << bit
        assert checksum(changed) != digest
    place, other = place // 8 * 8, other // 8 * 8 + other % 7  # not the highest byte of a word
    swapped = values.clone()
    swapped[[place, other]] = values[[other, place]]
    assert (checksum(swapped) == digest) == bool(values[place] == values[other])
    assert checksum(torch.cat([values[:3], values])[3:]) == digest


def test_zeros_of_both_signs_are_counted() -> None:
    """Negative zero and the smallest numbers are what they are, in a tensor of many values."""
    values = torch.tensor([0.0, -0.0, 1e-45, -3.0] * 5000)
    assert summary(values).zero == summary(values.double()).zero == 10_000


def test_digests_of_tensors_beyond_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks change nothing that is counted."""
    values = torch.arange(10.0)
    whole = summary(values)
    monkeypatch.setattr("mcp_server.worker.tensors.CHUNK", 3)
    assert summary(values) == whole


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([[1.0, 2.0], [3.0, -4.0]], None),
        ([[1.0, NAN], [INF, -4.0]], ([0, 1], "nan", 2)),
        ([[-INF, 2.0], [-INF, 4.0]], ([0, 0], "-inf", 2)),
        ([[-INF, 2.0], [NAN, 4.0]], ([1, 0], "nan", 2)),
        ([[-INF, -INF], [-INF, INF]], ([1, 1], "inf", 4)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_hides_nothing_worse(values: Any, found: Any, dtype: torch.dtype) -> None:
    """The first NaN or infinity is told before minus infinity, which a mask would hold, wherever that is."""
    first = first_non_finite(torch.tensor(values, dtype=dtype))
    wanted = None if found is None else OddElement(*found)
    assert first == wanted
