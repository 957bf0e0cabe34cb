"""Memory that a call shares with the program: outputs, mutated inputs, user-managed constants.

In-place operations increase a tensor's `_version`. If it changes during a call, another thread wrote to the
tensor, because kernels of a package write through raw addresses and do not count (torch 2.8-2.15).

`load_constants(…, user_managed=True)` keeps raw addresses (torch 2.8-2.15): if the program later mutates or
frees these tensors, the package computes with the changed memory.

`MemoryLog` journals what the program, another thread or a stream did to storage that a call reads or
returned, apart from the calls themselves. Each event has the kind of `storage`, the `act` on it, and the
`interval` in which it happened (see `logs/captured.py`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..encode import frames
from ..process import capturing, idle, unmapped
from ..tensors import checksum, is_plain, too_short
from .journal import Journal
from .streams import Snapshot, Streams, storage_of


def version_of(leaf: Any) -> int:
    """The version count. 0 for tensors of inference mode, which have none."""
    return 0 if leaf.is_inference() else int(leaf._version)


def address_of(leaf: Any) -> int:
    """The address of the storage of a plain tensor. 0 for anything else."""
    plain = is_plain(leaf) and leaf.device.type != "meta"
    return int(leaf.untyped_storage().data_ptr()) if plain else 0


MAX_OUTPUTS = 4096  # latest outputs that are remembered


class Outputs:
    """The outputs of the latest calls. None of them is kept alive."""

    def __init__(self) -> None:
        self.known: deque[tuple[int, int, Any]] = deque(maxlen=MAX_OUTPUTS)  # call, place, output
        self.storages: deque[tuple[int, StorageWeakRef, int]] = deque(maxlen=MAX_OUTPUTS)

    def add(self, call: int, outputs: Iterable[Any]) -> None:
        tensors = [each for each in outputs if isinstance(each, torch.Tensor)]
        self.known += [(call, place, weakref.ref(each)) for place, each in enumerate(tensors)]
        storages = [each.untyped_storage() for each in tensors if is_plain(each)]
        self.storages += [(call, StorageWeakRef(each), each.nbytes()) for each in storages]

    def kept(self) -> dict[str, int]:
        """Count the storages of outputs that are still in use, their calls and their bytes."""
        alive = {ref.cdata: (call, size) for call, ref, size in list(self.storages) if not ref.expired()}
        return {
            "kept_outputs": len(alive),
            "kept_calls": len({call for call, _ in alive.values()}),
            "kept_bytes": sum(size for _, size in alive.values()),
        }

    def calls_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The calls whose outputs these tensors are or share memory with, each once.

        Ignore memory that several calls returned, such as a constant or an input.
        """
        owners: dict[int, set[int]] = {}
        for call, _, output in list(self.known):
            tensor = output()
            if tensor is not None:
                owners.setdefault(address_of(tensor), set()).add(call)
        found = [owners.get(address_of(tensor), set()) for tensor in tensors if address_of(tensor)]
        return list(dict.fromkeys(call for each in found if len(each) == 1 for call in each))

    def places_of(self, tensors: Iterable[torch.Tensor], call: int) -> list[int]:
        """The positions of these tensors among the outputs of a call. Empty if any is not an output."""
        outputs = [(place, output()) for of, place, output in list(self.known) if of == call]
        known = {_memory(tensor): place for place, tensor in outputs if tensor is not None}
        found = [known.get(_memory(tensor), -1) for tensor in tensors]
        return found if min(found, default=-1) >= 0 else []


