"""Comparing outputs: what counts as equal, and what is told of a difference."""

from __future__ import annotations

import math

import pytest
import torch

from mcp_server.worker.compare import compare, tolerance
from mcp_server.worker.encode import BY_OPERATOR, decode, encode

NAN = math.nan


def test_a_difference_has_its_size() -> None:
    """One element off is counted in the middle of a matrix, with the largest error."""
    want = torch.zeros(3, 4)
    got = want.clone()
    got[1, 2] = 0.5
    found = compare(want, got)
    assert not found["equal"] and found["differing"] == 1 and found["max_abs"] == 0.5


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, NAN], False),
        ([math.inf], [math.inf], True),
        ([math.inf], [-math.inf], False),
        ([1.0], [1.00005], True),
        ([1.0], [1.001], False),
    ],
)
def test_nan_infinity_and_tolerance(want: list[float], got: list[float], equal: bool) -> None:
    """NaN equals NaN only; infinities need their sign; float32 has 1e-4."""
    assert compare(torch.tensor(want), torch.tensor(got))["equal"] is equal


def test_dtypes() -> None:
    """Whole numbers must be equal, large ones too; another dtype or shape is a difference by itself."""
    large = torch.tensor([2**60])
    assert not compare(large, large + 1)["equal"] and compare(large, large.clone())["equal"]
    assert not compare(torch.zeros(2), torch.zeros(2, dtype=torch.float64))["equal"]
    assert not compare(torch.zeros(2), torch.zeros(3))["equal"]
    assert tolerance(torch.bfloat16)[0] > tolerance(torch.float16)[0] > tolerance(torch.float32)[0]
    assert compare(torch.empty(0), torch.empty(0))["equal"]
    assert compare(torch.tensor([1 + 1j]), torch.tensor([1 + 1j]))["equal"]


def test_asked_limits_replace_those_of_the_dtype() -> None:
    """Given tolerances are used, each on its own."""
    want, got = torch.tensor([1.0]), torch.tensor([1.01])
    assert compare(want, got, (0.1, None))["equal"]
    assert not compare(want, got, (0.0, 0.001))["equal"]


def test_operators_in_options_survive_json() -> None:
    """Options keyed by operators come back as the operators; what cannot be written is marked."""
    configs = {BY_OPERATOR: {torch.ops.aten.relu.default: ["void f()"]}, "max_autotune": True}
    names, exact = encode(configs)
    assert exact and decode(names) == configs
    assert not encode({"post_grad_custom_pre_pass": lambda graph: graph})[1]
