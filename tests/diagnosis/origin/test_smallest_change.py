"""The smallest change is found in few calls, and only where the failure comes and goes with it."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.diagnosis.origin.records import Condition, OffendingElement, Origin
from mcp_server.diagnosis.origin.smallest_change import (
    MOST_CALLS,
    Change,
    changes_of,
    smallest_change,
    smallest_change_of_calls,
)


def changes(count: int) -> list[Change]:
    return [Change(1, (n,), 0, "args[1]", str(n)) for n in range(count)]


class Workload:
    """A call that fails while one of its bad elements is as it was; it counts how often it is made."""

    def __init__(self, bad: set[int], other_fault: bool = False) -> None:
        self.bad, self.other_fault = bad, other_fault
        self.calls = 0

    def fails(self, changed: Sequence[Change]) -> bool:
        self.calls += 1
        return self.other_fault or bool(self.bad - {change.index[0] for change in changed})

    async def fails_later(self, changed: Sequence[Change]) -> bool:
        return self.fails(changed)


@given(st.integers(1, 200), st.data())
def test_one_element_is_found(count: int, data: st.DataObject) -> None:
    """Of up to 200 elements the one that counts is found within the calls."""
    bad = data.draw(st.integers(0, count - 1))
    workload = Workload({bad})
    found = smallest_change(changes(count), workload.fails)
    assert found is not None
    assert [change.index for change in found.changes] == [(bad,)]
    assert found.minimal
    assert workload.calls == found.calls <= MOST_CALLS


@given(st.integers(2, 40), st.data())
def test_what_is_found_makes_the_failure_go_away(count: int, data: st.DataObject) -> None:
    """Whatever elements count, the call passes with the changes that were found, in few calls."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    workload = Workload(bad)
    found = smallest_change(changes(count), workload.fails)
    assert found is not None
    assert bad <= {change.index[0] for change in found.changes}
    assert workload.calls <= MOST_CALLS
    assert not found.minimal or bad == {change.index[0] for change in found.changes}


def test_another_fault_is_no_smallest_change() -> None:
    """A call that fails with every element changed has another fault; one that never failed has none."""
    assert smallest_change(changes(4), Workload({1}, other_fault=True).fails) is None
    assert smallest_change(changes(4), Workload(set()).fails) is None
    assert smallest_change([], Workload({1}).fails) is None


def test_the_rest_is_shown_to_be_innocent() -> None:
    """With all other elements changed and the one as it was the call still fails."""
    found = smallest_change(changes(8), Workload({5}).fails)
    assert found is not None and found.sufficient
    assert found.text() == "the failure goes away with args[1][5]: 5 to 0, and comes back without"


def test_calls_that_have_to_be_waited_for() -> None:
    """The same search over an asynchronous test."""

    async def search() -> object:
        return await smallest_change_of_calls(changes(8), Workload({5}).fails_later)

    assert anyio.run(search) == smallest_change(changes(8), Workload({5}).fails)


def test_candidates_of_an_origin() -> None:
    """Elements get the nearest good value, those of a mask are turned round, others stay out."""
    origin = Origin(
        launch_index=1,
        kernel="k",
        fault_launch=1,
        expression="x",
        elements=[
            OffendingElement(kind="input", label="args[1]", index=[2], value="731", input_index=1),
            OffendingElement(kind="input", label="args[2]", index=[0], value="False", input_index=2),
            OffendingElement(kind="input", label="args[3]", index=[0], value="1.5", input_index=3),
        ],
        condition=Condition(text="", variable="x", label="args[1]", low=500, good=499),
    )
    assert [(c.input_index, c.index, c.after) for c in changes_of(origin)] == [
        (1, (2,), 499),
        (2, (0,), True),
    ]
