"""Reduces an exported program while it still fails, and writes what remains as one plain script.

This file has the search: delta debugging (Zeller and Hildebrandt, 2002) finds the part of a list that a
failure, or a cure, needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Callable, Generic, Sequence, TypeVar

T = TypeVar("T")


@dataclass
class Minimiser(Generic[T]):
    """Reduces `kept` to a part that fails, and from which no single element can be removed.

    `kept` is assumed to fail and is not tried. The caller tries `candidates` in order, passes the number of
    the first that still fails, or None, to `found`, and repeats until there are no candidates. Halves come
    first, so that it takes a logarithmic number of rounds to find a single failing element.
    """

    kept: tuple[T, ...]
    pieces: int = 2

    def candidates(self) -> list[tuple[T, ...]]:
        if len(self.kept) < 2 or not self.pieces:
            return []
        self.pieces = min(self.pieces, len(self.kept))
        parts = split(self.kept, self.pieces)
        if self.pieces == 2:
            return parts
        # Also try all but one part. Omit the last part first: late parts of a graph are rarely needed.
        ends = list(accumulate(len(part) for part in parts))
        return [*parts, *(self.kept[: e - len(p)] + self.kept[e:] for p, e in zip(parts[::-1], ends[::-1]))]

    def found(self, number: int | None) -> None:
        if number is not None:
            self.kept, pieces = self.candidates()[number], self.pieces
            self.pieces = 2 if number < pieces else max(2, pieces - 1)
        else:
            self.pieces = 0 if self.pieces == len(self.kept) else self.pieces * 2


def minimise_while(
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], spent: Callable[[], bool]
) -> tuple[tuple[T, ...], bool]:
    """Reduce `items` while the rest `fails`. Return the rest, and False if `spent` ended the search."""
    search = Minimiser(tuple(items))
    while candidates := search.candidates():
        failing = None
        for number, candidate in enumerate(candidates):
            if spent():
                return search.kept, False
            if fails(candidate):
                failing = number
                break
        search.found(failing)
    return search.kept, True


def split(items: Sequence[T], pieces: int) -> list[tuple[T, ...]]:
    """Split `items` into consecutive parts of nearly equal length. Some are empty if items are too few."""
    borders = [round(len(items) * piece / pieces) for piece in range(pieces + 1)]
    return [tuple(items[borders[piece] : borders[piece + 1]]) for piece in range(pieces)]