def _memory(tensor: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return address_of(tensor), tuple(tensor.shape), tensor.stride()


MAX_WATCHED_OUTPUTS = 64  # outputs that are watched
MAX_COMPARED_BYTES = 1 << 20  # larger outputs are not read to find writes through numpy
MOST_GIVEN = 4  # most reports of refilled inputs: a program may refill its buffers before each call
GRACE = 2  # calls; a loop variable holds the previous output until the next call returns


class InputMemory(NamedTuple):
    """The memory of a call's input: its address, the tensor that owns it, and that tensor's version count."""

    address: int
    owner: Any
    version: int


class _Given(NamedTuple):
    """The last call that had this memory as input `place`, with its load and thread."""

    call: int
    load: int
    place: int
    thread: int
    memory: InputMemory


class _View(NamedTuple):
    """An output with the memory of an input. `place`: (call, output, input). `version`: its write count."""

    turn: int
    place: tuple[int, int, int]
    output: Any
    input: InputMemory
    values: str
    version: int


class Aliases:
    """Remembers the latest inputs, and the latest outputs that share memory with an input."""

    def __init__(self) -> None:
        self.turn = 0
        self.views: deque[_View] = deque(maxlen=MAX_WATCHED_OUTPUTS)
        self.given: dict[int, _Given] = {}  # by address
        self.told = 0

    def inputs(self, leaves: list[torch.Tensor]) -> list[InputMemory | None]:
        """The memory of the inputs of a call, without keeping it alive."""
        found: list[InputMemory | None] = []
        for leaf in leaves:
            address = address_of(leaf)
            owner = leaf if leaf._base is None else leaf._base  # the tensor of which this one is a view
            watched = bool(address) and not leaf.is_inference()
            found.append(InputMemory(address, weakref.ref(owner), version_of(owner)) if watched else None)
        return found

    def before(self, inputs: list[InputMemory | None]) -> list[tuple[int, _Given]]:
        """List the inputs that an earlier call also had, each with the last such call."""
        last = [self.given.get(now.address) if now is not None else None for now in inputs]
        pairs = enumerate(zip(inputs, last))
        return [(n, b) for n, (now, b) in pairs if now and b and b.memory.owner() is now.owner()]

    def again(
        self, call: int, inputs: list[InputMemory | None], before: list[tuple[int, _Given]], load: int = 0
    ) -> Iterable[tuple[str, int, int]]:
        """Yield (act, input, earlier call) for inputs that an earlier call also had, as `before` lists them.

        `written`: the input has changed since. `given`: all inputs are unchanged, and from another thread.
        """
        thread, same = threading.get_ident(), []
        for place, earlier in before:
            now = inputs[place]
            unchanged = now is not None and now.version == earlier.memory.version
            if unchanged and earlier.thread != thread:
                same.append(("given", place, earlier.call))
            elif not unchanged and self.told < MOST_GIVEN:
                self.told += 1
                yield "written", place, earlier.call
        if inputs and len(same) == len(inputs):
            yield same[0]
        if len(self.given) > MAX_OUTPUTS:
            self.given.clear()
        known = ((n, each) for n, each in enumerate(inputs) if each is not None)
        self.given.update({each.address: _Given(call, load, n, thread, each) for n, each in known})

    def returned(self, call: int, inputs: list[InputMemory | None], outputs: Any) -> None:
        """Watch the outputs of a call that are views of its inputs."""
        self.turn += 1
        for place, output in enumerate(outputs):
            address = address_of(output)
            for position, known in enumerate(inputs):
                if known is not None and address and known.address == address:
                    at = (call, place, position)
                    values, version = _values(output), version_of(output)
                    self.views.append(_View(self.turn, at, weakref.ref(output), known, values, version))

    def overwritten(self) -> list[list[int]]:
        """List (call, output, input) of each live output whose memory was mutated after the call."""
        found, first = [], True
        for view in list(self.views):
            output, owner = view.output(), view.input.owner()
            if output is None or self.turn - view.turn < GRACE - 1:
                continue
            counted = owner is not None and version_of(owner) != view.input.version
            # Writes through numpy change no count. To find some, compare the values of the oldest output.
            if counted or (first and _values(output) not in ("", view.values)):
                found.append(list(view.place))
            first = False
        return found

    def reread(self, leaves: list[torch.Tensor]) -> Iterable[tuple[int, int]]:
        """Yield (output, input) for each input of a call that was mutated through an earlier output."""
        addresses = [address_of(leaf) for leaf in leaves]
        for view in list(self.views):
            output = view.output()
            if output is not None and view.input.address in addresses and version_of(output) != view.version:
                yield view.place[1], addresses.index(view.input.address)


def _content(leaf: torch.Tensor) -> tuple[int, str]:
    return version_of(leaf), _values(leaf) if is_plain(leaf) else ""


def _values(output: torch.Tensor) -> str:
    """A digest of a small CPU tensor. Empty for others."""
    small = output.numel() * output.element_size() <= MAX_COMPARED_BYTES and output.device.type == "cpu"
    return checksum(output.detach()) if small and not unmapped([output]) else ""


SHARE = 0.02  # share of the elapsed time in which constants may be read at calls
AT_FAILURE = 0.2  # the same share after a failure
ALLOWANCE_S = 0.1  # seconds that are allowed in addition
MAX_TRIED = 16  # constants whose ends are read before each call


@dataclass(frozen=True, eq=False)
class _Constant:
    """A user-managed constant, its memory, and an empty tensor that shares its version count.

    The tensor itself may be a temporary view, as `state_dict()` creates them, so only a weak reference is
    kept. `digest` covers the original values: writes through numpy or an unrelated view change no version
    count. `storage` and `view` (dtype, offset, shape, stride) are None if the memory cannot be read again.
    """

    tensor: Any
    place: tuple[int, int]
    count: torch.Tensor | None
    version: int
    storage: Any
    view: tuple[Any, ...] | None
    digest: str

    @classmethod
    def of(cls, tensor: Any, digest: str) -> "_Constant":
        plain = is_plain(tensor)
        count: torch.Tensor | None = None
        if plain and not tensor.is_inference():
            with torch.inference_mode(False), torch.no_grad():
                count = tensor.detach()  # shares the version count
                count.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            count = count if version_of(count) == version_of(tensor) else None
        as_is = plain and tensor.device.type != "meta" and not tensor.is_conj() and not tensor.is_neg()
        readable = bool(digest) and as_is
        return cls(
            weakref.ref(tensor),
            _place(tensor.untyped_storage()),
            count,
            int(count._version) if count is not None else 0,
            storage_of(tensor) if readable else None,
            (tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()) if readable else None,
            digest,
        )

    def written(self) -> bool:
        """Whether the count of in-place writes changed, which all views of the memory share."""
        return self.count is not None and self.count._version != self.version

    def refilled(self) -> bool:
        """Whether the memory has other values. If it is gone or moved, return `written`."""
        now = self.memory()
        if now is None or unmapped([now]):
            return self.written()
        return checksum(now) != self.digest

    def memory(self) -> torch.Tensor | None:
        """A view of the original memory, even if the original tensor is gone. None if it was freed."""
        if self.storage is None or self.view is None:
            return None
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or _place(storage) != self.place:
            return None
        dtype, offset, shape, stride = self.view
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, stride)


