"""Comparing outputs: what is equal or within the tolerance of rounding, and what is told of a difference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.worker.compare import compare, faults_of_part, tolerance
from mcp_server.worker.eager_values import Expected, measure
from mcp_server.worker.encode import BY_OPERATOR, decode, encode

INF, NAN = math.inf, math.nan


def test_a_difference_has_its_size() -> None:
    """One element off is counted in the middle of a matrix, with the largest error."""
    want = torch.zeros(3, 4)
    got = want.clone()
    got[1, 2] = 0.5
    found = compare(want, got)
    assert not found.equal and found.differing == 1 and found.max_abs == 0.5


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([math.inf], [math.inf], True),
        ([math.inf], [-math.inf], False),
        ([1.0], [1.00005], True),
        ([1.0], [1.001], False),
    ],
)
def test_nan_infinity_and_tolerance(want: list[float], got: list[float], equal: bool) -> None:
    """NaN equals NaN only; infinities need their sign; float32 has 1e-4."""
    assert compare(torch.tensor(want), torch.tensor(got)).equal is equal


def test_dtypes() -> None:
    """Whole numbers must be equal, large ones too; another dtype or shape is a difference by itself."""
    large = torch.tensor([2**60])
    assert not compare(large, large + 1).equal and compare(large, large.clone()).equal
    assert not compare(torch.zeros(2), torch.zeros(2, dtype=torch.float64)).equal
    assert not compare(torch.zeros(2), torch.zeros(3)).equal
    assert tolerance(torch.bfloat16)[0] > tolerance(torch.float16)[0] > tolerance(torch.float32)[0]
    assert compare(torch.empty(0), torch.empty(0)).equal
    assert compare(torch.tensor([1 + 1j]), torch.tensor([1 + 1j])).equal


def test_asked_limits_replace_those_of_the_dtype() -> None:
    """Given tolerances are used, each on its own."""
    want, got = torch.tensor([1.0]), torch.tensor([1.01])
    assert compare(want, got, (0.1, None)).equal
    assert not compare(want, got, (0.0, 0.001)).equal


def test_operators_in_options_survive_json() -> None:
    """Options keyed by operators come back as the operators; what cannot be written is marked."""
    configs = {BY_OPERATOR: {torch.ops.aten.relu.default: ["void f()"]}, "max_autotune": True}
    names, exact = encode(configs)
    assert exact and decode(names) == configs
    assert not encode({"post_grad_custom_pre_pass": lambda graph: graph})[1]


def product(seed: int, terms: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, Expected]:
    """Two factors and what eager makes of them, with its float64 reference."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(4, terms, generator=generator).to(dtype)
    right = torch.randn(terms, 4, generator=generator).to(dtype)
    exact = left.double() @ right.double()
    return left, right, Expected("mm", left @ right, exact, float(terms))


