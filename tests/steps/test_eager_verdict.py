"""What runs of one call, as they are and with unset memory filled, say about reads of unset memory."""

from __future__ import annotations

import pytest

from mcp_server.steps.eager_verdict import Repeats
from tests.diagnosis.support import worker_run


@pytest.mark.parametrize(
    "sums, filled, expected",
    [
        (["a", "a", "a"], True, False),
        (["a", "a", "n"], True, True),
        (["a", "b", "n", "n"], True, True),
        (["a", "b", "n", "m"], True, None),
        (["a", "b", "n", "n"], False, None),
        (["a", "b"], True, None),
        (["a"], True, None),
    ],
)
def test_reads_of_unset_memory_are_told_from_noise(
    sums: list[str], filled: bool, expected: bool | None
) -> None:
    """Steady outputs change when it is filled; outputs that differ become steady, if anything was filled."""
    runs = ("first", "second", "filled", "filled_again")
    outputs = [{"event": "outputs", "run": run, "checksums": [s]} for run, s in zip(runs, sums, strict=False)]
    written = {"launch": 3, "sequence": 3, "name": "buf0", "kernel": "k"}
    reruns = [
        {"event": "rerun", "run": run, **written, "checksum": s} for run, s in zip(runs, sums, strict=False)
    ]
    told = [{"event": "filled", "launch": 3, "name": "buf0"}] if filled else []
    repeats = Repeats(worker_run(*outputs, *reruns, *told))
    assert repeats.reads_unset is expected
    assert (repeats.unset_from is not None) is (expected is True)
