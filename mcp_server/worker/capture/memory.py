"""Memory that call and program share: aliased outputs, inputs of other threads, managed constants.

Whether another thread wrote an input of a call while the call ran, or before it began.

A tensor counts the in-place operations on it (`_version`). Kernels of a package write through raw addresses
and are not counted (torch 2.8-2.15).

Constants whose memory the program still owns: whether it is where the package was told, and as it was.

`load_constants(…, user_managed=True)` keeps raw addresses (torch 2.8-2.15): what the program does to those
tensors later, the package computes with.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import torch

from ..calling import capturing, idle
from ..process import unmapped
from ..tensors import checksum, is_plain, storage_bytes
from .journal import CaptureStore


def versions(leaves: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The inputs with their counts; empty where no other thread could write them."""
    return [(leaf, version_of(leaf)) for leaf in leaves] if threading.active_count() > 1 else []


def rewritten(before: list[tuple[torch.Tensor, int]]) -> list[int]:
    """Positions of the inputs that were written since."""
    return [place for place, (leaf, count) in enumerate(before) if version_of(leaf) != count]


class Repeats:
    """Remembers the inputs of the last call of each load."""

    def __init__(self) -> None:
        self.last: dict[int, list[tuple[Any, int]]] = {}

    def again(self, load: int, leaves: list[torch.Tensor]) -> list[int]:
        """Positions of the inputs that are the very tensors of the call before, and not written since.

        Views of one tensor count as that tensor.
        """
        before = self.last.get(load, [])
        self.last[load] = [(weakref.ref(owner_of(leaf)), version_of(leaf)) for leaf in leaves]
        pairs = enumerate(zip(before, leaves))
        return [
            place
            for place, ((old, count), leaf) in pairs
            if old() is owner_of(leaf) and count == version_of(leaf)
        ]


def owner_of(leaf: Any) -> Any:
    """The tensor whose memory a view shows; itself for one of its own."""
    return leaf if leaf._base is None else leaf._base


def version_of(leaf: Any) -> int:
    """Tensors of inference mode keep no count."""
    return 0 if leaf.is_inference() else int(leaf._version)


MAX_WATCHED_OUTPUTS = 64  # outputs that are watched
MAX_COMPARED_BYTES = 1 << 20  # of an output whose values are compared, which numpy can write without a count
GRACE = 2  # calls: a variable of a loop holds the output of the call before until the next one came back


@dataclass(frozen=True, eq=False)
class Given:
    """The memory of an input of a call: its address, the tensor that owns it, and that tensor's count."""

    address: int
    owner: Any
    version: int


@dataclass(frozen=True, eq=False)
class _View:
    turn: int
    place: tuple[int, int, int]
    output: Any
    given: Given
    values: str


class Aliases:
    """Remembers the latest outputs that share memory with an input."""

    def __init__(self) -> None:
        self.turn = 0
        self.views: deque[_View] = deque(maxlen=MAX_WATCHED_OUTPUTS)

    def given(self, leaves: list[torch.Tensor]) -> list[Optional[Given]]:
        """What a call is given, without a reference that keeps it alive."""
        return [_given(leaf) for leaf in leaves]

    def returned(self, call: int, given: list[Optional[Given]], outputs: Any) -> None:
        """Watch the outputs of a call that are views of what it was given."""
        self.turn += 1
        for place, output in enumerate(outputs):
            address = address_of(output)
            for position, known in enumerate(given):
                if known is not None and address and known.address == address:
                    at = (call, place, position)
                    self.views.append(_View(self.turn, at, weakref.ref(output), known, _values(output)))

    def overwritten(self) -> list[list[int]]:
        """(call, output, input) of each output that the program keeps, and whose memory was written since."""
        kept = [(view, output) for view in self._old() if (output := view.output()) is not None]
        return [
            list(view.place)
            for number, (view, output) in enumerate(kept)
            if _counted(view) or (number == 0 and _values(output) not in ("", view.values))
        ]

    def _old(self) -> Iterator[_View]:
        return (view for view in list(self.views) if self.turn - view.turn >= GRACE - 1)


def _counted(view: _View) -> bool:
    """Whether a write of torch's was counted; one of numpy's is none, and its tensor may be gone."""
    owner = view.given.owner()
    return owner is not None and version_of(owner) != view.given.version


def _values(output: torch.Tensor) -> str:
    """A digest of a small output in the host's memory; empty where it cannot be read."""
    small = output.numel() * output.element_size() <= MAX_COMPARED_BYTES and output.device.type == "cpu"
    return checksum(output.detach()) if small and not unmapped([output]) else ""


def _given(leaf: torch.Tensor) -> Optional[Given]:
    address = address_of(leaf)
    if not address or leaf.is_inference():
        return None
    owner = owner_of(leaf)
    return Given(address, weakref.ref(owner), version_of(owner))


def address_of(leaf: Any) -> int:
    """Where the storage of a plain tensor begins; 0 for anything else."""
    plain = is_plain(leaf) and leaf.device.type != "meta"
    return int(leaf.untyped_storage().data_ptr()) if plain else 0


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


MAX_KEPT_ANSWERS = 8  # answers of one loaded model that are kept, the latest
MAX_ANSWER_BYTES = 8 << 20  # of one


class OutputRecorder:
    """Saves outputs, of the latest calls only. Like reading the constants, that takes of the time for it."""

    def __init__(self, store: CaptureStore, managed: Managed) -> None:
        self.store = store
        self.managed = managed
        self.kept: dict[int, deque[str]] = {}

    def keep(self, number: int, load: int, result: Any) -> Optional[str]:
        """The file of the tensors that a call gave; None where they are many bytes, or cannot be read."""
        tensors = [leaf.detach() for leaf in result if isinstance(leaf, torch.Tensor)]
        if not tensors or storage_bytes(tensors) > MAX_ANSWER_BYTES:
            return None
        begin = time.monotonic()
        try:
            path = self.store.save("returned", number, tensors)
        except (OSError, RuntimeError):
            return None
        self.managed.spent_s += time.monotonic() - begin
        kept = self.kept.setdefault(load, deque())
        kept.append(path)
        if len(kept) > MAX_KEPT_ANSWERS:
            os.unlink(kept.popleft())
        return path
