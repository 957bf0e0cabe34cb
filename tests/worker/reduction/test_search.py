"""Delta debugging finds what a failure needs, in few rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.worker.reduction.minimise import minimise, split


class Oracle:
    """Fails when all that is needed is there; counts the rounds."""

    def __init__(self, needed: frozenset[int]) -> None:
        self.needed = needed
        self.rounds = 0

    def first_failing(self, options: Sequence[Sequence[int]]) -> int | None:
        self.rounds += 1
        return next((n for n, option in enumerate(options) if self.needed <= set(option)), None)


sizes = st.integers(1, 60)
needs = sizes.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))


@given(needs)
def test_exactly_what_is_needed_is_left(case: tuple[int, frozenset[int]]) -> None:
    """When the failure needs certain elements and no others, these are found, in their order."""
    size, needed = case
    left = minimise(range(size), Oracle(needed).first_failing)
    assert list(left) == sorted(needed) if needed else len(left) == 1


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """A failure of one element takes a logarithmic number of rounds."""
    oracle = Oracle(frozenset([data.draw(st.integers(0, size - 1))]))
    assert minimise(range(size), oracle.first_failing) == tuple(oracle.needed)
    assert oracle.rounds <= log2(size) + 2


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure that comes about in several ways is cut down to one of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimise(range(12), first_failing)
    assert fails(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.lists(st.integers()), st.integers(1, 8))
def test_parts_are_the_whole(items: list[int], pieces: int) -> None:
    """Parts are consecutive and lose nothing."""
    assert [item for part in split(items, pieces) for item in part] == items
