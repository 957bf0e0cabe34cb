"""The fewest changed elements that cure a call, and the elements that a change chooses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.worker import intervene
from mcp_server.worker.inputs import apply, chosen
from mcp_server.worker.intervene import Search
from mcp_server.worker.protocol import Change

SIZE = 24


class Call:
    """Fails as long as one of the `needed` elements of its two inputs still has its original value, 0."""

    def __init__(self, needed: set[int]) -> None:
        self.needed = needed
        self.calls = 0

    def __call__(self, leaves: list[Any]) -> list[torch.Tensor] | None:
        self.calls += 1
        flat = torch.cat([leaf.reshape(-1) for leaf in leaves])
        return [flat] if all(flat[place] != 0 for place in self.needed) else None


def search(call: Call, size: int = SIZE) -> Search:
    original = [torch.zeros(2, size // 2), torch.zeros(size)]
    return Search(original, [torch.ones(2, size // 2), torch.ones(size)], call)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 2 * SIZE - 1), min_size=1, max_size=4))
def test_exactly_the_needed_elements_are_found(needed: set[int]) -> None:
    """Of two inputs that are changed everywhere, each needed element is named by input and flat place."""
    call = Call(needed)
    found = search(call)
    places = found.run()
    assert {number * SIZE + place for number, place in places} == needed
    assert found.calls == call.calls <= intervene.MOST_CALLS + 1


def test_a_change_that_cures_nothing_needs_no_element() -> None:
    """One call shows that; the search stops."""
    call = Call({0})
    found = Search([torch.zeros(4)], [torch.tensor([0.0, 1, 1, 1])], call)
    assert found.run() == [] and call.calls == 1


def test_a_changed_layout_is_not_searched() -> None:
    """Elements of another shape or dtype have no counterpart."""
    call = Call(set())
    assert Search([torch.zeros(4)], [torch.zeros(5)], call).run() == []
    assert Search([torch.zeros(4)], [torch.zeros(4).double()], call).run() == []
    assert call.calls == 0


def test_a_search_that_has_used_its_calls_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest elements so far cure the call, though fewer might."""
    monkeypatch.setattr(intervene, "MOST_CALLS", 10)
    call = Call({1, 40})
    found = search(call)
    places = found.run()
    assert found.calls <= 10 and 2 < len(places) < 2 * SIZE
    assert found.outputs(places) is not None


changes = st.fixed_dictionaries(
    {},
    optional={
        "flat": st.lists(st.integers(0, 11), max_size=6),
        "index": st.tuples(st.integers(0, 2), st.integers(0, 3)).map(list),
        "rows": st.lists(st.integers(0, 2), max_size=3),
        "stride": st.integers(1, 5),
        "offset": st.integers(0, 3),
        "where": st.sampled_from([{"below": 3}, {"above": 8}, {"below": 3, "above": 8}, {"equals": 5}]),
    },
)


def fulfils(change: dict[str, Any], place: int) -> bool:
    """Whether the element of `arange(12).reshape(3, 4)` is chosen by each key of the change."""
    where, offset = change.get("where"), change.get("offset", 0)
    conditions = {
        "flat": place in change.get("flat", ()),
        "index": [*divmod(place, 4)] == change.get("index"),
        "rows": place // 4 in change.get("rows", ()),
        "stride": place >= offset and (place - offset) % change.get("stride", 1) == 0,
    }
    if where is not None:
        below, above = place < int(where.get("below", 0)), place > int(where.get("above", 11))
        conditions["where"] = below or above or place == where.get("equals")
    return all(holds for key, holds in conditions.items() if key in change or key == "where")


@given(changes)
def test_what_several_keys_choose_fulfils_them_all(change: dict[str, Any]) -> None:
    """Only the chosen elements get the new value; the others and the strides stay."""
    tensor = torch.arange(12).reshape(3, 4)
    wanted = [fulfils(change, place) for place in range(12)]
    asked = Change.read({"change": "elements", **change})
    assert chosen(tensor, asked).reshape(-1).tolist() == wanted
    (made,) = apply([tensor.t()], [{"change": "elements", "input": 0, "flat": [1], "value": 99}])
    assert made.stride() == (1, 4) and (made != tensor.t()).nonzero().tolist() == [[0, 1]]
