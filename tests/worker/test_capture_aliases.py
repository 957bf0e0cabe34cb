"""Outputs that change with an input which the program uses again."""

from __future__ import annotations

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
