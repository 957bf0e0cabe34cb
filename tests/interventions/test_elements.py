"""Changes of single elements: exactly those that were chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mcp_server.worker.inputs import apply
from mcp_server.worker.report import Refused


def changed(tensor: torch.Tensor, **change: Any) -> torch.Tensor:
    asked: Any = {"change": "elements", "input": 0, **change}
    found: torch.Tensor = apply([tensor], [asked])[0]
    return found


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        ({"flat": [1, 4]}, [1, 4]),
        ({"index": [1, 0]}, [3]),
        ({"rows": [1]}, [3, 4, 5]),
        ({"rows": [2], "dim": 1}, [2, 5]),
        ({"where": {"below": 1, "above": 4}}, [0, 5]),
        ({"where": {"equals": 3}}, [3]),
        ({"stride": 2, "offset": 1}, [1, 3, 5]),
        ({"rows": [0], "where": {"above": 0}}, [1, 2]),
        ({}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_only_the_chosen_elements_change(choice: dict[str, object], places: list[int]) -> None:
    """By place, row, condition or step, and by all that is named at once."""
    before = torch.arange(6).view(2, 3)
    after = changed(before, value=77, **choice)
    assert (after.view(-1) == 77).nonzero().view(-1).tolist() == places
    assert before.tolist() == [[0, 1, 2], [3, 4, 5]] and after.dtype == before.dtype


def test_clamping_keeps_dtype_strides_and_the_elements_within() -> None:
    """A whole-number tensor stays one under a limit that is none, and a transposed one stays transposed."""
    before = torch.tensor([[5, -3], [40, 9]]).t()
    after = changed(before, low=0.0, high=31.0, where={"below": 0, "above": 31})
    assert after.tolist() == [[5, 31], [0, 9]] and after.dtype == torch.int64
    assert after.stride() == before.stride()


def test_what_is_not_finite_is_chosen_by_name() -> None:
    """NaN alone, or all that is not finite."""
    values = torch.tensor([1.0, float("nan"), float("-inf")])
    assert changed(values, value=0, where={"nan": True}).tolist() == [1.0, 0.0, float("-inf")]
    assert changed(values, value="nan", where={"equals": "-inf"}).isnan().tolist() == [False, True, True]
    assert changed(values, value=0, where={"non_finite": True}).tolist() == [1.0, 0.0, 0.0]


def test_rows_are_dropped_and_padded() -> None:
    """Along the dimension that is named."""
    before = torch.arange(6).view(2, 3)
    (dropped,) = apply([before], [{"change": "drop_rows", "input": 0, "dim": 1, "rows": [0, 2]}])
    (padded,) = apply([before], [{"change": "pad", "input": 0, "dim": 0, "size": 3, "value": -1}])
    (cut,) = apply([before], [{"change": "pad", "input": 0, "dim": 1, "size": 2}])
    assert dropped.tolist() == [[1], [4]]
    assert padded.tolist() == [[0, 1, 2], [3, 4, 5], [-1, -1, -1]] and cut.tolist() == [[0, 1], [3, 4]]


@pytest.mark.parametrize(
    "change",
    [
        {"flat": [6], "value": 0},
        {"index": [0], "value": 0},
        {"rows": [2], "value": 0},
        {"rows": [0], "dim": 2, "value": 0},
        {"where": {"odd": True}, "value": 0},
        {"value": "nan"},
        {"value": "many"},
        {},
    ],
)
def test_what_the_input_does_not_have_is_refused(change: dict[str, object]) -> None:
    """Places, conditions and values that do not fit."""
    with pytest.raises(Refused):
        changed(torch.arange(6).view(2, 3), **change)
