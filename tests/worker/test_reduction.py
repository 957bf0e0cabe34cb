"""Delta debugging: what a failure needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.worker.reduction import Minimiser, minimise_while


def minimised(size: int, first_failing: Callable[[Sequence[Sequence[int]]], int | None]) -> tuple[int, ...]:
    search = Minimiser(tuple(range(size)))
    while options := search.candidates():
        search.found(first_failing(options))
    return search.kept


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure that comes about in several ways is cut down to one of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimised(12, first_failing)
    assert fails(left) and list(left) == sorted(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """A failure of one element takes a logarithmic number of rounds."""
    needed, rounds = data.draw(st.integers(0, size - 1)), []

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        rounds.append(options)
        return next((n for n, option in enumerate(options) if needed in option), None)

    assert minimised(size, first_failing) == (needed,)
    assert len(rounds) <= log2(size) + 2


SIZES = st.integers(1, 60)
NEEDS = SIZES.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))

# A search that may not go on gives the best that it found.


@given(NEEDS, st.integers(0, 30))
def test_a_search_that_is_spent_gives_what_still_fails(
    case: tuple[int, frozenset[int]], allowed: int
) -> None:
    """What is left fails in any case; when the search came to its end, every element of it is needed."""
    size, needed = case
    tried: list[Sequence[int]] = []

    def fails(kept: Sequence[int]) -> bool:
        tried.append(kept)
        return needed <= set(kept)

    left, complete = minimise_while(range(size), fails, lambda: len(tried) >= allowed)
    assert needed <= set(left) and len(tried) <= allowed
    assert not complete or not needed or set(left) == needed
