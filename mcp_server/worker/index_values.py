"""`index_values`: elements of inputs that are used as indices or divisors, held against what they may be."""

from __future__ import annotations

from typing import Any

import torch

from .inputs import flatten, read
from .report import Report


def operate(request: dict[str, Any], report: Report) -> None:
    """Event `index_values`, one per part of `parts`.

    A part is {"input", "offset", "stride", "low", "high"}: the elements offset, offset + stride, … of a flat
    input, which must lie in [low, high]. Told are min, max, how many are outside, and the first of those.
    Of a part with "unlike", a number that no element may be, outside are those that are it.
    """
    flat = _flat(request)
    for part in request["parts"]:
        index = int(part["input"])
        facts = look(flat[index], part) if index < len(flat) else {"elements": 0}
        report.event("index_values", part=part, **facts)


def _flat(request: dict[str, Any]) -> list[torch.Tensor]:
    """The input tensors on the CPU, in calling order."""
    return [leaf.cpu() for leaf in flatten(read(request), request.get("in_spec"))]


def look(tensor: torch.Tensor, part: dict[str, Any]) -> dict[str, Any]:
    """Facts of the addressed elements of one tensor."""
    offset, stride = int(part["offset"]), max(int(part["stride"]), 1)
    values = tensor.contiguous().view(-1)[offset::stride]
    found: dict[str, Any] = {"elements": values.numel()}
    if not values.numel():
        return found
    wrong = part.get("unlike")
    outside = (values < part["low"]) | (values > part["high"]) if wrong is None else values == wrong
    found.update(min=values.min().item(), max=values.max().item(), outside=int(outside.sum()))
    if found["outside"]:
        first = int(outside.nonzero()[0])
        place = offset + first * stride
        found.update(value=values[first].item(), index=_logical(place, list(tensor.shape)))
    return found


def _logical(flat: int, shape: list[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    return index
