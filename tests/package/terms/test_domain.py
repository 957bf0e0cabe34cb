"""Where operations are defined, compared with torch."""

from __future__ import annotations

import math

import pytest
import torch

from mcp_server.package.terms.evaluate import DOMAINS, outside

VALUES = (-2.0, -1.0000001, -1.0, -0.5, 0.0, 1e-30, 0.5, 1.0, 1.0000001, 2.0)
TWO = ("div", "floordiv", "remainder", "mod", "pow")
NAMES = {"floordiv": "floor_divide", "remainder": "fmod", "mod": "remainder"}


@pytest.mark.parametrize("op", DOMAINS)
def test_a_result_is_finite_exactly_where_the_operand_lies_in_the_domain(op: str) -> None:
    """Ends and values next to them, for each operation of the table."""
    function = getattr(torch, NAMES.get(op, op))
    domain = DOMAINS[op]
    for value in VALUES:
        values = [value] if op not in TWO else [0.25, 0.25]
        values[domain.operand] = value
        result = float(function(*(torch.tensor(each, dtype=torch.float64) for each in values)))
        assert math.isfinite(result) == (outside(op, values) is None), (op, values, result)


def test_what_was_made_elsewhere_is_no_fault_of_the_operation() -> None:
    """A NaN, an operation without a domain, and a whole power of a negative number."""
    assert outside("sqrt", [math.nan]) is None and outside("exp", [1000.0]) is None
    assert outside("pow", [-2.0, 3.0]) is None and outside("pow", [-2.0, 0.5]) is DOMAINS["pow"]
