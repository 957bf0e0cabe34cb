"""A call that will not come back, by the calls before it."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.logs.capture_journal import stalled_call
from mcp_server.logs.captured import Captured, CapturedCall


def call(n: int, seconds: float | None, *, size: int = 10, **more: Any) -> CapturedCall:
    """Call `n` of one package, begun at second `n`; one without `seconds` is under way."""
    outcome = "unfinished" if seconds is None else "ok"
    leaves = [{"dtype": "float32", "shape": [size, 2]}]
    fields = {"pid": 7, "n": n, "t": float(n), "number": n, "load": 0, "thread": 1, "leaves": leaves}
    return CapturedCall.model_validate({**fields, "outcome": outcome, "seconds": seconds, **more})


@pytest.mark.parametrize(
    ("calls", "age_s", "stalled"),
    [
        ([call(1, 0.1), call(2, None)], 46, True),
        ([call(1, 0.1), call(2, None)], 44, False),
        ([call(1, 0.1), call(2, None, size=80)], 46, True),
        ([call(1, 0.1), call(2, None, size=81)], 500, False),
        ([call(1, 0.1), call(2, 3.0), call(3, None)], 299, False),
        ([call(1, 0.1), call(2, 3.0), call(3, None)], 301, True),
        ([call(2, None)], 500, False),
        ([call(1, 0.1, load=1), call(2, None)], 500, False),
        ([call(1, 0.1, outcome="failed"), call(2, None)], 500, False),
        ([call(1, 0.1), call(2, None), call(3, None)], 500, False),
        ([call(1, 0.1), call(2, 0.1)], 500, False),
        ([call(1, 0.1), call(2, None, notice="a CUDA graph was being captured")], 500, False),
    ],
    ids=[
        "long", "short", "eight times the data", "more", "slow calls", "slower still", "first call",
        "other package", "failed before", "two threads", "all ended", "recorded",
    ],
)  # fmt: skip
def test_far_longer_than_its_like(calls: list[CapturedCall], age_s: float, stalled: bool) -> None:
    """After 45 s and a hundred times its like; who waits for whom among threads, nobody can tell."""
    found = stalled_call(Captured(calls=calls), calls[-1].t + age_s, 45)
    assert found == (calls[-1] if stalled else None)
