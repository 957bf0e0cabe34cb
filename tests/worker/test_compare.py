"""Comparing outputs: what is equal, what rounding does, and what the summary of a tensor counts."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mcp_server.runtime.context import read_events
from mcp_server.worker import events
from mcp_server.worker.compare import Expected, compare_all, equal, faults_of_part, judge, measure, tolerance
from mcp_server.worker.eager_values import expectations
from mcp_server.worker.report import OddElement, Report
from mcp_server.worker.tensors import first_non_finite, summary
from tests.worker.support import Of
from tests.zoo.names import few

# Comparing outputs.

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([INF], [INF], True),
        ([INF], [-INF], False),
        ([1.0], [1.00005], True),
        ([1.0], [1.001], False),
        ([2**60], [2**60], True),
        ([2**60], [2**60 + 1], False),
        ([1 + 1j], [1 + 1j], True),
        ([], [], True),
        ([1.0], [1], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_what_is_equal(want: list[Any], got: list[Any], same: bool) -> None:
    """NaN equals only NaN, infinities need the same sign, float32 has 1e-4, integers must be equal.

    Another dtype or shape is a difference.
    """
    assert compare_all([torch.tensor(want)], [torch.tensor(got)]).equal is same
    assert tolerance(torch.bfloat16)[0] > tolerance(torch.float16)[0] > tolerance(torch.float32)[0]


def test_asked_limits_replace_those_of_the_dtype() -> None:
    """Each given tolerance replaces its default. A difference has its count and size."""
    want, got = torch.tensor([1.0]), torch.tensor([1.01])
    assert equal([want], [got], (0.1, None))
    assert not equal([want], [got], (0.0, 0.001))
    found = compare_all([torch.zeros(2, 2)], [torch.tensor([[0.0, 0.0], [0.5, 0.0]])])
    assert not found.equal and (found.outputs[0].changed, found.outputs[0].by) == (1, 0.5)


def product(seed: int, terms: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, Expected]:
    """Two factors, and their product in eager mode with its float64 reference."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(4, terms, generator=generator).to(dtype)
    right = torch.randn(terms, 4, generator=generator).to(dtype)
    exact = left.double() @ right.double()
    return left, right, Expected("mm", left @ right, (exact,), float(terms))


