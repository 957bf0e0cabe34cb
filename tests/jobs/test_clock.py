"""A clock that stands still while a job can only wait: budgets and limits count what it does not."""

from __future__ import annotations

import time
from contextlib import ExitStack

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.jobs.clock import Clock, JobClock

SLACK_S = 0.5  # of a machine that is busy


@pytest.mark.anyio
async def test_a_limit_stands_still_with_the_clock() -> None:
    """A limit of 0.3 s that waited for 0.6 s ends after 0.9 s, and the wait is told apart."""
    clock, began = Clock(), time.monotonic()
    with clock.limit(0.3) as limit:
        with clock.stopped():
            await anyio.sleep(0.6)
        await anyio.sleep(20)
    assert limit.cancelled_caught
    assert 0.85 < time.monotonic() - began < 0.9 + SLACK_S
    assert 0.55 < clock.waited_s < 0.6 + SLACK_S
    assert clock.wall_s - clock.waited_s == pytest.approx(clock.worked_s, abs=0.05)


@pytest.mark.anyio
async def test_a_limit_that_begins_while_the_clock_stands_still() -> None:
    """It has its seconds from when the clock goes on."""
    clock = Clock()
    clock.stop()
    with clock.limit(0.2) as limit:
        await anyio.sleep(0.4)
        assert not limit.cancel_called
        clock.resume()
        await anyio.sleep(20)
    assert limit.cancelled_caught


def test_a_job_waits_when_none_of_its_children_works() -> None:
    """One child that waits while another works, for the other's lease maybe, stops no budget."""
    clock = JobClock()
    with clock.child():
        with clock.child(), clock.blocked():
            assert not still(clock)
        with clock.blocked():
            assert still(clock)
            with clock.child():
                assert not still(clock)
            assert still(clock)
    assert not still(clock)


def still(clock: Clock) -> bool:
    before = clock.waited_s
    time.sleep(0.002)
    return clock.waited_s > before


@given(st.lists(st.booleans(), max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_what_ends_in_any_order_leaves_the_clock_running(waiting: list[bool], order: list[int]) -> None:
    """Whatever children begin, wait and end, in any order: at the end the clock goes, and time is no less."""
    clock, stacks = JobClock(), []
    for waits in waiting:
        stack = ExitStack()
        stack.enter_context(clock.child())
        if waits:
            stack.enter_context(clock.blocked())
        stacks.append(stack)
        assert (clock._stopped_at is not None) == all(waiting[: len(stacks)])
    for place in [*order, *([0] * len(stacks))]:
        if stacks:
            stacks.pop(place % len(stacks)).close()
    assert clock._stopped_at is None
    assert 0 <= clock.waited_s <= clock.wall_s
