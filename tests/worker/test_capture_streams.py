"""What the hook keeps of several streams and of captured graphs, with the memory of real tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mcp_server.worker.capture.journal import Journal
from mcp_server.worker.capture.streams import Snapshot, Streams


def told(directory: Path) -> list[tuple[int, int]]:
    """(call, input) of every input that was told to be gone."""
    lines = (line for path in directory.glob("capture-*.jsonl") for line in path.read_text().splitlines())
    events = [event for event in map(json.loads, lines) if event["event"] == "graph_input_gone"]
    return [(event["call"], event["input"]) for event in events]


def test_a_replay_after_an_input_was_replaced_is_told_once(tmp_path: Path) -> None:
    """Only the input whose memory nobody holds is told, and only at the first replay."""
    streams = Streams(Journal(str(tmp_path)))
    static, other = torch.zeros(4), torch.zeros(4)
    streams.watch_graph(7, [other, static])
    streams.replaying(None)
    assert told(tmp_path) == []
    static = torch.ones(4)
    streams.replaying(None)
    streams.replaying(None)
    assert told(tmp_path) == [(7, 1)]


def test_a_view_keeps_the_memory(tmp_path: Path) -> None:
    """The captured tensor may go as long as something shares its memory."""
    streams = Streams(Journal(str(tmp_path)))
    whole = torch.zeros(8)
    streams.watch_graph(1, [whole[:4]])
    streams.replaying(None)
    assert told(tmp_path) == []


def test_one_stream_costs_no_copies(tmp_path: Path) -> None:
    """Inputs are copied only where the program uses a stream of its own, and only those of a device."""
    streams = Streams(Journal(str(tmp_path)))
    assert streams.snapshot([torch.zeros(4)]) is None
    streams.several = True
    assert streams.snapshot([torch.zeros(4)]) is None


@pytest.mark.parametrize("later, raced", [(float("nan"), []), (5.0, [1])])
def test_an_input_that_changed_is_raced(later: float, raced: list[int]) -> None:
    """Other bytes than at the call are a race; NaN that stays NaN is not."""
    inputs = [torch.zeros(3), torch.full((2, 2), float("nan"))]
    snapshot = Snapshot(inputs, [tensor.clone() for tensor in inputs])
    inputs[1][0, 0] = later
    assert snapshot.raced() == raced
