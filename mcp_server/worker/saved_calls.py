"""The file of a call: what the hook saves, what is read back, and a file made from a recording's bytes.

The leaves come back with the same strides, offsets and aliasing: `torch.save` keeps whole storages and their
sharing; a small view of a large storage is cut to the span that it touches when the whole would not fit the
cap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.utils import _pytree

from .report import Refused, Report
from .tensors import cut_out, span, storage_bytes

if TYPE_CHECKING:  # the hook imports this file into every program
    from .protocol import CallRecord, RebuildRequest, RecordedTensor

CALL_FORMAT = "aoti-debug-call-1"
PLAIN = (int, float, bool, str, type(None))


class TooLarge(Exception):
    """The leaves need more bytes than the cap."""


_dumped: list[tuple[Any, str]] = []  # the last tree: a model is called with the same one again and again


def pack(args: Any, kwargs: Any, cap: int) -> CallRecord:
    """A record of at most `cap` bytes of storage for `torch.save`. Raises `TooLarge`."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    if not _dumped or _dumped[0][0] != spec:
        try:
            text = str(_pytree.treespec_dumps(spec))
        except Exception:
            text = ""
        _dumped[:] = [(spec, text)]
    return {"format": CALL_FORMAT, "leaves": pack_leaves(leaves, cap), "spec": _dumped[0][1]}


def pack_leaves(leaves: list[Any], cap: int) -> list[Any]:
    """Tensors are detached (sharing kept), plain values become `{"value": v}`, the rest `{"repr": text}`."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    whole = storage_bytes(tensors)
    cut = whole > cap
    if cut and sum(span(tensor.shape, tensor.stride()) * tensor.element_size() for tensor in tensors) > cap:
        raise TooLarge("{} bytes of inputs, the cap is {}".format(whole, cap))

    def packed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return cut_out(leaf.detach()) if cut else leaf.detach()
        return {"value": leaf} if isinstance(leaf, PLAIN) else {"repr": repr(leaf)[:300]}

    return [packed(leaf) for leaf in leaves]


def restore(record: CallRecord) -> tuple[list[Any], Optional[tuple[Any, Any]]]:
    """The leaves, and (args, kwargs) if the tree was serialisable and every leaf was restored."""
    leaves = [
        leaf["value"] if isinstance(leaf, dict) and "value" in leaf else leaf for leaf in record["leaves"]
    ]
    if not record.get("spec") or any(isinstance(leaf, dict) for leaf in leaves):
        return leaves, None
    args, kwargs = _pytree.tree_unflatten(leaves, _pytree.treespec_loads(record["spec"]))
    return leaves, (tuple(args), dict(kwargs))


def _recorded(asked: RecordedTensor) -> torch.Tensor:
    """The tensor, with its strides, on its device. Raises `Refused` if its memory is incomplete."""
    dtype: Any = getattr(torch, asked["dtype"])
    sizes, strides = asked["sizes"], asked["strides"]
    needed = span(sizes, strides) * torch.empty(0, dtype=dtype).element_size()
    if needed != asked["length"]:
        raise Refused("the bytes that were kept are not those of the layout", asked["length"], str(needed))
    if not needed:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=asked["device"])
    with open(asked["file"], "rb") as file:
        file.seek(asked["offset"])
        memory = bytearray(file.read(needed))
    if len(memory) != needed:
        raise Refused("the recording was cut", len(memory), str(needed))
    return torch.frombuffer(memory, dtype=dtype).to(asked["device"]).as_strided(sizes, strides)


def operate_rebuild(request: RebuildRequest, report: Report) -> None:
    """Write the call that a recording kept to `out`, as the file of a captured call."""
    report.phase("rebuilding")
    leaves = [_recorded(each) for each in request["tensors"]]
    torch.save({"format": CALL_FORMAT, "leaves": leaves, "spec": ""}, request["out"])
