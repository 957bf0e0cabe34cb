"""What three calls say about an intervention."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.interventions.base import Effect, Seen
from mcp_server.diagnosis.interventions.run import chance_of, effect_of, side_effects_of
from mcp_server.worker.protocol import CallFacts, Comparison, OutputChange, OutputFacts


def good(nan: int = 0, found: Comparison | None = None) -> Seen:
    output = OutputFacts((4,), "float32", "cpu", nan, 0, "")
    return Seen("ok", CallFacts("x", "k", "ok", outputs=(output,), compared=found))


def raised(text: str, family: str = "", during: str = "calling") -> Seen:
    return Seen(
        "raised", CallFacts("x", "k", "raised", during=during), text=text, family=family, essence=text
    )


def compared(cured: int, left: int, new: int, innocent: int = 0) -> Comparison:
    change = OutputChange(0, 4, changed=cured + innocent, innocent=innocent)
    return Comparison("before", (change,), cured, left, new)


BOUND = raised("index out of bounds: 0 <= tmp2 < 32L", "cpu_index_assert")


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (BOUND, good(), Effect.GONE),
        (BOUND, BOUND, Effect.SAME),
        (BOUND, raised("index out of bounds: 0 <= tmp9 < 8L", "cpu_index_assert"), Effect.CHANGED),
        (BOUND, Seen("died", signal="SIGSEGV", essence="SIGSEGV"), Effect.CHANGED),
        (BOUND, good(nan=1), Effect.CHANGED),
        (BOUND, Seen("refused", text="no such element"), Effect.NOT_APPLICABLE),
        (BOUND, raised("no such file", during="loading"), Effect.NOT_APPLICABLE),
        (good(), good(), Effect.NOT_APPLICABLE),
        (good(nan=4), good(nan=1, found=compared(3, 1, 0)), Effect.CHANGED),
        (good(nan=4), good(nan=4, found=compared(0, 4, 0)), Effect.SAME),
        (good(nan=4), good(nan=4, found=compared(1, 3, 1)), Effect.SAME),
        (good(nan=4), good(found=compared(4, 0, 0)), Effect.GONE),
        (Seen("timeout"), Seen("timeout"), Effect.SAME),
        (Seen("timeout"), good(), Effect.GONE),
    ],
)
def test_the_effect_is_read_from_how_the_calls_ended(before: Seen, after: Seen, effect: Effect) -> None:
    """Gone, changed, same, or nothing that follows."""
    assert effect_of(before, after)[0] is effect


def test_elements_that_were_not_at_fault_are_side_effects() -> None:
    """Unknown where there is nothing to compare with, and where repeated calls differ by themselves."""
    steady = good(nan=1, found=compared(0, 1, 0))
    assert not side_effects_of(good(found=compared(1, 0, 0)), steady)
    assert side_effects_of(good(found=compared(1, 0, 0, innocent=2)), steady).elements == 2
    assert not side_effects_of(good(), steady).known
    random = good(nan=1, found=compared(0, 1, 0, innocent=3))
    assert not side_effects_of(good(found=compared(1, 0, 0, innocent=2)), random).known


def test_the_chance_is_that_of_fishers_exact_test() -> None:
    """5 failures in 10 calls, none in 10 others: 252 of 15504 ways. Without a failure nothing is known."""
    assert chance_of(10, 5, 10) == pytest.approx(252 / 15504)
    assert chance_of(10, 5, 12) < 0.01 < chance_of(10, 5, 11)
    assert chance_of(10, 0, 90) == 1.0
