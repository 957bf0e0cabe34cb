"""Constants whose memory the program still owns: whether it is where the package was told, and as it was.

`load_constants(…, user_managed=True)` keeps raw addresses (torch 2.8-2.15): what the program does to those
tensors later, the package computes with.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Mapping, Optional

import torch

from .capture_threads import version_of
from .tensors import is_plain


@dataclass(frozen=True, eq=False)
class _Constant:
    """A given tensor, its memory, and a tensor of no elements that shares its count of in-place writes.

    The caller may hand over views of parameters that nobody else holds, as `state_dict()` makes them.
    """

    tensor: Any
    address: int
    size: int
    count: Optional[torch.Tensor]
    version: int


class Managed:
    """Remembers the constants that the program manages, by load."""

    def __init__(self) -> None:
        self.known: dict[int, dict[str, _Constant]] = {}

    def given(self, load: int, constants: Mapping[str, Any], managed: bool) -> None:
        """An update: of these constants the package has copies unless they stay the program's."""
        known = self.known.setdefault(load, {})
        for name, tensor in constants.items():
            known.pop(str(name), None)
            if managed:
                known[str(name)] = _constant(tensor)

    def moved(self, load: int) -> list[str]:
        """Constants whose memory is not where the package was told."""
        known = self.known.get(load, {})
        return [name for name, held in known.items() if not _in_place(held)]

    def altered(self, load: int) -> list[str]:
        """Constants that were written in place since they were given."""
        known = self.known.get(load, {})
        return [name for name, c in known.items() if c.count is not None and c.count._version != c.version]


def _constant(tensor: Any) -> _Constant:
    count = _count(tensor)
    version = int(count._version) if count is not None else 0
    return _Constant(weakref.ref(tensor), *_memory(tensor), count, version)


def _count(tensor: Any) -> Optional[torch.Tensor]:
    """A tensor with the count of another and none of its memory; None where no count is kept."""
    if not is_plain(tensor) or tensor.is_inference():
        return None
    with torch.inference_mode(False), torch.no_grad():
        count = tensor.detach()
        count.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return count if version_of(count) == version_of(tensor) else None


def _memory(tensor: Any) -> tuple[int, int]:
    """Address and bytes of the storage behind a tensor."""
    storage = tensor.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())


def _in_place(held: _Constant) -> bool:
    tensor = held.tensor()
    return tensor is None or _memory(tensor) == (held.address, held.size)
