"""Inputs that are the very tensors of the call before."""

from __future__ import annotations

import pytest
import torch

from mcp_server.worker.capture.memory import Repeats

BASE = torch.ones(4, 3)


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        ([BASE], [BASE], [0]),
        ([BASE[:2]], [BASE[:2]], [0]),
        ([BASE], [BASE.clone()], []),
        ([BASE, torch.ones(1)], [torch.ones(1), BASE], []),
    ],
    ids=["one", "views", "copy", "order"],
)
def test_one_tensor_in_two_calls_is_told(
    first: list[torch.Tensor], second: list[torch.Tensor], again: list[int]
) -> None:
    """The tensor itself counts, or what it is a view of, at the same position; equal values do not."""
    repeats = Repeats()
    assert repeats.again(0, first) == []
    assert repeats.again(0, second) == again
    assert repeats.again(1, second) == []


def test_what_was_written_in_between_is_another_content() -> None:
    """An operation in place, by whichever thread, ends the repetition."""
    repeats, tensor = Repeats(), torch.ones(3)
    repeats.again(0, [tensor])
    tensor.add_(1)
    assert repeats.again(0, [tensor]) == []
    assert repeats.again(0, [tensor]) == [0]
