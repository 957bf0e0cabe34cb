"""Delta debugging (Zeller and Hildebrandt, 2002): the part of a list that a failure, or a cure, needs."""

from __future__ import annotations

from itertools import accumulate
from typing import Callable, Optional, Sequence, TypeVar

T = TypeVar("T")

# Tries candidates, the earlier the better: the number of the first that still fails, None when none does.
FirstFailing = Callable[[Sequence[Sequence[T]]], Optional[int]]


def minimise(items: Sequence[T], first_failing: FirstFailing[T]) -> tuple[T, ...]:
    """Delta debugging: a part of `items`, in their order, that fails and of which no element can be left out.

    `items` themselves are taken to fail and are not tried. Halves come first, so that in a chain whose one
    element fails the number of rounds is logarithmic.
    """
    kept = tuple(items)
    pieces = 2
    while len(kept) >= 2:
        pieces = min(pieces, len(kept))
        parts = split(kept, pieces)
        # All parts but one, the last left out first: what comes late in a graph is rarely needed.
        ends = list(accumulate(len(part) for part in parts))
        others = [kept[: end - len(part)] + kept[end:] for part, end in zip(parts[::-1], ends[::-1])]
        options = [*parts, *others] if pieces > 2 else parts
        found = first_failing(options)
        if found is not None:
            pieces = 2 if found < len(parts) else max(2, pieces - 1)
            kept = tuple(options[found])
        elif pieces == len(kept):
            break
        else:
            pieces *= 2
    return kept


class _Spent(Exception):
    """The search has used up what it may."""


def minimise_while(
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], spent: Callable[[], bool]
) -> tuple[tuple[T, ...], bool]:
    """As `minimise`, one candidate at a time until `spent`; also returns whether the search was completed."""
    kept = tuple(items)

    def first_failing(candidates: Sequence[Sequence[T]]) -> Optional[int]:
        nonlocal kept
        for number, candidate in enumerate(candidates):
            if spent():
                raise _Spent
            if fails(candidate):
                kept = tuple(candidate)
                return number
        return None

    try:
        return minimise(kept, first_failing), True
    except _Spent:
        return kept, False


def split(items: Sequence[T], pieces: int) -> list[tuple[T, ...]]:
    """`items` in consecutive parts of nearly equal length; none is empty unless there are too few items."""
    borders = [round(len(items) * piece / pieces) for piece in range(pieces + 1)]
    return [tuple(items[borders[piece] : borders[piece + 1]]) for piece in range(pieces)]
