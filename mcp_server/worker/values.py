"""Where in a tensor the first bad value is."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

CHUNK = 1 << 24  # elements looked at together: bounds the temporaries
MASK = str(-math.inf)


def first_non_finite(tensor: torch.Tensor) -> "Optional[dict[str, Any]]":
    """Logical index and value of the first NaN or infinity in row-major order, and how many there are.

    Minus infinity, which masks hold on purpose, is told only where there is nothing worse.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    found = _first(tensor, lambda part: ~torch.isfinite(part))
    if found is None or found["value"] != MASK:
        return found
    worse = _first(tensor, lambda part: torch.isnan(part) | (part == math.inf))
    return found if worse is None else {**worse, "count": found["count"]}


def _wide(part: torch.Tensor) -> torch.Tensor:
    """Eight-bit floats have few operators."""
    return part.to(torch.float32) if part.is_floating_point() and part.element_size() == 1 else part


def first_outside(tensor: torch.Tensor, low: int, high: int) -> "Optional[dict[str, Any]]":
    """Logical index and value of the first element outside [low, high), and how many there are."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return None
    return _first(tensor, lambda part: (part < low) | (part >= high))


def _first(tensor: torch.Tensor, bad: Any) -> "Optional[dict[str, Any]]":
    flat = tensor.detach().reshape(-1)
    count = 0
    first: "Optional[tuple[int, Any]]" = None
    for number, part in enumerate(flat.split(CHUNK)):
        wide = _wide(part)
        mask = bad(wide)
        here = int(mask.sum())
        if here and first is None:
            offset = int(mask.to(torch.uint8).argmax())
            first = (number * CHUNK + offset, wide[offset].item())
        count += here
    if first is None:
        return None
    return {"index": unravel(first[0], tuple(tensor.shape)), "value": str(first[1]), "count": count}


def unravel(position: int, shape: "tuple[int, ...]") -> "list[int]":
    """The logical index of the element at `position` in row-major order."""
    index = []
    for size in reversed(shape):
        position, at = divmod(position, size)
        index.append(at)
    return index[::-1]
