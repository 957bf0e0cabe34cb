"""Delta debugging (Zeller and Hildebrandt, 2002, `ddmin`) over an ordered sequence. Pure: knows no torch."""

from __future__ import annotations

from typing import Callable, Optional, Sequence, TypeVar

T = TypeVar("T")

# Tries candidates, the earlier the better: the number of the first that still fails, None when none does.
FirstFailing = Callable[[Sequence[Sequence[T]]], Optional[int]]


def minimise(items: Sequence[T], first_failing: FirstFailing[T]) -> tuple[T, ...]:
    """A part of `items`, in their order, that fails and of which no single element can be left out.

    `items` themselves are taken to fail and are not tried. Halves come first, so that in a chain whose one
    element fails the number of rounds is logarithmic.
    """
    kept = tuple(items)
    pieces = 2
    while len(kept) >= 2:
        pieces = min(pieces, len(kept))
        parts = split(kept, pieces)
        options = [*parts, *_complements(parts)] if pieces > 2 else parts
        found = first_failing(options)
        if found is not None:
            pieces = 2 if found < len(parts) else max(2, pieces - 1)
            kept = tuple(options[found])
        elif pieces == len(kept):
            break
        else:
            pieces *= 2
    return kept


def split(items: Sequence[T], pieces: int) -> list[tuple[T, ...]]:
    """`items` in consecutive parts of nearly one length; none is empty unless there are too few items."""
    borders = [round(len(items) * piece / pieces) for piece in range(pieces + 1)]
    return [tuple(items[borders[piece] : borders[piece + 1]]) for piece in range(pieces)]


def _complements(parts: Sequence[tuple[T, ...]]) -> list[tuple[T, ...]]:
    """All parts but one, the last left out first: what comes late in a graph is rarely needed."""
    return [
        tuple(item for place, part in enumerate(parts) if place != left_out for item in part)
        for left_out in reversed(range(len(parts)))
    ]


def windows(size: int) -> list[tuple[int, int]]:
    """Half-open ranges of [0, size) to try instead of all of it."""
    half = size // 2
    return [(0, half), (half, size)] if size >= 2 else []