def _place(storage: Any) -> tuple[int, int]:
    return int(storage.data_ptr()), int(storage.nbytes())


class Managed:
    """Tracks the user-managed constants of each load."""

    def __init__(self) -> None:
        self.known: dict[int, dict[str, _Constant]] = {}
        self.began = time.monotonic()
        self.spent_s = 0.0
        self.needed_s: dict[int, float] = {}  # seconds to read the constants of a load once

    def update(
        self, load: int, constants: Mapping[str, Any], managed: bool, digests: Mapping[str, str] = {}
    ) -> None:
        """Record an update. Unless `managed`, the package has copied these constants."""
        known = self.known.setdefault(load, {})
        for name, tensor in constants.items():
            known.pop(str(name), None)
            if managed:
                known[str(name)] = _Constant.of(tensor, digests.get(name, ""))

    def moved(self, load: int) -> list[str]:
        """List constants whose memory is no longer at the address that the package uses."""
        tensors = [(name, known.tensor(), known.place) for name, known in self.known.get(load, {}).items()]
        return [
            n for n, tensor, at in tensors if tensor is not None and _place(tensor.untyped_storage()) != at
        ]

    def unmapped(self, load: int) -> list[str]:
        """List constants whose first or last byte cannot be read.

        Truncating a mapped file leaves such pages: reading one ends the process with SIGBUS. Only the last
        constants are tried, because this runs before each call and a shorter file loses these first.
        """
        last = list(self.known.get(load, {}).items())[-MAX_TRIED:]
        known = [(name, memory) for name, each in last if (memory := each.memory()) is not None]
        return [known[place][0] for place in unmapped([memory for _, memory in known])]

    def counts(self, load: int) -> dict[str, int]:
        """The counts of in-place writes, by constant."""
        known = self.known.get(load, {}).items()
        return {name: constant.count._version for name, constant in known if constant.count is not None}

    def counted(self, load: int) -> list[str]:
        """List constants whose count of in-place writes changed since the update."""
        return [name for name, constant in self.known.get(load, {}).items() if constant.written()]

    def refilled(self, load: int, share: float = SHARE) -> list[str] | None:
        """List constants whose values differ from those at the update. None if no time budget is left."""
        known = self.known.get(load)
        if not known:
            return []
        begin = time.monotonic()
        left = ALLOWANCE_S + share * (begin - self.began) - self.spent_s
        if self.needed_s.get(load, 0.0) > left:
            return None
        found = [name for name, constant in known.items() if constant.refilled()]
        self.needed_s[load] = time.monotonic() - begin
        self.spent_s += self.needed_s[load]
        return found


