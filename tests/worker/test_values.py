"""Where the first bad value of a tensor is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mcp_server.worker.tensors import first_non_finite

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([[1.0, 2.0], [3.0, -4.0]], None),
        ([[1.0, NAN], [INF, -4.0]], ([0, 1], "nan", 2)),
        ([[-INF, 2.0], [-INF, 4.0]], ([0, 0], "-inf", 2)),
        ([[-INF, 2.0], [NAN, 4.0]], ([1, 0], "nan", 2)),
        ([[-INF, -INF], [-INF, INF]], ([1, 1], "inf", 4)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_hides_nothing_worse(values: Any, found: Any, dtype: torch.dtype) -> None:
    """The first NaN or infinity is told before minus infinity, which a mask would hold, wherever that is."""
    first = first_non_finite(torch.tensor(values, dtype=dtype))
    wanted = None if found is None else dict(zip(("index", "value", "count"), found, strict=True))
    assert first == wanted