def in_pieces(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same product summed in float32, as kernels do, one term after another, which rounds most."""
    total = torch.zeros(left.shape[0], right.shape[1])
    for k in range(left.shape[1]):
        total = total + left[:, k : k + 1].float() * right[k : k + 1].float()
    return total.to(left.dtype)


def tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Floats cut to 10 bits of mantissa."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 300), st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_order_of_a_sum_is_rounding(seed: int, terms: int, dtype: torch.dtype) -> None:
    """A product summed in another order is within the tolerance, for any length and dtype."""
    left, right, want = product(seed, terms, dtype)
    assert measure(in_pieces(left, right), want, 1.0).within


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(16, 300))
def test_one_wrong_term_is_an_error(seed: int, terms: int) -> None:
    """A factor that is off by a tenth departs, and TF32 does not explain it."""
    left, right, want = product(seed, terms, torch.float32)
    spoiled = left.clone()
    spoiled[1] += 0.1 * torch.where(spoiled[1] < 0, -1.0, 1.0)
    found = measure(spoiled @ right, want, 1.0)
    assert not found.within and found.first[0] == 1 and found.beyond <= 4


def test_tf32_products_are_told_apart() -> None:
    """Factors cut to TF32 are beyond the tolerance of float32, and within that of TF32."""
    left, right, want = product(3, 64, torch.float32)
    found = measure(tf32(left) @ tf32(right), want, 1.0)
    assert (found.within, found.within_tf32) == (False, True)


@pytest.mark.parametrize(
    ("value", "wanted", "within"),
    [(NAN, NAN, True), (INF, INF, True), (-INF, INF, False), (NAN, 1.0, False), (INF, 1.0, False)],
)
def test_nonfinite_values(value: float, wanted: float, within: bool) -> None:
    """NaN and infinities agree with themselves only."""
    eager = torch.tensor([1.0, wanted])
    found = measure(torch.tensor([1.0, value]), Expected("n", eager, eager.double(), 1.0), 1.0)
    assert found.within is within and found.first == ([] if within else [1])


def test_a_narrow_dtype_does_not_hide_an_error() -> None:
    """A bfloat16 product of two thousand terms that is off by a fifth departs."""
    left, right, want = product(5, 2000, torch.bfloat16)
    assert not measure((in_pieces(left, right) * 1.2), want, 1.0).within


def test_terms_that_cancel_leave_their_rounding() -> None:
    """A mean of nothing but rounding is judged by what it is a mean of, not by its own size."""
    eager, off = torch.full((8,), 1e-9), torch.full((8,), -1e-8)
    found = [
        measure(off, Expected("mean", eager, eager.double(), 400.0, noise), 1.0).within
        for noise in (0.0, 3e-9)
    ]
    assert found == [False, True]


@pytest.mark.parametrize(
    ("eager", "got", "within"), [(INF, NAN, True), (INF, 7.0, False), (1.0, INF, True), (NAN, 0.0, True)]
)
def test_an_overflow_of_eager_is_no_reference(eager: float, got: float, within: bool) -> None:
    """Where eager cannot hold the tensor, one more element that overflows is no error; a wrong number is, but
    where eager made NaN of an infinity."""
    exact = torch.tensor([1e39, 1e39 if eager == INF else 1.0], dtype=torch.float64)
    want = Expected("sum", torch.tensor([INF, eager]), exact, 1.0)
    assert measure(torch.tensor([INF, got]), want, 1.0).within is within


def test_what_eager_says_too_is_right() -> None:
    """An element on the other side of a step in float64 agrees when it is the one that eager has."""
    want = Expected("floor", torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0]).double(), 1.0)
    assert measure(torch.tensor([3.0, 1.0]), want, 1.0).error == 0.0


def test_whole_numbers_must_be_equal() -> None:
    """One index that is off by one is told with its place and both values."""
    want = Expected("argmax", torch.tensor([[3, 1], [2, 0]]), None, 1.0)
    found = measure(torch.tensor([[3, 1], [1, 0]]), want, 1.0)
    assert (found.within, found.first, found.values) == (False, [1, 0], ["2", "1"])


def test_the_factor_widens_the_tolerance() -> None:
    """What departs at 1 is within at 1000."""
    want = Expected("n", torch.ones(4), torch.ones(4, dtype=torch.float64), 1.0)
    off = torch.ones(4) + 1e-4
    assert [measure(off, want, factor).within for factor in (1.0, 1000.0)] == [False, True]


def test_nan_on_both_sides_is_equal_and_counted() -> None:
    """The same bits but for NaN are equal, and how much is finite nowhere is told."""
    eager = torch.tensor([1.0, NAN, INF])
    found = measure(eager.clone(), Expected("n", eager, eager.double(), 1.0), 1.0)
    assert (found.equal, found.within, found.non_finite) == (True, True, 2)
    assert not measure(torch.tensor([2.0, NAN, INF]), Expected("n", eager, None, 1.0), 1.0).equal


@given(
    rows=st.integers(2, 9),
    kept=st.integers(1, 9),
    last=st.booleans(),
    bad=st.sets(st.integers(0, 8)),
    changed=st.booleans(),
)
def test_a_call_with_fewer_rows_is_a_part_of_the_whole(
    rows: int, kept: int, last: bool, bad: set[int], changed: bool
) -> None:
    """Exactly the rows of the part count their faults; another value, or no fewer rows, is no part."""
    kept = min(kept, rows)
    whole = torch.arange(rows * 3.0).reshape(rows, 3)
    faulty = torch.zeros(rows, 3, dtype=torch.bool)
    faulty[[row for row in bad if row < rows]] = True
    start = rows - kept if last else 0
    part = whole[start : start + kept] + (1.0 if changed else 0.0)
    found = faults_of_part([whole], [faulty], [part], (None, None))
    if changed or kept == rows:
        assert found is None
    else:
        assert found == 3 * sum(start <= row < start + kept for row in bad)
