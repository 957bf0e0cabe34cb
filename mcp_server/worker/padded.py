"""Memory with known bytes on both sides, for what an operator allocates: whether it writes beyond.

Native code that is called with raw addresses, through ctypes say, may write past the end of its result. The
allocator or any later kernel then fails over it, if anything does.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .tensors import is_plain

PAD = 4096  # bytes on each side; keeps the alignment of what lies between
FILL = 0xA5


class Padded(TorchDispatchMode):
    """Gives every new tensor on the CPU memory of that kind."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: "Optional[dict[str, Any]]" = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(one.alias_info is not None for one in func._schema.returns):
            return result
        known = {_address(leaf) for leaf in _pytree.tree_leaves((args, kwargs or {}))}
        return _pytree.tree_map(lambda leaf: leaf if _address(leaf) in known else self._moved(leaf), result)

    def _moved(self, leaf: Any) -> Any:
        if not (is_plain(leaf) and leaf.device.type == "cpu" and leaf.numel()) or leaf.is_inference():
            return leaf
        extent = 1 + sum((size - 1) * step for size, step in zip(leaf.shape, leaf.stride()))
        whole = torch.full((2 * PAD + extent * leaf.element_size(),), FILL, dtype=torch.uint8)
        offset = PAD // leaf.element_size()
        moved = torch.empty(0, dtype=leaf.dtype)
        moved.set_(whole.untyped_storage(), offset, leaf.shape, leaf.stride())
        moved.copy_(leaf)
        self.given.append((whole, moved))
        return moved

    def overrun(self) -> "list[dict[str, Any]]":
        """The tensors around which something was written, with the extent of that in bytes."""
        found = []
        for whole, tensor in self.given:
            before = _changed(whole[:PAD].flip(0))
            after = _changed(whole[-PAD:])
            if before or after:
                layout = {"shape": list(tensor.shape), "dtype": str(tensor.dtype)}
                found.append({**layout, "before": before, "after": after})
        return found


def call_padded(func: Any, args: Any, kwargs: "dict[str, Any]") -> "tuple[Any, list[dict[str, Any]]]":
    """The result of an operator, and where it wrote beyond what it had allocated.

    A dispatch mode sees what an operator does inside only below the operator itself: its kernel for the CPU
    is called as such. Another device's is called as ever, and tells nothing.
    """
    tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    on_host = bool(tensors) and all(is_plain(leaf) and leaf.device.type == "cpu" for leaf in tensors)
    if not on_host or not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU"):
        return func(*args, **kwargs), []
    with torch.no_grad(), Padded() as padded:
        result = func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
    return result, padded.overrun()


def _address(leaf: Any) -> int:
    plain = is_plain(leaf) and leaf.device.type == "cpu" and leaf.numel()
    return int(leaf.untyped_storage().data_ptr()) if plain else 0


def _changed(guard: torch.Tensor) -> int:
    """How far from the tensor the last byte is that something wrote."""
    written = (guard != FILL).nonzero()
    return int(written[-1]) + 1 if written.numel() else 0
