"""Inputs of a call on another stream that are let go: streams are numbers here, the memory is real."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mcp_server.worker.capture.journal import Journal
from mcp_server.worker.capture.streams import PendingUses

MAIN, SIDE = 0, 7


@dataclass(frozen=True)
class Stream:
    cuda_stream: int


class Watched:
    """A program whose main stream owns all memory, and that counts its allocations."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.allocated = 0
        self.pending_uses = PendingUses(Journal(str(directory)), lambda: self.allocated)

    def call(self, *leaves: torch.Tensor, reader: int = SIDE) -> None:
        self.pending_uses.track(3, list(leaves), reader, [(0, 1 << 62, MAIN)])

    def told(self) -> list[tuple[int, int]]:
        """(call, input) of every input that was told to be let go."""
        self.pending_uses.look()
        paths = self.directory.glob("capture-*.jsonl")
        events = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [(e["call"], e["input"]) for e in events if e["event"] == "input_let_go"]


@pytest.fixture
def program(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_an_input_that_is_let_go_before_its_owner_waited_is_told(program: Watched) -> None:
    """Once, and only the input that nobody holds."""
    kept, gone = torch.zeros(4), torch.zeros(4)
    program.call(kept, gone)
    del gone
    program.allocated += 1
    assert program.told() == [(3, 1)] == program.told()


@pytest.mark.parametrize("what", ["held", "nothing allocated", "own stream"])
def test_memory_that_nobody_can_have_taken_is_not_told(program: Watched, what: str) -> None:
    """It is still held, nothing was allocated since, or the stream that reads it owns it."""
    given = torch.zeros(4)
    program.call(given, reader=MAIN if what == "own stream" else SIDE)
    kept = given if what == "held" else None
    del given
    program.allocated += what != "nothing allocated"
    assert program.told() == []
    del kept


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (lambda pending_uses, _: pending_uses.all_waited(), []),
        (lambda pending_uses, _: pending_uses.ended(Stream(SIDE)), []),
        (lambda pending_uses, _: pending_uses.waits(Stream(MAIN)), []),
        (lambda pending_uses, given: pending_uses.recorded(given, Stream(SIDE)), []),
        (lambda pending_uses, given: pending_uses.recorded(given, Stream(MAIN)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.ended(Stream(MAIN)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.waits(Stream(SIDE)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.recorded(torch.ones(2), Stream(SIDE)), [(3, 0)]),
    ],
)
def test_who_waits_for_whom_counts(program: Watched, wait: object, told: list[tuple[int, int]]) -> None:
    """The owner must wait, or be told: that the reader waits for the owner rules nothing out."""
    given = torch.zeros(4)
    program.call(given)
    assert callable(wait)
    wait(program.pending_uses, given)
    del given
    program.allocated += 1
    assert program.told() == told


def test_a_stream_that_was_recorded_before_the_call_is_waited_for(program: Watched) -> None:
    """The usual order: the producer records the stream that will read, then the package is called."""
    given = torch.zeros(4)
    program.pending_uses.recorded(given, Stream(SIDE))
    program.call(given)
    del given
    program.allocated += 1
    assert program.told() == []
