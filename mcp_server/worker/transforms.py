"""Changes to the inputs of a call, for counter-tests: the call is made again without the suspected cause."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .element_changes import drop_rows, pad, set_elements
from .failures import Refused

Leaves = list[Any]


def apply(leaves: Leaves, changes: list[dict[str, Any]]) -> Leaves:
    """`leaves` with each change made in turn; a change is `{"change": NAME, "input": INDEX, ...}`.

    Raises `Refused` for an unknown change or an input that is not there.
    """
    for change in changes:
        name = change.get("change")
        if name not in CHANGES:
            raise Refused("unknown change of inputs", name, ", ".join(sorted(CHANGES)))
        leaves = CHANGES[name](list(leaves), change)
    return leaves


def _on_one(function: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]) -> Any:
    """A change of one input, as a change of the whole list."""

    def changed(leaves: Leaves, change: dict[str, Any]) -> Leaves:
        index = int(change["input"])
        if not 0 <= index < len(leaves):
            raise Refused("no such input", index, "0 to {}".format(len(leaves) - 1))
        leaves[index] = function(leaves[index], change)
        return leaves

    return changed


def _cast(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    return tensor.to(getattr(torch, str(change["dtype"])))


def _move(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    return tensor.to(str(change["device"]))


def _contiguous(tensor: torch.Tensor, _change: dict[str, Any]) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _restride(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """The same values laid out with the strides that the package was compiled for."""
    stride = [int(step) for step in change["stride"]]
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride)) if tensor.numel() else 0
    out = torch.zeros(span, dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, stride)
    return out.copy_(tensor)


def _align(tensor: torch.Tensor, _change: dict[str, Any]) -> torch.Tensor:
    """A copy with the same strides at the begin of memory of its own, as allocators align it."""
    return _restride(tensor.detach(), {"stride": tensor.stride()})


def _clamp(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Values into [low, high]; with `stride` and `offset`, only flat elements offset + k * stride."""
    low, high = change.get("low"), change.get("high")
    if change.get("stride") is None:
        return tensor.clamp(low, high)
    flat = tensor.contiguous().view(-1).clone()
    part = flat[int(change.get("offset", 0)) :: int(change["stride"])]
    part.copy_(part.clamp(low, high))
    return flat.view(tensor.shape)


def _replace(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Elements that are `old` made `new`."""
    return tensor.masked_fill(tensor == change["old"], change["new"])


def _resize(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Dimension `dim` cut, or filled up by repeating what is there, to `size` elements."""
    dim, size = int(change["dim"]), int(change["size"])
    have = tensor.shape[dim]
    if have == 0:
        shape = list(tensor.shape)
        shape[dim] = size
        return tensor.new_zeros(shape)
    index = torch.arange(size, device=tensor.device) % have
    return tensor.index_select(dim, index).contiguous()


def _fill(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Non-finite values replaced by `value`."""
    finite = torch.isfinite(tensor)
    return torch.where(finite, tensor, torch.full_like(tensor, float(change.get("value", 0.0))))


def _permute(leaves: Leaves, change: dict[str, Any]) -> Leaves:
    """The leaves in another order: `order[i]` is the old position of the new leaf i."""
    order = [int(position) for position in change["order"]]
    if sorted(order) != list(range(len(leaves))):
        raise Refused("not an order of the inputs", order, "each position once")
    return [leaves[position] for position in order]


CHANGES: dict[str, Any] = {
    "cast": _on_one(_cast),
    "move": _on_one(_move),
    "contiguous": _on_one(_contiguous),
    "restride": _on_one(_restride),
    "align": _on_one(_align),
    "clamp": _on_one(_clamp),
    "replace": _on_one(_replace),
    "resize": _on_one(_resize),
    "fill": _on_one(_fill),
    "elements": _on_one(set_elements),
    "pad": _on_one(pad),
    "drop_rows": _on_one(drop_rows),
    "permute": _permute,
}
