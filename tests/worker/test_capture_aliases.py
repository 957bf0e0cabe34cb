"""Outputs that change with an input which the program uses again."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from mcp_server.worker.capture.memory import Aliases


def loop(*, keep: bool, copied: bool, written: bool, calls: int = 4) -> list[list[int]]:
    """What is told at the last of some calls whose second output is a view of their input."""
    aliases, window, kept = Aliases(), torch.zeros(3, 4), []
    told: list[list[int]] = []
    for number in range(calls):
        if written:
            window.copy_(torch.full((3, 4), float(number)))
        told = aliases.overwritten()
        given = aliases.inputs([torch.ones(1), window])
        tail = window[:, 2:]
        outputs = [window.sum(), tail.clone() if copied else tail]
        aliases.returned(number, given, outputs)
        if keep:
            kept.append(outputs[1])
    return told


def test_kept_views_of_an_input_that_is_written_anew() -> None:
    """Each output that the program still holds is told with its call and the input."""
    assert loop(keep=True, copied=False, written=True) == [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("keep", "copied", "written"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_what_does_not_change_under_the_program(keep: bool, copied: bool, written: bool) -> None:
    """Outputs that are let go, copies, and inputs that stay as they are do no harm."""
    assert loop(keep=keep, copied=copied, written=written) == []


@pytest.mark.parametrize(("keep", "written"), [(True, True), (False, True), (True, False)])
def test_what_numpy_writes_is_seen_by_the_values_of_the_oldest_output(keep: bool, written: bool) -> None:
    """Its writes are not counted, and each call may get a new tensor over the same memory."""
    aliases, block, kept = Aliases(), np.zeros((3, 4), dtype=np.float32), []
    told: list[list[int]] = []
    for number in range(4):
        if written:
            block[:] = number
        told = aliases.overwritten()
        window = torch.from_numpy(block)
        given = aliases.inputs([window])
        output = window[:, 2:]
        del window
        aliases.returned(number, given, [output])
        if keep:
            kept.append(output)
    assert told == ([[0, 0, 0]] if keep and written else [])


def test_memory_that_is_gone_is_not_read(tmp_path: Path) -> None:
    """A kept view of a mapped file that was cut since: reading it would end the program."""
    path = tmp_path / "block.bin"
    np.ones(mmap.PAGESIZE, np.float32).tofile(path)
    aliases, block = Aliases(), torch.from_numpy(np.memmap(path, np.float32, "r+"))
    output = block[:]
    aliases.returned(0, aliases.inputs([block]), [output])
    aliases.returned(1, [], [])
    os.truncate(path, 0)
    assert aliases.overwritten() == [] and output.numel() == mmap.PAGESIZE
