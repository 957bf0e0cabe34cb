"""Compares the outputs of two calls, and searches for the fewest changed elements that cure a failing call.

The search is delta debugging (Zeller and Hildebrandt, 2002) over the elements that a change alters: it tries
parts and their complements, in ever smaller parts, with the call as the test.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from .compare import Limits, tolerance, wide
from .inputs import load_file
from .report import Refused
from .tensors import checksum, nonfinite, unravel
from .trial_facts import (
    FIRST_ELEMENTS,
    MOST_ROWS,
    Comparison,
    ElementChange,
    InputChange,
    OutputChange,
    OutputFacts,
)

EXPECTATION = "a file of torch.save with one tensor for each output"


def facts_of(tensor: torch.Tensor) -> OutputFacts:
    """Layout, counts of NaN and infinities, and a digest."""
    counts = nonfinite(tensor)
    return OutputFacts(
        tuple(tensor.shape),
        _name(tensor.dtype),
        str(tensor.device),
        counts["nan"],
        counts["inf"],
        checksum(tensor),
    )


def expectation(path: str) -> list[torch.Tensor]:
    """The tensors that a file says are right: those of any tree, or `expected` of a kept comparison.

    Raises `Refused` for a file that cannot be read, or holds no tensor.
    """
    try:
        found = load_file(path)
    except Refused as refused:
        what = refused.what.replace("the inputs file", "the expectation").replace(
            "inputs file", "expectation"
        )
        raise Refused(what, path, EXPECTATION) from None
    if isinstance(found, dict) and {"expected", "actual"} <= set(found):
        found = found["expected"]
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise Refused("the expectation holds no tensor", path, EXPECTATION)
    return tensors


def faults(
    outputs: list[torch.Tensor], expected: Optional[list[torch.Tensor]], infinities: bool, limits: Limits
) -> list[torch.Tensor]:
    """For each output a mask of the faulty elements: NaN, with `infinities` also infinite, or unexpected.

    An expected tensor of another shape is ignored.
    """
    masks = []
    for place, tensor in enumerate(outputs):
        values = wide(tensor)
        mask = ~torch.isfinite(values) if infinities else torch.isnan(values)
        if expected is not None and place < len(expected):
            want = expected[place]
            if want.shape == tensor.shape:
                both_bad = ~torch.isfinite(values) & ~torch.isfinite(wide(want))
                mask = mask & ~both_bad | _differs(tensor, want, limits)
        masks.append(mask)
    return masks


def compare_calls(
    against: str,
    before: list[torch.Tensor],
    after: list[torch.Tensor],
    at_fault: list[torch.Tensor],
    still: list[torch.Tensor],
    limits: Limits,
    by_expectation: bool,
) -> Comparison:
    """Compare `after` with `before`. The masks `at_fault` and `still` are the faulty elements of each.

    With an expectation, a changed element that fulfils it is no side effect.
    """
    compared = []
    cured = left = new = 0
    for place, (old, now) in enumerate(zip(before, after)):
        layout = _layout(old, now)
        if layout:
            compared.append(OutputChange(place, now.numel(), layout))
            continue
        bad, remains = at_fault[place], still[place]
        cured += int((bad & ~remains).sum())
        left += int((bad & remains).sum())
        new += int((remains & ~bad).sum())
        changed = _differs(now, old, limits)
        innocent = changed & ~bad & remains if by_expectation else changed & ~bad
        compared.append(_change(place, old, now, changed, innocent, bad))
    if len(before) != len(after):
        compared.append(OutputChange(len(compared), 0, _counts(len(before), len(after))))
    return Comparison(against, tuple(compared), cured, left, new)


def differing(first: list[torch.Tensor], second: list[torch.Tensor], limits: Limits) -> list[torch.Tensor]:
    """For each output a mask of the elements that differ between two calls; empty if layouts differ."""
    return [
        torch.zeros(now.shape, dtype=torch.bool) if _layout(old, now) else _differs(now, old, limits)
        for old, now in zip(first, second)
    ]


def compare_with_expectation(
    expected: list[torch.Tensor], outputs: list[torch.Tensor], limits: Limits
) -> Comparison:
    """Compare outputs with the expected tensors."""
    nothing = [torch.zeros(tensor.shape, dtype=torch.bool) for tensor in outputs]
    compared = []
    for place, (want, got) in enumerate(zip(expected, outputs)):
        layout = _layout(want, got, strict=False)
        if layout:
            compared.append(OutputChange(place, got.numel(), layout))
        else:
            differs = _differs(got, want, limits)
            compared.append(_change(place, want, got, differs, nothing[place], nothing[place]))
    if len(expected) != len(outputs):
        compared.append(OutputChange(len(compared), 0, _counts(len(expected), len(outputs))))
    return Comparison("expectation", tuple(compared))


def input_change(place: int, before: Any, after: Any) -> Optional[InputChange]:
    """The change of one input; None if it is the same."""
    if before is after or not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)):
        return None
    layout = _layout(before, after)
    if layout:
        return InputChange(place, after.numel(), 0, layout)
    old, now = wide(before), wide(after)
    changed = ~((old == now) | (torch.isnan(old) & torch.isnan(now)))
    strides = (
        ""
        if before.stride() == after.stride()
        else "strides {} instead of {}".format(list(after.stride()), list(before.stride()))
    )
    if not strides and not bool(changed.any()):
        return None
    return InputChange(place, after.numel(), int(changed.sum()), strides, _first(before, after, changed))


def differing_places(before: list[Any], after: list[Any], most: int) -> list[tuple[int, int]]:
    """(input, flat index) of the differing elements; empty if a layout differs or there are over `most`."""
    found: list[tuple[int, int]] = []
    for number, (old, now) in enumerate(zip(before, after)):
        if old is now:
            continue
        if _layout(old, now) or old.stride() != now.stride():
            return []
        differs = ~((wide(old) == wide(now)) | (torch.isnan(wide(old)) & torch.isnan(wide(now))))
        found += [(number, int(place)) for place in differs.reshape(-1).nonzero().reshape(-1)[: most + 1]]
    return found if len(found) <= most else []


def _change(
    place: int,
    old: torch.Tensor,
    now: torch.Tensor,
    changed: torch.Tensor,
    innocent: torch.Tensor,
    bad: torch.Tensor,
) -> OutputChange:
    rows = _rows(changed)
    clean = _rows(bad, which=False)
    clean_and_changed = [row for row in _rows(innocent) if row in set(clean)]
    return OutputChange(
        output=place,
        elements=now.numel(),
        changed=int(changed.sum()),
        innocent=int(innocent.sum()),
        first=_first(old, now, changed),
        first_innocent=_first(old, now, innocent),
        rows=tuple(rows[:MOST_ROWS]),
        innocent_rows=tuple(clean_and_changed[:MOST_ROWS]),
        row_count=len(rows),
    )


def _rows(mask: torch.Tensor, which: bool = True) -> "list[int]":
    """Indices of dimension 0 with a true element of the mask; with `which` false, those without one."""
    if not mask.dim() or not mask.numel():
        return []
    found = mask.reshape(mask.shape[0], -1).any(1)
    return [int(row) for row in (found if which else ~found).nonzero().reshape(-1)]


def _first(old: torch.Tensor, now: torch.Tensor, mask: torch.Tensor) -> "tuple[ElementChange, ...]":
    places = mask.reshape(-1).nonzero().reshape(-1)[:FIRST_ELEMENTS]
    before, after = wide(old).reshape(-1), wide(now).reshape(-1)
    return tuple(
        ElementChange(
            tuple(unravel(int(place), tuple(now.shape))), text_of(before[place]), text_of(after[place])
        )
        for place in places
    )


def text_of(value: torch.Tensor) -> str:
    """One element as text."""
    number = value.item()
    return "{:.7g}".format(number) if isinstance(number, float) else str(number)


def _differs(got: torch.Tensor, want: torch.Tensor, limits: Limits) -> torch.Tensor:
    """Mask of the elements that differ by more than the tolerance of the coarser dtype."""
    kinds = [tensor.dtype for tensor in (got, want)]
    own = max(tolerance(kind) for kind in kinds)
    rtol, atol = (one if asked is None else asked for one, asked in zip(own, limits))
    actual, reference = wide(got), wide(want)
    if actual.dtype != reference.dtype:
        common = torch.promote_types(actual.dtype, reference.dtype)
        actual, reference = actual.to(common), reference.to(common)
    return ~torch.isclose(actual, reference, rtol=rtol, atol=atol, equal_nan=True)


def _layout(old: torch.Tensor, now: torch.Tensor, strict: bool = True) -> str:
    """How shape, dtype or device differ. Unless `strict`, device and floating-point dtype may differ."""
    if old.shape != now.shape:
        return "shape {} instead of {}".format(list(now.shape), list(old.shape))
    both_real = old.is_floating_point() and now.is_floating_point()
    if old.dtype != now.dtype and (strict or not both_real):
        return "dtype {} instead of {}".format(_name(now.dtype), _name(old.dtype))
    if strict and old.device != now.device:
        return "device {} instead of {}".format(now.device, old.device)
    return ""


def _counts(before: int, after: int) -> str:
    return "{} output tensors instead of {}".format(after, before)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


MOST_CALLS = 200
MOST_SECONDS = 10.0
MOST_ELEMENTS = 100_000

Places = list[tuple[int, int]]  # input, flat index of the element in row-major order


@dataclass
class Search:
    """Delta debugging. `call` takes input leaves and returns the outputs, or None if the call failed."""

    original: list[Any]
    changed: list[Any]
    call: Callable[[list[Any]], Optional[list[torch.Tensor]]]
    calls: int = 0
    deadline: float = 0.0

    def run(self) -> Places:
        """The fewest places found that cure the call; empty if even all of them do not."""
        self.deadline = time.monotonic() + MOST_SECONDS
        places = differing_places(self.original, self.changed, MOST_ELEMENTS)
        if not places or self.outputs(places) is None:
            return []
        parts = 2
        while len(places) > 1 and not self._spent():
            smaller = self._smaller(places, parts)
            if smaller is not None:
                places, parts = smaller, max(2, min(parts - 1, len(smaller)))
            elif parts >= len(places):
                break
            else:
                parts = min(len(places), 2 * parts)
        return places

    def _smaller(self, places: Places, parts: int) -> Optional[Places]:
        """A part that cures the call, else the complement of one."""
        size = -(-len(places) // parts)
        starts = range(0, len(places), size)
        pieces = [places[start : start + size] for start in starts]
        rests = [places[:start] + places[start + size :] for start in starts]
        for candidate in [*pieces, *(rests if len(pieces) > 2 else ())]:
            if self._spent():
                return None
            if self.outputs(candidate) is not None:
                return candidate
        return None

    def _spent(self) -> bool:
        return self.calls >= MOST_CALLS or time.monotonic() > self.deadline

    def outputs(self, places: Places, other: bool = False) -> Optional[list[torch.Tensor]]:
        """Outputs with only these places changed; with `other`, to a different valid value of that input."""
        self.calls += 1
        leaves = list(self.original)
        for number in {number for number, _ in places}:
            flat = leaves[number].reshape(-1).clone()
            at = torch.tensor([place for of, place in places if of == number], device=flat.device)
            values = self.changed[number].reshape(-1)[at]
            flat[at] = _another(leaves[number], self.changed[number], values) if other else values
            leaves[number] = flat.view(leaves[number].shape)
        return self.call(leaves)


def _another(original: torch.Tensor, changed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For each value a different one from the unchanged part of the input, if there is one."""
    flat, after = original.reshape(-1), changed.reshape(-1)
    kept = flat[flat == after].unique()
    others = [kept[kept != value] for value in values]
    return torch.stack([other[0] if other.numel() else value for other, value in zip(others, values)])


def elements(places: Places, original: list[Any]) -> "list[tuple[int, tuple[int, ...]]]":
    """The places as logical indices."""
    return [(number, tuple(unravel(place, tuple(original[number].shape)))) for number, place in places]
