"""Compares the outputs of two calls, or of a call and its expectation, within a tolerance for each dtype."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .events import (
    FIRST_ELEMENTS,
    MOST_ROWS,
    Compared,
    Comparison,
    ElementChange,
    ExpectedOutput,
    InputChange,
    OutputChange,
)
from .tensors import dtype_name, unequal, unravel, widest

# Relative and absolute tolerance of one model's output: looser than torch.testing's defaults, which are meant
# for single operators; integers and bools must be equal.
TOLERANCES = {
    "float64": (1e-7, 1e-7),
    "float32": (1e-4, 1e-4),
    "float16": (1e-2, 1e-2),
    "bfloat16": (3e-2, 3e-2),
    "complex64": (1e-4, 1e-4),
    "complex128": (1e-7, 1e-7),
}
EIGHT_BIT = (1.5e-1, 1.5e-1)
Limits = tuple[Optional[float], Optional[float]]  # rtol and atol; None takes the dtype's
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
    """The compared outputs with their distances."""
    outputs = []
    for each, want, got in zip(found.outputs, expected, actual):
        same = want.shape == got.shape
        by, reach = distance(want, got) if same else (None, None)
        outputs.append(ExpectedOutput(**vars(each), same_shape=same, by=by, reach=reach))
    return outputs


def equal(expected: Tensors, actual: Tensors, limits: Limits = (None, None)) -> bool:
    """Whether all outputs equal the expected ones, also in dtype: a wider operator may have changed them."""
    pairs = ((want, got.to(want.dtype)) for want, got in zip(expected, actual))
    alike = (want.shape == got.shape and not bool(_differs(got, want, limits).any()) for want, got in pairs)
    return len(expected) == len(actual) and all(alike)


def faults(outputs: Tensors, expected: Optional[Tensors], infinities: bool, limits: Limits) -> Tensors:
    """Masks of the faulty elements: NaN, infinite with `infinities`, or different from the expected ones."""
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
    masks: Optional[tuple[Tensors, Tensors]] = None,
    by_expectation: bool = False,
) -> Comparison:
    """Compare `after` with `before`; `masks` are the faulty elements of each.

    With `by_expectation`, a changed element that meets the expectation is no side effect. Without masks,
    `before` are expected tensors, whose device and floating-point dtype may differ.
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
        bad_rows = set(_rows(bad))
        compared.append(
            OutputChange(
                output=place,
                elements=now.numel(),
                changed=int(changed.sum()),
                innocent=int(innocent.sum()),
                first=_first(old, now, changed),
                first_innocent=_first(old, now, innocent),
                rows=tuple(_rows(changed)[:MOST_ROWS]),
                innocent_rows=tuple(row for row in _rows(innocent) if row not in bad_rows)[:MOST_ROWS],
            )
        )
    if len(before) != len(after):
        counts = "{} output tensors instead of {}".format(len(after), len(before))
        compared.append(OutputChange(len(compared), 0, counts))
    return Comparison(against, tuple(compared), cured, left, new)


def faults_of_part(whole: Tensors, faulty: Tensors, part: Tensors, limits: Limits) -> Optional[int]:
    """The number of faults in the part that a call with fewer elements gives; None if it is no such part.

    Each output has the values of the first or last elements along one dimension, or is unchanged.
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


def distance(want: torch.Tensor, got: torch.Tensor) -> tuple[Optional[float], Optional[float]]:
    """The largest difference between finite elements (`by`), and the largest expected one (`reach`)."""
    wanted, found = (wide(each.detach().cpu()).reshape(-1) for each in (want, got))
    finite = torch.isfinite(wanted) & torch.isfinite(found)
    if not bool(finite.any()) or not bool((torch.isfinite(wanted) == torch.isfinite(found)).all()):
        return None, None
    by = (wanted.double() - found.double())[finite].abs().max() if not wanted.is_complex() else None
    return (None, None) if by is None else (float(by), float(wanted[finite].double().abs().max()))


def differing(first: Tensors, second: Tensors, limits: Limits) -> Tensors:
    """For each output, a mask of the elements that differ between two calls; empty if layouts differ."""
    return [
        torch.zeros(now.shape, dtype=torch.bool) if _layout(old, now) else _differs(now, old, limits)
        for old, now in zip(first, second)
    ]


def input_change(place: int, before: Any, after: Any) -> Optional[InputChange]:
    """The change of one input; None if it is the same."""
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
    """Mask of the elements that differ by more than the tolerance of the coarser dtype."""
    own = max(tolerance(tensor.dtype) for tensor in (got, want))
    rtol, atol = (one if asked is None else asked for one, asked in zip(own, limits))
    actual, reference = wide(got), wide(want)
    common = torch.promote_types(actual.dtype, reference.dtype)
    return ~torch.isclose(actual.to(common), reference.to(common), rtol=rtol, atol=atol, equal_nan=True)


def _layout(old: torch.Tensor, now: torch.Tensor, strict: bool = True) -> str:
    """How shape, dtype or device differ. Unless `strict`, device and floating-point dtype may differ."""
    if old.shape != now.shape:
        return "shape {} instead of {}".format(list(now.shape), list(old.shape))
    both_real = old.is_floating_point() and now.is_floating_point()
    if old.dtype != now.dtype and (strict or not both_real):
        return "dtype {} instead of {}".format(dtype_name(now.dtype), dtype_name(old.dtype))
    if strict and old.device != now.device:
        return "device {} instead of {}".format(now.device, old.device)
    return ""
