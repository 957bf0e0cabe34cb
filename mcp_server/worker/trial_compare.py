"""Outputs of one call beside those of another, and the fewest changes that still matter.

The fewest changed elements with which a failing call still comes back: a search with the call as the test.

Delta debugging (Zeller and Hildebrandt, 2002): of the elements that a change alters, parts and what is left
without them are tried, in ever smaller parts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from .compare import Limits, tolerance
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
    """Layout, counts of what is not finite, and a digest."""
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
    """For each output a mask of the elements at fault: not a number, or not what was expected.

    With `infinities` those are at fault, too. An expectation of another layout says nothing of elements.
    """
    masks = []
    for place, tensor in enumerate(outputs):
        values = _wide(tensor)
        mask = ~torch.isfinite(values) if infinities else torch.isnan(values)
        if expected is not None and place < len(expected):
            want = expected[place]
            if want.shape == tensor.shape:
                mask = mask & ~_both_bad(values, _wide(want)) | _differs(tensor, want, limits)
        masks.append(mask)
    return masks


def beside(
    against: str,
    before: list[torch.Tensor],
    after: list[torch.Tensor],
    at_fault: list[torch.Tensor],
    still: list[torch.Tensor],
    limits: Limits,
    by_expectation: bool,
) -> Comparison:
    """`after` held against `before`, whose elements `at_fault` were bad; `still` are those bad in `after`.

    With an expectation an element that fulfils it is no side effect.
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
    """For each output a mask of the elements in which two calls differ; none where their layouts do."""
    return [
        torch.zeros(now.shape, dtype=torch.bool) if _layout(old, now) else _differs(now, old, limits)
        for old, now in zip(first, second)
    ]


def with_expectation(expected: list[torch.Tensor], outputs: list[torch.Tensor], limits: Limits) -> Comparison:
    """Outputs held against what they are to be."""
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
    """What was done to one input; None when nothing was."""
    if before is after or not (isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor)):
        return None
    layout = _layout(before, after)
    if layout:
        return InputChange(place, after.numel(), 0, layout)
    old, now = _wide(before), _wide(after)
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
    """Inputs and flat numbers of the elements that differ; none where a layout does, or more than `most`."""
    found: list[tuple[int, int]] = []
    for number, (old, now) in enumerate(zip(before, after)):
        if old is now:
            continue
        if _layout(old, now) or old.stride() != now.stride():
            return []
        differs = ~((_wide(old) == _wide(now)) | (torch.isnan(_wide(old)) & torch.isnan(_wide(now))))
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
    """Indices of dimension 0 in which the mask holds anywhere, or with `which` false nowhere."""
    if not mask.dim() or not mask.numel():
        return []
    found = mask.reshape(mask.shape[0], -1).any(1)
    return [int(row) for row in (found if which else ~found).nonzero().reshape(-1)]


def _first(old: torch.Tensor, now: torch.Tensor, mask: torch.Tensor) -> "tuple[ElementChange, ...]":
    places = mask.reshape(-1).nonzero().reshape(-1)[:FIRST_ELEMENTS]
    before, after = _wide(old).reshape(-1), _wide(now).reshape(-1)
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
    """Elements that differ by more than rounding of the coarser of both dtypes; whole numbers are equal."""
    kinds = [tensor.dtype for tensor in (got, want)]
    own = max(tolerance(kind) for kind in kinds)
    rtol, atol = (one if asked is None else asked for one, asked in zip(own, limits))
    wide, reference = _wide(got), _wide(want)
    if wide.dtype != reference.dtype:
        common = torch.promote_types(wide.dtype, reference.dtype)
        wide, reference = wide.to(common), reference.to(common)
    return ~torch.isclose(wide, reference, rtol=rtol, atol=atol, equal_nan=True)


def _both_bad(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(values) & ~torch.isfinite(wanted)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, in a dtype that holds every value of the narrower ones; int64 stays exact."""
    host = tensor.detach().cpu()
    if host.is_complex():
        return host.to(torch.complex128)
    return host.to(torch.float64) if host.is_floating_point() else host.to(torch.int64)


def _layout(old: torch.Tensor, now: torch.Tensor, strict: bool = True) -> str:
    """How shape, dtype or device differ. An expectation may be of another floating-point dtype or device."""
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

Places = list[tuple[int, int]]  # an input, and the number of an element of it in row-major order


@dataclass
class Search:
    """`call` makes the call with these leaves; what it returns are the outputs, None when it failed."""

    given: list[Any]
    changed: list[Any]
    call: Callable[[list[Any]], Optional[list[torch.Tensor]]]
    calls: int = 0
    deadline: float = 0.0

    def run(self) -> Places:
        """Places that are enough; none where nothing is known of places, or all at once are not enough."""
        self.deadline = time.monotonic() + MOST_SECONDS
        places = differing_places(self.given, self.changed, MOST_ELEMENTS)
        if not places or not self._passes(places):
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
        """A part that is enough, else all but a part."""
        size = -(-len(places) // parts)
        starts = range(0, len(places), size)
        pieces = [places[start : start + size] for start in starts]
        rests = [places[:start] + places[start + size :] for start in starts]
        for candidate in [*pieces, *(rests if len(pieces) > 2 else ())]:
            if self._spent():
                return None
            if self._passes(candidate):
                return candidate
        return None

    def _spent(self) -> bool:
        return self.calls >= MOST_CALLS or time.monotonic() > self.deadline

    def _passes(self, places: Places) -> bool:
        return self.outputs(places) is not None

    def outputs(self, places: Places, other: bool = False) -> Optional[list[torch.Tensor]]:
        """Of the call with only these places changed; with `other`, to another good value of that input."""
        self.calls += 1
        leaves = list(self.given)
        for number in {number for number, _ in places}:
            flat = leaves[number].reshape(-1).clone()
            at = torch.tensor([place for of, place in places if of == number], device=flat.device)
            values = self.changed[number].reshape(-1)[at]
            flat[at] = _another(leaves[number], self.changed[number], values) if other else values
            leaves[number] = flat.view(leaves[number].shape)
        return self.call(leaves)


def _another(given: torch.Tensor, changed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For each value another one that the input holds where nothing was changed, if it holds one."""
    flat, after = given.reshape(-1), changed.reshape(-1)
    kept = flat[flat == after].unique()
    others = [kept[kept != value] for value in values]
    return torch.stack([other[0] if other.numel() else value for other, value in zip(others, values)])


def elements(places: Places, given: list[Any]) -> "list[tuple[int, tuple[int, ...]]]":
    """The places as logical indices."""
    return [(number, tuple(unravel(place, tuple(given[number].shape)))) for number, place in places]
