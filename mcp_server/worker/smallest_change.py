"""The fewest changed elements with which a failing call still comes back: a search with the call as the test.

Delta debugging (Zeller and Hildebrandt, 2002): of the elements that a change alters, parts and what is left
without them are tried, in ever smaller parts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

from .trial_compare import differing_places
from .values import unravel

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
