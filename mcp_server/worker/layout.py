"""The leaves of a call, saved so that they come back with the same strides, offsets and aliasing.

`torch.save` keeps whole storages and their sharing; a small view of a large storage is cut to the span that
it touches when the whole would not fit the cap.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils import _pytree

CALL_FORMAT = "aoti-debug-call-1"
PLAIN = (int, float, bool, str, type(None))


class TooLarge(Exception):
    """The leaves need more bytes than the cap."""


def pack(args: Any, kwargs: Any, cap: int) -> dict[str, Any]:
    """A record of plain types and tensors for `torch.save`; at most `cap` bytes of storage.

    Raises `TooLarge`.
    """
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    return {
        "format": CALL_FORMAT,
        "leaves": pack_leaves(leaves, cap),
        "spec": _dump(spec),
    }


_dumped: list[tuple[Any, str]] = []  # the last tree: a model is called with the same one again and again


def _dump(spec: Any) -> str:
    """The serialised tree, or an empty string when it has node types that cannot be serialised."""
    if _dumped and _dumped[0][0] == spec:
        return _dumped[0][1]
    try:
        text = str(_pytree.treespec_dumps(spec))
    except Exception:
        text = ""
    _dumped[:] = [(spec, text)]
    return text


def pack_leaves(leaves: list[Any], cap: int) -> list[Any]:
    """Tensors detached (sharing kept), plain values as `{"value": v}`, the rest as `{"repr": text}`."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    whole = storage_bytes(tensors)
    cut = whole > cap
    if cut and sum(_span(tensor) * tensor.element_size() for tensor in tensors) > cap:
        raise TooLarge("{} bytes of inputs, the cap is {}".format(whole, cap))
    return [_pack_leaf(leaf, cut) for leaf in leaves]


def _pack_leaf(leaf: Any, cut: bool) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _cut(leaf.detach()) if cut else leaf.detach()
    if isinstance(leaf, PLAIN):
        return {"value": leaf}
    return {"repr": repr(leaf)[:300]}


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that the tensor touches."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))


def _cut(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the touched span with the same shape and strides, and the same offset modulo 64 bytes."""
    lead = tensor.storage_offset() % max(1, 64 // tensor.element_size())
    span = _span(tensor)
    copy = torch.empty(lead + span, dtype=tensor.dtype, device=tensor.device)
    if span:
        copy[lead:].copy_(tensor.as_strided((span,), (1,), tensor.storage_offset()))
    return copy.as_strided(tuple(tensor.shape), tuple(tensor.stride()), lead)


def restore(record: dict[str, Any]) -> tuple[list[Any], Optional[tuple[Any, Any]]]:
    """The leaves, and (args, kwargs) when the tree was serialisable and every leaf came back."""
    leaves = [leaf["value"] if _is_value(leaf) else leaf for leaf in record["leaves"]]
    if not record.get("spec") or any(isinstance(leaf, dict) for leaf in leaves):
        return leaves, None
    args, kwargs = _pytree.tree_unflatten(leaves, _pytree.treespec_loads(record["spec"]))
    return leaves, (tuple(args), dict(kwargs))


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, dict) and "value" in leaf


def sharing(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Groups of positions whose tensors share one storage."""
    groups: dict[int, list[int]] = {}
    for position, tensor in enumerate(tensors):
        address = tensor.untyped_storage().data_ptr()
        if address:
            groups.setdefault(address, []).append(position)
    return [group for group in groups.values() if len(group) > 1]
