"""A search that may not go on gives the best that it found."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mcp_server.worker.reduction.minimise import minimise_while

sizes = st.integers(1, 60)
needs = sizes.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))


@given(needs, st.integers(0, 30))
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
