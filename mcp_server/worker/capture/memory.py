"""Memory that a call shares with the program: aliased outputs, mutated inputs, user-managed constants.

In-place operations increase a tensor's `_version`, so a change during a call means that another thread wrote
it. Kernels of a package write through raw addresses, which are not counted (torch 2.8-2.15).

`load_constants(…, user_managed=True)` keeps raw addresses (torch 2.8-2.15): when the program later mutates or
frees those tensors, the package computes with the changed memory.
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
    """The inputs with their version counts; empty if there is only one thread."""
    return [(leaf, version_of(leaf)) for leaf in leaves] if threading.active_count() > 1 else []


def rewritten(before: list[tuple[torch.Tensor, int]]) -> list[int]:
    """Positions of the inputs that were mutated since."""
    return [place for place, (leaf, count) in enumerate(before) if version_of(leaf) != count]


class Repeats:
    """Remembers the inputs of the last call of each load."""

    def __init__(self) -> None:
        self.last: dict[int, list[tuple[Any, int]]] = {}

    def again(self, load: int, leaves: list[torch.Tensor]) -> list[int]:
        """Positions of the inputs that are the same tensors as in the previous call, not mutated since.

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
class InputMemory:
    """The memory of an input of a call: its address, the tensor that owns it, and that tensor's count."""

    address: int
    owner: Any
    version: int


@dataclass(frozen=True, eq=False)
class _View:
    turn: int
    place: tuple[int, int, int]
    output: Any
    input: InputMemory
    values: str


class Aliases:
    """Remembers the latest outputs that share memory with an input."""

    def __init__(self) -> None:
        self.turn = 0
        self.views: deque[_View] = deque(maxlen=MAX_WATCHED_OUTPUTS)

    def inputs(self, leaves: list[torch.Tensor]) -> list[Optional[InputMemory]]:
        """The memory of the inputs of a call, without keeping it alive."""
        return [_input_memory(leaf) for leaf in leaves]

    def returned(self, call: int, inputs: list[Optional[InputMemory]], outputs: Any) -> None:
        """Watch the outputs of a call that are views of its inputs."""
        self.turn += 1
        for place, output in enumerate(outputs):
            address = address_of(output)
            for position, known in enumerate(inputs):
                if known is not None and address and known.address == address:
                    at = (call, place, position)
                    self.views.append(_View(self.turn, at, weakref.ref(output), known, _values(output)))

    def overwritten(self) -> list[list[int]]:
        """(call, output, input) of each output that is still alive and whose memory was mutated since."""
        kept = [(view, output) for view in self._old() if (output := view.output()) is not None]
        return [
            list(view.place)
            for number, (view, output) in enumerate(kept)
            if _counted(view) or (number == 0 and _values(output) not in ("", view.values))
        ]

    def _old(self) -> Iterator[_View]:
        return (view for view in list(self.views) if self.turn - view.turn >= GRACE - 1)


def _counted(view: _View) -> bool:
    """Whether the version count changed. Writes through numpy do not change it."""
    owner = view.input.owner()
    return owner is not None and version_of(owner) != view.input.version


def _values(output: torch.Tensor) -> str:
    """A digest of a small output in the host's memory; empty where it cannot be read."""
    small = output.numel() * output.element_size() <= MAX_COMPARED_BYTES and output.device.type == "cpu"
    return checksum(output.detach()) if small and not unmapped([output]) else ""


def _input_memory(leaf: torch.Tensor) -> Optional[InputMemory]:
    address = address_of(leaf)
    if not address or leaf.is_inference():
        return None
    owner = owner_of(leaf)
    return InputMemory(address, weakref.ref(owner), version_of(owner))


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
    """A user-managed constant, its memory, and an empty tensor that shares its version count.

    The tensor itself may be a temporary view, as `state_dict()` makes them, so only a weak reference is kept.
    `digest` is of the original values: writes through numpy or an unrelated view change no version count.
    """

    tensor: Any
    address: int
    size: int
    count: Optional[torch.Tensor]
    version: int
    memory: Optional[Memory]
    digest: str


