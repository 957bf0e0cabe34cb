"""What runs of one call, as they are and with unset memory filled, say about reads of unset memory."""

from __future__ import annotations

from typing import cast

import pytest

from mcp_server.package.view import PackageView
from mcp_server.tools.compare_with_eager import Repeats
from mcp_server.tools.divergence import Nodes, read_launches
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


def compared(name: str, *closest: tuple[str, bool]) -> dict[str, object]:
    """The worker's event of a tensor that launch 2 wrote, with the nodes that it was held against."""
    facts = [{"node": n, "within": within, "within_tf32": within, "error": 1.0} for n, within in closest]
    where = {"launch": 2, "sequence": 2, "kernel": "k", "name": name}
    return {**where, "dtype": "float32", "device": "cpu", "shape": [8], "closest": facts}


def test_a_node_that_was_found_is_missed_nowhere_else() -> None:
    """Statistics beside the tensor of a launch that holds its node are parts; without it they depart."""
    nodes = Nodes(cast(PackageView, None))
    nodes.__dict__.update(of={2: ["mean"]}, completed={"mean": 2})
    events = [compared("buf5", ("mean", False)), compared("buf9", ("mean", True))]
    assert [row.status for row in read_launches(events, nodes)] == ["partial", "matches"]
    assert [row.status for row in read_launches(events[:1], nodes)] == ["differs"]