def in_pieces(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product summed in float32 one term after another, which rounds most."""
    total = torch.zeros(left.shape[0], right.shape[1])
    for k in range(left.shape[1]):
        total = total + left[:, k : k + 1].float() * right[k : k + 1].float()
    return total.to(left.dtype)


def tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Cut floats to a mantissa of 10 bits."""
    return (tensor.view(torch.int32) & ~0x1FFF).view(torch.float32)


@settings(deadline=None, max_examples=few(60))
@given(st.integers(0, 10_000), st.integers(1, 300), st.sampled_from([torch.float32, torch.bfloat16]))
def test_order_is_rounding_and_one_wrong_term_is_not(seed: int, terms: int, dtype: torch.dtype) -> None:
    """This holds for any length. A float32 factor off by a tenth diverges, and TF32 does not explain it."""
    left, right, want = product(seed, terms, dtype)
    assert measure(in_pieces(left, right), want).within
    if terms >= 16 and dtype is torch.float32:
        left[1] += 0.1 * torch.where(left[1] < 0, -1.0, 1.0)
        found = measure(left @ right, want)
        assert not found.within and found.first[0] == 1 and found.beyond <= 4


def test_tf32_and_narrow_products_are_told_apart() -> None:
    """Factors cut to TF32 fit only its tolerance. 2000 terms of bfloat16 do not hide an error of a fifth."""
    left, right, want = product(3, 64, torch.float32)
    found = measure(tf32(left) @ tf32(right), want)
    assert (found.within, found.within_tf32) == (False, True)
    left, right, want = product(5, 2000, torch.bfloat16)
    assert not measure((in_pieces(left, right) * 1.2), want).within


def expected(eager: list[float], exact: list[float] | None = None, noise: float = 0.0) -> Expected:
    values = torch.tensor(eager)
    exact_values = values.double() if exact is None else torch.tensor(exact, dtype=torch.float64)
    return Expected("node", values, (exact_values, exact_values + noise))


OVERFLOWS = [1e39, 1.0]
MEASURED: dict[str, tuple[list[float], Expected, bool]] = {
    "nan": ([1.0, NAN], expected([1.0, NAN]), True),
    "infinity": ([1.0, INF], expected([1.0, INF]), True),
    "another infinity": ([1.0, -INF], expected([1.0, INF]), False),
    "nan for a number": ([1.0, NAN], expected([1.0, 1.0]), False),
    "infinity for a number": ([1.0, INF], expected([1.0, 1.0]), False),
    # If eager overflows, one more overflow is not an error. A wrong number is, unless eager computed NaN
    # from infinity.
    "nan where eager overflows": ([INF, NAN], expected([INF, INF], [1e39, 1e39]), True),
    "a number where eager overflows": ([INF, 7.0], expected([INF, INF], [1e39, 1e39]), False),
    "one more that overflows": ([INF, INF], expected([INF, 1.0], OVERFLOWS), True),
    "where eager made nan": ([INF, 0.0], expected([INF, NAN], OVERFLOWS), True),
    # A mean that consists of rounding is judged by the size of its terms, and not by its own.
    "terms that cancel": ([-1e-8] * 8, expected([1e-9] * 8), False),
    "terms that cancel, with their noise": ([-1e-8] * 8, expected([1e-9] * 8, noise=3e-9), True),
    # Eager agrees, although float64 is on the other side of a step.
    "what eager says too": ([3.0, 1.0], expected([3.0, 1.0], [2.0, 1.0]), True),
    "beyond the tolerance": ([1.0001], expected([1.0]), False),
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_is_within_the_tolerance(name: str) -> None:
    """NaN and infinities equal only themselves. Eager is a reference where it can represent the values."""
    got, want, within = MEASURED[name]
    found = measure(torch.tensor(got), want)
    assert found.within is within and bool(found.first) is not within


@given(
    rows=st.integers(2, 9),
    kept=st.integers(1, 9),
    last=st.booleans(),
    bad=st.sets(st.integers(0, 8)),
    changed=st.booleans(),
)
def test_fewer_rows_are_a_part_of_all(rows: int, kept: int, last: bool, bad: set[int], changed: bool) -> None:
    """Only the faults in the part's rows count. Another value, or as many rows, is not a part."""
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


# Rounding or a wrong value.

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def chain(x: torch.Tensor) -> torch.Tensor:
    """Eager rounds each operator; a fused kernel keeps float32."""
    for _ in range(5):
        x = x * 1.7 - torch.sin(x * 2.0)
        x = x / (1 + x.abs())
    return x * 8


def cancels(x: torch.Tensor) -> torch.Tensor:
    """The first row is only rounding; the others are well conditioned."""
    big = x * 1000 + 1
    return torch.cat([(big[:1] - x[:1] * 1000) - 1, x[1:] * 2])


class Block(nn.Module):  # type: ignore[misc]
    """Products, a softmax, a norm, and an index."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.left = nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(x @ self.left @ x.transpose(-1, -2), -1)
        x = self.norm(x + scores @ x)
        return x, x.argmax(-1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: Of(chain),
    "block": Block,
    "cancels": lambda: Of(cancels),
}


@cache
def exported(name: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    return torch.export.export(model, (torch.randn(8, 16).to(dtype),)).module()


def program_outputs(module: Any, x: torch.Tensor, directory: Path) -> Any:
    return expectations(module, [x], Report(str(directory / "report.jsonl")), rounded=8)


def computed(name: str, seed: int, dtype: torch.dtype, directory: Path) -> tuple[list[Expected], list[Any]]:
    """A program's outputs, and those of a package that keeps all results in float32."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
    found = program_outputs(exported(name, dtype), x, directory).outputs
    assert all(len(each.runs) > 4 for each in found)
    wide = MODELS[name]().float()
    wide.load_state_dict({key: value.float() for key, value in exported(name, dtype).state_dict().items()})
    with torch.no_grad():
        made = wide(x.float())
    made = made if isinstance(made, tuple) else (made,)
    return found, [tensor.to(one.eager.dtype) for tensor, one in zip(made, found, strict=True)]


CASES = (st.sampled_from(sorted(MODELS)), st.integers(0, 10_000), st.sampled_from(DTYPES))


@settings(deadline=None, max_examples=few(40))
@given(*CASES, st.integers(16, 127), st.sampled_from((0.0, math.inf, math.nan, -1.0)))
def test_fewer_roundings_are_rounding_and_one_wrong_element_is_not(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    seed: int,
    dtype: torch.dtype,
    place: int,
    value: float,
) -> None:
    """A kernel that keeps intermediate results in float32 is not accused, in any dtype.

    One element that is lost, negated or not finite is found among 128.
    """
    found, made = computed(name, seed, dtype, tmp_path_factory.mktemp("rounding"))
    floats = [pair for pair in zip(found, made, strict=True) if pair[1].is_floating_point()]
    assert [measure(tensor, one).beyond for one, tensor in floats] == [0] * len(floats)
    spoilt = made[0].clone().reshape(-1)
    before = float(spoilt[place])
    spoilt[place] = -before if value == -1.0 else value
    # What rounding may do to the element itself: a value of that size is none of this test.
    moves = max(float((one - found[0].runs[0]).abs().reshape(-1)[place]) for one in found[0].runs)
    rounding = max(moves, float((made[0] - found[0].eager).abs().max()))
    if not math.isfinite(value) or abs(before) > 20 * rounding:
        assert measure(spoilt.reshape(made[0].shape), found[0]).beyond == 1


def test_what_rounding_explains_hides_no_other_element(tmp_path: Path) -> None:
    """A row that is only rounding may have any near value. An index must be one that was observed."""
    found, (made,) = computed("cancels", 3, torch.bfloat16, tmp_path)
    assert float((found[0].eager - found[0].runs[0])[0].abs().max()) > 0.9  # the row is only rounding
    assert measure(found[0].eager, found[0]).beyond == 0
    made[4, 4] *= 1.5
    assert measure(made, found[0]).beyond == 1
    (_, index), _ = computed("block", 5, torch.bfloat16, tmp_path)
    assert measure(index.eager, index).beyond == 0 < measure((index.eager + 1) % 16, index).beyond


def test_random_numbers_are_not_judged(tmp_path: Path) -> None:
    """If eager differs from run to run, a difference proves nothing."""
    module = torch.export.export(Of(lambda x: x + torch.rand_like(x)), (torch.ones(8),)).module()
    assert not program_outputs(module, torch.ones(8), tmp_path).steady


@pytest.mark.parametrize(("reference", "near"), [("eager", True), ("other", False), ("own", None)])
def test_the_reference_of_a_check_is_judged_too(tmp_path: Path, reference: str, near: bool | None) -> None:
    """A check against eager is explained by rounding, against another model not; against itself, unknown."""
    found, (made,) = computed("chain", 1, torch.bfloat16, tmp_path)
    checked = {"eager": found[0].eager, "other": found[0].eager + 1, "own": made.clone()}[reference]
    report = tmp_path / "judged.jsonl"
    judge(found, [made], [checked], Report(str(report)))
    (event,) = read_events(report)
    assert isinstance(event, events.Rounding)
    assert event.reference is near and event.narrow
    assert [each.beyond for each in event.outputs] == [0]


# Counts and extremes of tensors, compared with plain Python, and the first bad value.

REALS = st.lists(
    st.one_of(st.sampled_from([0.0, math.nan, math.inf, -math.inf]), st.floats(-100, 100, width=16)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=few(60), deadline=None)
@given(REALS, st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
def test_counts_and_extremes_are_those_of_a_plain_count(values: list[float], dtype: torch.dtype) -> None:
    """NaN, infinities and zeros are counted. Min, max and mean are of finite values only."""
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
    """The first NaN or infinity is found before minus infinity, which may be a mask, wherever that is."""
    first = first_non_finite(torch.tensor(values, dtype=dtype))
    wanted = None if found is None else OddElement(found[1], found[0], found[2])
    assert first == wanted