@dataclass(frozen=True, eq=False)
class Watched:
    """The memory of the inputs of a call that has begun. `gone` means that some of it cannot be read.

    `versions` (with digests: writes through numpy are not counted) and `constants` hold counts of writes, if
    another thread may write during the call. `shared`
    lists inputs that a call of another load had before: (input, that call, its input).
    """

    gone: bool
    snapshot: Snapshot | None
    versions: list[tuple[torch.Tensor, tuple[int, str]]]
    constants: tuple[int, dict[str, int]]  # the load, and the counts
    inputs: list[InputMemory | None]
    shared: list[tuple[int, int, int]]


class MemoryLog:
    """Journals the events of memory, and remembers what is needed to see them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.managed = Managed()
        self.aliases = Aliases()
        self.streams = Streams(self.tell)
        self.unread: set[int] = set()  # loads whose constants were not read at their last call
        self.outputs: set[tuple[int, int, int]] = set()  # outputs that were reported, to report each once

    def tell(self, storage: str, act: str, interval: str, call: int | None, **more: Any) -> None:
        """Write one event for call number `call`."""
        self.journal.event(
            "memory", storage=storage, act=act, interval=interval, call=call, frames=frames(), **more
        )

    def entering(self, call: int, load: int, inputs: list[torch.Tensor]) -> Watched:
        """Handle the start of a call: report what happened to its memory before."""
        gone, recording = dict.fromkeys(unmapped(inputs), "it is not mapped"), capturing()
        gone.update(too_short(inputs))
        for place, why in gone.items():
            self.tell("input", "unmapped", "call", call, input=place, names=[why])
        for act, names in (("moved", self.managed.moved(load)), ("unmapped", self.managed.unmapped(load))):
            if names:
                self.tell("constant", act, "update", call, load=load, names=names)
        self.unread.add(load)
        if not (recording or self.streams.several):
            self._look(load, call, SHARE)
        if load in self.unread and (names := self.managed.counted(load)):
            self.tell("constant", "written", "update", call, load=load, names=names, counted=True)
        for number, output, place in self.aliases.overwritten():
            if (number, output, place) not in self.outputs:
                self.outputs.add((number, output, place))
                self.tell("output", "written", "output", number, output=output, input=place)
        for output, place in dict.fromkeys(self.aliases.reread(inputs)):
            self.tell("input", "written", "output", call, output=output, input=place)
        snapshot = None if recording else self.streams.snapshot(inputs)
        if recording:
            self.streams.watch_graph(call, inputs)
        several = threading.active_count() > 1  # another thread may write the inputs during the call
        versions = [(leaf, _content(leaf)) for leaf in inputs] if several and not gone else []
        constants = load, self.managed.counts(load) if several else {}
        memory = self.aliases.inputs(inputs)
        before = self.aliases.before(memory)
        shared = [(place, each.call, each.place) for place, each in before if each.load != load]
        for act, place, earlier in self.aliases.again(call, memory, before, load):
            self.tell("input", act, "calls", call, input=place, earlier=earlier)
        return Watched(bool(gone), snapshot, versions, constants, memory, shared)

    def returned(self, call: int, watched: Watched, outputs: Any, readable: bool) -> None:
        """Handle the return of `outputs` (`readable` or not): report what happened to the inputs."""
        self.aliases.returned(call, watched.inputs, outputs)
        if watched.snapshot is not None:
            for place in watched.snapshot.raced() if readable else ():
                self.tell("input", "written", "stream", call, input=place)
            self.streams.pending_uses.add(call, watched.snapshot.inputs)
        for place, (leaf, before) in enumerate(watched.versions):
            if _content(leaf) != before:
                self.tell("input", "written", "call", call, input=place)
        load, counts = watched.constants
        now = self.managed.counts(load) if counts else {}
        if names := [name for name, count in counts.items() if now.get(name, count) != count]:
            self.tell("constant", "written", "call", call, load=load, names=names, counted=True)

    def failed(self, load: int | None = None, call: int | None = None) -> None:
        """Read more constants, because a call of `load` or a check of the program failed."""
        if any(self.managed.known.values()) and not capturing() and idle():
            for each in sorted(self.unread) if load is None else self.unread & {load}:
                self._look(each, call, AT_FAILURE)

    def _look(self, load: int, call: int | None, share: float) -> None:
        """Read the constants of a load, if the time budget allows, and report which were written."""
        names = self.managed.refilled(load, share)
        if names is not None:
            self.unread.discard(load)
        if names:
            self.tell("constant", "written", "update", call, load=load, names=names)
