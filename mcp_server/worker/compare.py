"""Compares the outputs of two calls, or of a call and its expectation: within a tolerance, or up to rounding.

The tolerance is that of the dtype. If eager mode or a program can make the same computation, `measure` tells
rounding from a fault. The computation runs unchanged, once in float64, and several times in float64 with
random roundings. The distances of these results from the float64 result show how far rounding moves each
element. An element x, a sum of K numbers, may differ by

    eps * |x| + 8 * moves + (16 + 2 * sqrt(K)) * eps32 * (|x| + rms(x))

from float64 or from eager mode. `moves` is the root mean square of the distances, eps that of the coarser
dtype. eps32 is at most the eps of float32, because narrower values are summed in float32. With few runs,
`moves` is doubled, and raised to at least the typical value of the tensor. Each element has its own
tolerance, so that cancellation in one does not hide a fault in another.

An integer, NaN or infinity is right if eager mode or one of the runs has the same value there. If eager mode
overflowed anywhere in a tensor and float64 did not, neither overflows in this tensor nor values where eager
mode has NaN are errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .events import (
    FIRST_ELEMENTS,
    MOST_ROWS,
    Closeness,
    Compared,
    Comparison,
    ElementChange,
    ExpectedOutput,
    InputChange,
    OutputChange,
    Rounding,
)
from .report import Report
from .tensors import checksum, dtype_name, unequal, unravel, widest

# Relative and absolute tolerance of a model's output. Those of torch.testing are tighter: they are for single
# operators. Integers and bools must be equal.
TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-4, 1e-4),
    "float16": (1e-2, 1e-2),
    "bfloat16": (3e-2, 3e-2),
    "complex64": (1e-4, 1e-4),
    "complex128": (1e-7, 1e-7),
}
EIGHT_BIT = (1.5e-1, 1.5e-1)
Limits = tuple[Optional[float], Optional[float]]  # rtol and atol; None: as for the dtype
Tensors = list[torch.Tensor]


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    if dtype.is_floating_point and torch.finfo(dtype).bits == 8:
        return EIGHT_BIT
    return TOLERANCES.get(dtype_name(dtype), (0.0, 0.0))


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return widest(tensor.detach().cpu())


def compare_all(expected: Tensors, actual: Tensors) -> Compared:
    """Compare outputs pairwise. They are unequal if their dtypes or their number differ."""
    found = compare_calls("", expected, actual, (None, None))
    same = found.equal and all(want.dtype == got.dtype for want, got in zip(expected, actual))
    return Compared(same, [len(expected), len(actual)], with_distances(found, expected, actual))


def with_distances(found: Comparison, expected: Tensors, actual: Tensors) -> list[ExpectedOutput]:
    """The compared outputs with the results of `distance`."""
    outputs = []
    for each, want, got in zip(found.outputs, expected, actual):
        same = want.shape == got.shape
        by, reach = distance(want, got) if same else (None, None)
        outputs.append(ExpectedOutput(**vars(each), same_shape=same, by=by, reach=reach))
    return outputs


def equal(expected: Tensors, actual: Tensors, limits: Limits = (None, None)) -> bool:
    """Whether all outputs equal the expected ones. Dtypes may differ, as after a computation in 64 bits."""
    pairs = ((want, got.to(want.dtype)) for want, got in zip(expected, actual))
    alike = (want.shape == got.shape and not bool(_differs(got, want, limits).any()) for want, got in pairs)
    return len(expected) == len(actual) and all(alike)


def faults(outputs: Tensors, expected: Tensors | None, infinities: bool, limits: Limits) -> Tensors:
    """Masks of faulty elements: unexpected NaN (and infinities, if `infinities`) and wrong values."""
    masks = []
    for place, tensor in enumerate(outputs):
        values = wide(tensor)
        mask = ~torch.isfinite(values) if infinities else torch.isnan(values)
        if expected is not None and place < len(expected) and expected[place].shape == tensor.shape:
            want = expected[place]
            both_bad = ~torch.isfinite(values) & ~torch.isfinite(wide(want))
            mask = mask & ~both_bad | _differs(tensor, want, limits)
        masks.append(mask)
    return masks


def compare_calls(
    against: str,
    before: Tensors,
    after: Tensors,
    limits: Limits,
    masks: tuple[Tensors, Tensors] | None = None,
    by_expectation: bool = False,
) -> Comparison:
    """Compare `after` with `before`. `masks` mark the faulty elements of both.

    With `by_expectation`, a changed element that has its expected value is not `innocent`. Without `masks`,
    `before` has expected tensors, whose device and floating-point dtype may differ.
    """
    compared = []
    cured = left = new = 0
    for place, (old, now) in enumerate(zip(before, after)):
        layout = _layout(old, now, strict=masks is not None)
        if layout:
            compared.append(OutputChange(place, now.numel(), layout))
            continue
        changed = _differs(now, old, limits)
        bad = remains = innocent = torch.zeros(now.shape, dtype=torch.bool)
        if masks is not None:
            bad, remains = masks[0][place], masks[1][place]
            innocent = changed & ~bad & remains if by_expectation else changed & ~bad
        cured += int((bad & ~remains).sum())
        left += int((bad & remains).sum())
        new += int((remains & ~bad).sum())
        compared.append(_change(place, old, now, changed, innocent, bad))
    if len(before) != len(after):
        counts = "{} output tensors instead of {}".format(len(after), len(before))
        compared.append(OutputChange(len(compared), 0, counts))
    return Comparison(against, tuple(compared), cured, left, new)


def _change(
    place: int,
    old: torch.Tensor,
    now: torch.Tensor,
    changed: torch.Tensor,
    innocent: torch.Tensor,
    bad: torch.Tensor,
) -> OutputChange:
    """Count and show the elements of an output that changed, and those of them that were right before."""
    bad_rows = set(_rows(bad))
    return OutputChange(
        output=place,
        elements=now.numel(),
        changed=int(changed.sum()),
        innocent=int(innocent.sum()),
        first=_first(old, now, changed),
        first_innocent=_first(old, now, innocent),
        rows=tuple(_rows(changed)[:MOST_ROWS]),
        innocent_rows=tuple(row for row in _rows(innocent) if row not in bad_rows)[:MOST_ROWS],
    )


def faults_of_part(whole: Tensors, faulty: Tensors, part: Tensors, limits: Limits) -> int | None:
    """Count the faults of `whole` in the `part` that a call with fewer elements returned.

    Each output must equal the first or last elements of `whole` along one dimension, or all of it. Else None.
    """
    cut, bad = False, 0
    for old, mask, new in zip(whole, faulty, part):
        dims = [dim for dim, (a, b) in enumerate(zip(old.shape, new.shape)) if a != b]
        if old.dim() != new.dim() or old.dtype != new.dtype or len(dims) > 1:
            return None
        dim = dims[0] if dims else 0
        least = old.shape[dim] - new.shape[dim] if dims else 0
        starts = [start for start in dict.fromkeys((0, least)) if dims and least > 0]
        slices = [(old.narrow(dim, start, new.shape[dim]), start) for start in starts] if dims else [(old, 0)]
        same = [start for each, start in slices if not bool(_differs(new, each, limits).any())]
        if not same:
            return None
        cut = cut or bool(dims)
        bad += int((mask.narrow(dim, same[0], new.shape[dim]) if dims else mask).sum())
    return bad if cut and len(whole) == len(part) else None


def distance(want: torch.Tensor, got: torch.Tensor) -> tuple[float | None, float | None]:
    """The largest difference of finite elements, and the largest magnitude of expected ones.

    Both are None for complex tensors, and unless the same elements are finite.
    """
    wanted, found = (wide(each.detach().cpu()).reshape(-1) for each in (want, got))
    finite = torch.isfinite(wanted) & torch.isfinite(found)
    if not bool(finite.any()) or not bool((torch.isfinite(wanted) == torch.isfinite(found)).all()):
        return None, None
    by = (wanted.double() - found.double())[finite].abs().max() if not wanted.is_complex() else None
    return (None, None) if by is None else (float(by), float(wanted[finite].double().abs().max()))


def differing(first: Tensors, second: Tensors, limits: Limits) -> Tensors:
    """A mask of the differing elements for each output; none differ where the layouts do."""
    return [
        torch.zeros(now.shape, dtype=torch.bool) if _layout(old, now) else _differs(now, old, limits)
        for old, now in zip(first, second)
    ]


def input_change(place: int, before: Any, after: Any) -> InputChange | None:
    """The change of one input. None if it is unchanged."""
    if before is after or not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)):
        return None
    layout = _layout(before, after)
    if layout:
        return InputChange(place, after.numel(), 0, layout)
    changed = unequal(wide(before), wide(after))
    if before.stride() != after.stride():
        layout = "strides {} instead of {}".format(list(after.stride()), list(before.stride()))
    if not layout and not bool(changed.any()):
        return None
    return InputChange(place, after.numel(), int(changed.sum()), layout, _first(before, after, changed))


def text_of(value: torch.Tensor) -> str:
    number = value.item()
    return "{:.7g}".format(number) if isinstance(number, float) else str(number)


def _rows(mask: torch.Tensor) -> list[int]:
    if not mask.dim() or not mask.numel():
        return []
    rows: list[int] = mask.reshape(mask.shape[0], -1).any(1).nonzero().reshape(-1).tolist()
    return rows


def _first(old: torch.Tensor, now: torch.Tensor, mask: torch.Tensor) -> tuple[ElementChange, ...]:
    places = [int(place) for place in mask.reshape(-1).nonzero().reshape(-1)[:FIRST_ELEMENTS]]
    before, after, shape = wide(old).reshape(-1), wide(now).reshape(-1), tuple(now.shape)
    return tuple(
        ElementChange(tuple(unravel(place, shape)), text_of(before[place]), text_of(after[place]))
        for place in places
    )


def _differs(got: torch.Tensor, want: torch.Tensor, limits: Limits) -> torch.Tensor:
    """A mask of the elements that differ by more than the tolerance of the coarser dtype."""
    own = max(tolerance(tensor.dtype) for tensor in (got, want))
    rtol, atol = (one if asked is None else asked for one, asked in zip(own, limits))
    actual, reference = wide(got), wide(want)
    common = torch.promote_types(actual.dtype, reference.dtype)
    return ~torch.isclose(actual.to(common), reference.to(common), rtol=rtol, atol=atol, equal_nan=True)


def _layout(old: torch.Tensor, now: torch.Tensor, strict: bool = True) -> str:
    """Describe how shape, dtype or device differ. Unless `strict`, device and float dtype may differ."""
    if old.shape != now.shape:
        return "shape {} instead of {}".format(list(now.shape), list(old.shape))
    both_real = old.is_floating_point() and now.is_floating_point()
    if old.dtype != now.dtype and (strict or not both_real):
        return "dtype {} instead of {}".format(dtype_name(now.dtype), dtype_name(old.dtype))
    if strict and old.device != now.device:
        return "device {} instead of {}".format(now.device, old.device)
    return ""


NEAR = 8.0
SUMMED_EPS = 2.0**-23  # eps of float32: no kernel sums in a narrower dtype
ROUNDINGS = 16.0
GROWTH = 2.0  # the rounding error of a sum of K numbers grows by this factor times sqrt(K)
TF32_EPS = 2.0**-10  # 10 bits of mantissa in the products of float32 matrices
FEW = 4  # with fewer runs, `moves` is multiplied by FEW_MORE
FEW_MORE = 2.0
MOST = 0.95  # share of elements that only rounding moves; in the others, a comparison may flip


@dataclass(frozen=True, eq=False)
class Expected:
    """A value in eager mode and in the float64 `runs`, of which the first has no random roundings.

    Each element is a sum of `terms` numbers.
    """

    name: str
    eager: torch.Tensor
    runs: tuple[torch.Tensor, ...] = ()
    terms: float = 1.0


def measure(got: torch.Tensor, want: Expected) -> Closeness:
    """Measure how close a tensor is to the expected one. Elements are paired in row-major order."""
    device = got.device
    actual, eager, *runs = (
        widest(each.detach().to(device).reshape(-1)) for each in (got, want.eager, *want.runs)
    )
    exact = runs[0] if runs else eager
    error = torch.minimum(_away(actual, exact), _away(actual, eager))
    for each in runs:
        error[~unequal(actual, each)] = 0
    found = Closeness(want.name, actual.numel(), equal=not bool(unequal(actual, eager).any()))
    if not bool((torch.isfinite(eager) | ~torch.isfinite(exact)).all()):
        # Eager mode overflowed in this tensor. The order of its sums decides which elements overflow.
        error[(~torch.isfinite(actual) | torch.isnan(eager)) & torch.isfinite(exact)] = 0
    allowed, coarse = _allowed(got, want, eager, runs)
    ratio = error / allowed.clamp(min=1e-300)
    beyond = ratio > 1
    found.error, found.allowed, found.excess = _largest(error), _largest(allowed), _largest(ratio)
    found.eager_error = _largest(_away(eager, exact)) if runs else None
    found.beyond, found.within = int(beyond.sum()), not bool(beyond.any())
    found.within_tf32 = not bool((error > coarse).any())
    found.non_finite = int((~torch.isfinite(actual) & ~torch.isfinite(eager)).sum())
    if found.beyond:
        place = int(beyond.to(torch.uint8).argmax())
        found.first = unravel(place, tuple(want.eager.shape))
        found.values = [str(eager[place].item()), str(actual[place].item())]
    return found


def _allowed(
    got: torch.Tensor, want: Expected, eager: torch.Tensor, runs: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tolerance of each element, and its tolerance if factors are rounded to TF32."""
    eps = max(eps_of(each.dtype) for each in (got, want.eager))
    exact = runs[0] if runs else eager
    size = finite(exact)
    if not eps:
        return size * 0.0, size * 0.0
    growth = math.sqrt(max(want.terms, 1.0))
    summed = (ROUNDINGS + GROWTH * growth) * min(eps, SUMMED_EPS)
    both = size + rms(size)
    allowed = eps * size + summed * both + NEAR * moves(exact, [eager, *runs[1:]])
    if not runs:  # how far rounding moves the elements is unknown
        allowed = ROUNDINGS * eps * growth * both
    return allowed, allowed + ROUNDINGS * TF32_EPS * growth * both


