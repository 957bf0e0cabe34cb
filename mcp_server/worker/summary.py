"""Counts and extremes of a tensor's values, with few passes and few waits for the device."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

CHUNK = 1 << 24  # elements looked at together: bounds the temporaries

# minimum, maximum, sum, how many are not zero
Quick = tuple[float, float, float, int]


def summary(flat: torch.Tensor) -> "dict[str, Any]":
    """nan, inf and zero (counts); min, max and mean of the finite values where they have an order."""
    nan = inf = zero = count = 0
    low: "list[Any]" = []
    high: "list[Any]" = []
    total = 0.0
    for part in flat.split(CHUNK):
        quick = _quick(part)
        if quick is None:
            nan += int(torch.isnan(part).sum())
            inf += int(torch.isinf(part).sum())
            zero += int((part == 0).sum())
            part = part[torch.isfinite(part)] if not part.is_complex() else part[:0]
            quick = _quick(part) if part.numel() else None
        else:
            zero += part.numel() - quick[3]
        if quick is not None:
            low.append(quick[0])
            high.append(quick[1])
            total += quick[2]
            count += part.numel()
    found: "dict[str, Any]" = {"nan": nan, "inf": inf, "zero": zero}
    if count:
        found.update(min=min(low), max=max(high), mean=total / count)
    return found


def _quick(part: torch.Tensor) -> "Optional[Quick]":
    """None when a value is not finite, or has no order: `aminmax` hands NaN and infinities on."""
    if part.is_complex():
        return None
    low, high = torch.aminmax(part)
    total = part.sum(dtype=torch.float64)
    if not part.is_floating_point():
        exact = torch.stack([low.long(), high.long(), torch.count_nonzero(part)]).tolist()
        return exact[0], exact[1], float(total), exact[2]
    facts = torch.stack([low.double(), high.double(), total, _nonzero(part).double()]).tolist()
    if not (math.isfinite(facts[0]) and math.isfinite(facts[1])):
        return None
    return facts[0], facts[1], facts[2], int(facts[3])


def _nonzero(part: torch.Tensor) -> torch.Tensor:
    """How many are not zero. On a CPU signs are counted, in a third of the time: exact up to 2^24 of them."""
    if part.device.type != "cpu" or part.dtype not in (torch.float32, torch.float64):
        return torch.count_nonzero(part)
    signs = part.sign()
    return torch.dot(signs, signs)
