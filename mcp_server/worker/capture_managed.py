"""Constants whose memory the program still owns: whether it is where the package was told, and as it was.

`load_constants(…, user_managed=True)` keeps raw addresses (torch 2.8-2.15): what the program does to those
tensors later, the package computes with.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional

import torch

from .calling import capturing, idle
from .capture_threads import version_of
from .checksums import checksum
from .mapped import unmapped
from .tensors import is_plain

SHARE = 0.02  # of the time so far may go into reading the constants at calls,
AT_FAILURE = 0.2  # this much of it where something failed,
ALLOWANCE_S = 0.1  # and so many seconds in any case


class Memory(NamedTuple):
    """Which part of which storage a tensor shows. `storage` does not keep the memory alive."""

    storage: Any
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Constant:
    """A given tensor, its memory, and a tensor of no elements that shares its count of in-place writes.

    The caller may hand over views of parameters that nobody else holds, as `state_dict()` makes them.
    `digest` is of the values that it was given with; writes through numpy or through another view of the
    memory, as of an arena that is filled anew, show in no count.
    """

    tensor: Any
    address: int
    size: int
    count: Optional[torch.Tensor]
    version: int
    memory: Optional[Memory]
    digest: str


class Managed:
    """Remembers the constants that the program manages, by load."""

    def __init__(self) -> None:
        self.known: dict[int, dict[str, _Constant]] = {}
        self.began = time.monotonic()
        self.spent_s = 0.0
        self.needed_s: dict[int, float] = {}  # to read the constants of a load once

    def given(
        self, load: int, constants: Mapping[str, Any], managed: bool, digests: Mapping[str, str] = {}
    ) -> None:
        """An update: of these constants the package has copies unless they stay the program's."""
        known = self.known.setdefault(load, {})
        for name, tensor in constants.items():
            known.pop(str(name), None)
            if managed:
                known[str(name)] = _constant(tensor, digests.get(name, ""))

    def moved(self, load: int) -> list[str]:
        """Constants whose memory is not where the package was told."""
        known = self.known.get(load, {})
        return [name for name, held in known.items() if not _in_place(held)]

    def altered(self, load: int) -> list[str]:
        """Constants that were written in place since they were given."""
        known = self.known.get(load, {})
        return [name for name, held in known.items() if _written(held)]

    def refilled(self, load: int, share: float = SHARE) -> Optional[list[str]]:
        """Constants of which the memory holds other values than it was given with.

        That takes reading it: None once that took more than this share of the time so far. Of memory that
        cannot be read the count of writes is told.
        """
        known = self.known.get(load)
        if not known:
            return []
        begin = time.monotonic()
        left = ALLOWANCE_S + share * (begin - self.began) - self.spent_s
        if self.needed_s.get(load, 0.0) > left:
            return None
        found = [name for name, held in known.items() if _refilled(held)]
        self.needed_s[load] = time.monotonic() - begin
        self.spent_s += self.needed_s[load]
        return found

    def refilled_by_now(self) -> dict[int, list[str]]:
        """Of each load that has such constants, for a program of which a check has just failed."""
        if not any(self.known.values()) or capturing() or not idle():
            return {}
        found = {load: self.refilled(load, AT_FAILURE) for load in list(self.known)}
        return {load: names for load, names in found.items() if names}


def _constant(tensor: Any, digest: str) -> _Constant:
    count = _count(tensor)
    version = int(count._version) if count is not None else 0
    memory = _memory(tensor) if digest else None
    return _Constant(weakref.ref(tensor), *_place(tensor), count, version, memory, digest)


def _count(tensor: Any) -> Optional[torch.Tensor]:
    """A tensor with the count of another and none of its memory; None where no count is kept."""
    if not is_plain(tensor) or tensor.is_inference():
        return None
    with torch.inference_mode(False), torch.no_grad():
        count = tensor.detach()
        count.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return count if version_of(count) == version_of(tensor) else None


def _place(tensor: Any) -> tuple[int, int]:
    """Address and bytes of the storage behind a tensor."""
    storage = tensor.untyped_storage()
    return int(storage.data_ptr()), int(storage.nbytes())


def _in_place(held: _Constant) -> bool:
    tensor = held.tensor()
    return tensor is None or _place(tensor) == (held.address, held.size)


def _memory(tensor: Any) -> Optional[Memory]:
    """None for what cannot be read again as it was."""
    if not is_plain(tensor) or tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg():
        return None
    from torch.multiprocessing.reductions import StorageWeakRef

    storage = StorageWeakRef(tensor.untyped_storage())
    return Memory(storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def _written(held: _Constant) -> bool:
    """By the count of in-place writes, which all views of a tensor share, whatever part of it they show."""
    return held.count is not None and held.count._version != held.version


def _refilled(held: _Constant) -> bool:
    """Whether the memory holds other values by now; memory that is gone or elsewhere is not read."""
    now = _now(held)
    if now is None or unmapped([now]):
        return _written(held)
    return checksum(now) != held.digest


def _now(held: _Constant) -> Optional[torch.Tensor]:
    """A tensor that shows the memory which was given, whatever became of the one that showed it then."""
    if held.memory is None:
        return None
    storage = torch.UntypedStorage._new_with_weak_ptr(held.memory.storage.cdata)
    if storage is None or (storage.data_ptr(), storage.nbytes()) != (held.address, held.size):
        return None
    with torch.inference_mode(False), torch.no_grad():
        empty = torch.empty(0, dtype=held.memory.dtype, device=storage.device)
        return empty.set_(storage, held.memory.offset, held.memory.shape, held.memory.stride)