def moves(exact: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """How far rounding moves each element: the root mean square of the distances from `exact`."""
    squares = torch.zeros(exact.shape, dtype=torch.float64, device=exact.device)
    for each in others:  # one at a time, because a tensor may be large
        squares += finite(each - exact).square()
    found = (squares / len(others)).sqrt()
    if len(others) < FEW and found.numel():
        most = found.kthvalue(math.ceil(MOST * found.numel())).values
        found = FEW_MORE * found.clamp(min=rms(found.clamp(max=most)))
    return found


def finite(values: torch.Tensor) -> torch.Tensor:
    """Magnitudes in float64, with 0 for values that are not finite."""
    return values.abs().double().nan_to_num(nan=0.0, posinf=0.0)


def rms(values: torch.Tensor) -> torch.Tensor:
    return values.square().mean().sqrt() if values.numel() else values.sum()


def eps_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point or dtype.is_complex else 0.0


def _away(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Absolute differences: 0 for equal infinities or two NaN, infinity for NaN in one only."""
    away = (value - reference).abs().double().nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(unequal(value, reference), away, 0.0)


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def judge(
    wanted: list[Expected], got: list[torch.Tensor], checked: list[torch.Tensor], report: Report
) -> None:
    """Report `rounding`, if the outputs have eager mode's shapes and dtypes.

    `checked` are tensors with which the user's check may have compared the outputs.
    """
    if [(one.eager.shape, one.eager.dtype) for one in wanted] != [(one.shape, one.dtype) for one in got]:
        return
    own = {checksum(tensor) for tensor in got}
    theirs = [tensor for tensor in checked if checksum(tensor) not in own]
    near = []
    for each in wanted:
        alike = [one for one in theirs if (one.shape, one.dtype) == (each.eager.shape, each.eager.dtype)]
        near += [any(measure(one, each).within for one in alike)] if alike else []
    outputs = [measure(*pair) for pair in zip(got, wanted)]
    narrow = any(each.eager.dtype in (torch.float16, torch.bfloat16) for each in wanted)
    report.event(Rounding(outputs, all(near) if near else None, narrow))
