"""Changes of single elements of an input: chosen by place, by row or by value, and only those.

What is chosen by several keys must fulfil them all:
- `flat`: numbers of elements in row-major order; `index`: one logical index;
- `stride` and `offset`: flat elements offset + k * stride;
- `rows`: indices along `dim` (default 0);
- `where`: {"below": low}, {"above": high}, {"equals": value}, {"non_finite": true}, {"nan": true}; an element
  fulfils it by any of its entries, so that {"below": 0, "above": 9} is what lies outside 0..9.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from .report import Refused

CHOICES = "flat, index, stride and offset, rows and dim, where"
CONDITIONS: "dict[str, Callable[[torch.Tensor, Any], torch.Tensor]]" = {
    "below": lambda values, limit: values < limit,
    "above": lambda values, limit: values > limit,
    "equals": lambda values, wanted: values == wanted,
    "non_finite": lambda values, _: ~torch.isfinite(values),
    "nan": lambda values, _: torch.isnan(values),
}


def chosen(tensor: torch.Tensor, change: "dict[str, Any]") -> torch.Tensor:
    """A mask of the shape of `tensor`. Raises `Refused` for places that it does not have."""
    mask = torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
    if change.get("flat") is not None:
        mask &= _flat(tensor, [int(place) for place in change["flat"]])
    if change.get("index") is not None:
        mask &= _at(tensor, [int(place) for place in change["index"]])
    if change.get("stride") is not None:
        strided = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
        strided[int(change.get("offset", 0)) :: int(change["stride"])] = True
        mask &= strided.view(tensor.shape)
    if change.get("rows") is not None:
        mask &= _rows(tensor, int(change.get("dim", 0)), [int(row) for row in change["rows"]])
    if change.get("where") is not None:
        mask &= _where(tensor, dict(change["where"]))
    return mask


def set_elements(tensor: torch.Tensor, change: "dict[str, Any]") -> torch.Tensor:
    """The chosen elements made `value`, or clamped to [`low`, `high`]; the strides stay."""
    mask = chosen(tensor, change)
    if "value" in change:
        value = _number(change["value"])
        if isinstance(value, float) and not math.isfinite(value) and not tensor.is_floating_point():
            raise Refused("whole numbers cannot be set to this", change["value"], "a whole number")
        values = tensor.masked_fill(mask, value)
    elif change.get("low") is None and change.get("high") is None:
        raise Refused("the change of elements names neither a value nor limits", change, "value, low, high")
    else:
        low, high = (_number(change.get(name)) for name in ("low", "high"))
        values = torch.where(mask, tensor.clamp(low, high).to(tensor.dtype), tensor)
    return as_strided_before(values, tensor)


def pad(tensor: torch.Tensor, change: "dict[str, Any]") -> torch.Tensor:
    """Dimension `dim` cut, or filled up with `value` (default 0), to `size` elements."""
    dim, size = _dimension(tensor, int(change.get("dim", 0))), int(change["size"])
    kept = tensor.narrow(dim, 0, min(size, tensor.shape[dim]))
    shape = list(tensor.shape)
    shape[dim] = size - kept.shape[dim]
    value = _number(change.get("value", 0))
    return torch.cat([kept, torch.full(shape, value, dtype=tensor.dtype, device=tensor.device)], dim)


def drop_rows(tensor: torch.Tensor, change: "dict[str, Any]") -> torch.Tensor:
    """Without the `rows` of dimension `dim`."""
    dim = _dimension(tensor, int(change.get("dim", 0)))
    rows = [int(row) for row in change["rows"]]
    line = torch.empty(tensor.shape[dim], device=tensor.device)
    gone = _rows(line, 0, rows)
    return tensor.index_select(dim, (~gone).nonzero().reshape(-1)).contiguous()


def as_strided_before(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`values` laid out with the strides of `tensor`; row-major where its elements share memory."""
    if values.stride() == tensor.stride() or not values.numel():
        return values
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride())):
        return values.contiguous()
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    memory = torch.zeros(span, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, tensor.stride()).copy_(values)


def _number(value: Any) -> Any:
    """JSON has no words for NaN and infinities: they come as text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise Refused("no number to set elements to", value, "a number, nan, inf or -inf") from None


def _flat(tensor: torch.Tensor, places: "list[int]") -> torch.Tensor:
    outside = [place for place in places if not 0 <= place < tensor.numel()]
    if outside:
        raise Refused("no such element", outside[0], "0 to {}".format(tensor.numel() - 1))
    mask = torch.zeros(tensor.numel(), dtype=torch.bool, device=tensor.device)
    mask[torch.tensor(places, dtype=torch.int64, device=tensor.device)] = True
    return mask.view(tensor.shape)


def _at(tensor: torch.Tensor, index: "list[int]") -> torch.Tensor:
    fits = len(index) == tensor.dim() and all(0 <= at < size for at, size in zip(index, tensor.shape))
    if not fits:
        raise Refused("no such element", index, "an index into shape {}".format(list(tensor.shape)))
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    mask[tuple(index)] = True
    return mask


def _rows(tensor: torch.Tensor, dim: int, rows: "list[int]") -> torch.Tensor:
    dim = _dimension(tensor, dim)
    outside = [row for row in rows if not 0 <= row < tensor.shape[dim]]
    if outside:
        raise Refused("no such row", outside[0], "0 to {}".format(tensor.shape[dim] - 1))
    line = torch.zeros(tensor.shape[dim], dtype=torch.bool, device=tensor.device)
    line[torch.tensor(rows, dtype=torch.int64, device=tensor.device)] = True
    shape = [1] * tensor.dim()
    shape[dim] = -1
    return line.view(shape).expand(tensor.shape).clone()


def _dimension(tensor: torch.Tensor, dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise Refused("no such dimension", dim, "0 to {}".format(tensor.dim() - 1))
    return dim % tensor.dim()


def _where(tensor: torch.Tensor, conditions: "dict[str, Any]") -> torch.Tensor:
    unknown = sorted(set(conditions) - set(CONDITIONS))
    if unknown or not conditions:
        raise Refused("unknown condition on elements", unknown or None, ", ".join(sorted(CONDITIONS)))
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    for name, limit in conditions.items():
        mask |= CONDITIONS[name](tensor, _number(limit))
    return mask