class Managed:
    """Tracks the user-managed constants of each load."""

    def __init__(self) -> None:
        self.known: dict[int, dict[str, _Constant]] = {}
        self.began = time.monotonic()
        self.spent_s = 0.0
        self.needed_s: dict[int, float] = {}  # to read the constants of a load once

    def update(
        self, load: int, constants: Mapping[str, Any], managed: bool, digests: Mapping[str, str] = {}
    ) -> None:
        """Record an update. Unless `managed`, the package has copied these constants."""
        known = self.known.setdefault(load, {})
        for name, tensor in constants.items():
            known.pop(str(name), None)
            if managed:
                known[str(name)] = _constant(tensor, digests.get(name, ""))

    def moved(self, load: int) -> list[str]:
        """Constants whose memory is no longer at the address that the package uses."""
        known = self.known.get(load, {})
        return [name for name, constant in known.items() if not _in_place(constant)]

    def altered(self, load: int) -> list[str]:
        """Constants that were mutated since the update."""
        known = self.known.get(load, {})
        return [name for name, constant in known.items() if _written(constant)]

    def refilled(self, load: int, share: float = SHARE) -> Optional[list[str]]:
        """Constants whose memory has other values than at the update.

        None once reading them has used up its budget, this share of the run time. Memory that cannot be read
        is judged by its version count.
        """
        known = self.known.get(load)
        if not known:
            return []
        begin = time.monotonic()
        left = ALLOWANCE_S + share * (begin - self.began) - self.spent_s
        if self.needed_s.get(load, 0.0) > left:
            return None
        found = [name for name, constant in known.items() if _refilled(constant)]
        self.needed_s[load] = time.monotonic() - begin
        self.spent_s += self.needed_s[load]
        return found

    def refilled_by_now(self) -> dict[int, list[str]]:
        """`refilled` of every load, for a program whose own check has just failed."""
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


def _in_place(constant: _Constant) -> bool:
    tensor = constant.tensor()
    return tensor is None or _place(tensor) == (constant.address, constant.size)


def _memory(tensor: Any) -> Optional[Memory]:
    """None for what cannot be read again as it was."""
    if not is_plain(tensor) or tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg():
        return None
    from torch.multiprocessing.reductions import StorageWeakRef

    storage = StorageWeakRef(tensor.untyped_storage())
    return Memory(storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def _written(constant: _Constant) -> bool:
    """By the count of in-place writes, which all views of a tensor share, whatever part of it they show."""
    return constant.count is not None and constant.count._version != constant.version


def _refilled(constant: _Constant) -> bool:
    """Whether the memory holds other values by now; memory that is gone or elsewhere is not read."""
    now = _now(constant)
    if now is None or unmapped([now]):
        return _written(constant)
    return checksum(now) != constant.digest


def _now(constant: _Constant) -> Optional[torch.Tensor]:
    """A view of the constant's original memory, even if the original tensor is gone; None if it was freed."""
    if constant.memory is None:
        return None
    storage = torch.UntypedStorage._new_with_weak_ptr(constant.memory.storage.cdata)
    if storage is None or (storage.data_ptr(), storage.nbytes()) != (constant.address, constant.size):
        return None
    with torch.inference_mode(False), torch.no_grad():
        empty = torch.empty(0, dtype=constant.memory.dtype, device=storage.device)
        return empty.set_(storage, constant.memory.offset, constant.memory.shape, constant.memory.stride)


MAX_KEPT_ANSWERS = 8  # answers of one loaded model that are kept, the latest
MAX_ANSWER_BYTES = 8 << 20  # of one


class OutputRecorder:
    """Saves the outputs of recent calls with mutated constants. Counts against the same time budget."""

    def __init__(self, store: CaptureStore, managed: Managed) -> None:
        self.store = store
        self.managed = managed
        self.kept: dict[int, deque[str]] = {}

    def keep(self, number: int, load: int, result: Any) -> Optional[str]:
        """Save the outputs of a call and return the file; None if they are too large or cannot be saved."""
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
