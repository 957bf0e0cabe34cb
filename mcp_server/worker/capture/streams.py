"""CUDA streams and graphs around a call: cross-stream frees, races on inputs, freed inputs of graphs.

Cross-stream free: the caching allocator reuses freed memory on the stream that allocated it, its owner,
without waiting for other streams (`Tensor.record_stream`). A package that still runs on another stream may
then read the new contents. This cannot happen if the owner waited for that stream, if the stream was recorded
on the tensor, or if nothing was allocated since.

Race: a call reads its inputs on the current stream. If another stream still writes one of them, a copy made
on the current stream differs from the values after synchronization.

Every replay of a CUDA graph reads the addresses of its capture, even if the tensors there were freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, NamedTuple

import torch

from ..process import synchronize

MOST_BYTES = 256 << 20  # larger inputs are not copied
Tell = Callable[..., None]  # writes an event of the memory log
DEFAULT_POOL = (0, 0)  # `segment_pool_id` of memory that no graph owns, torch 2.8-2.15


def storage_of(tensor: torch.Tensor) -> Any:
    """A weak reference to the storage of a tensor."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())


class PendingUse(NamedTuple):
    """Input `place` of a call: its storage, the streams that read and own it, and the allocations so far."""

    call: int
    place: int
    storage: Any
    reader: int
    owner: int
    allocations: int


class PendingUses:
    """Inputs that a call reads on another stream than their owner, until the owner waits for that stream."""

    def __init__(self, tell: Tell, allocations: Callable[[], int] | None = None) -> None:
        self.tell = tell
        self.allocations = allocations or (
            lambda: int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))
        )
        self.uses: list[PendingUse] = []
        self.recorded_on: list[tuple[Any, int]] = []  # memory, and a stream for which the allocator waits

    def add(self, call: int, leaves: list[torch.Tensor]) -> None:
        """Track the inputs of a call on the current stream."""
        if any(leaf.is_cuda for leaf in leaves):
            owners = [(*_addresses(each), int(each["stream"])) for each in torch.cuda.memory_snapshot()]
            self.track(call, leaves, int(torch.cuda.current_stream().cuda_stream), owners)

    def track(
        self, call: int, leaves: list[torch.Tensor], reader: int, owners: list[tuple[int, int, int]]
    ) -> None:
        """Track inputs. `owners`: first address, end address and stream of each segment of memory."""
        now = self.allocations()
        for place, leaf in enumerate(leaves):
            memory, address = storage_of(leaf), leaf.untyped_storage().data_ptr()
            owner = next((stream for first, end, stream in owners if first <= address < end), reader)
            if owner != reader and (memory, reader) not in self.recorded_on:
                self.uses.append(PendingUse(call, place, memory, reader, owner, now))

    def look(self, *_args: Any, **_kwargs: Any) -> None:
        """Report inputs that were freed before their owner waited, if anything was allocated since."""
        gone = [use for use in self.uses if use.storage.expired()]
        self.uses = [use for use in self.uses if use not in gone]
        now = self.allocations() if gone else 0
        for use in gone:
            if now > use.allocations:
                self.tell("input", "freed", "stream", use.call, input=use.place)

    def all_waited(self, *_args: Any, **_kwargs: Any) -> None:
        """Forget all uses: the program waited for the GPU, or for an event of an unknown stream."""
        self._keep(lambda _use: False)

    def ended(self, reader: Any, *_args: Any, **_kwargs: Any) -> None:
        """Forget the uses on a stream for which the program waited."""
        self._keep(lambda use: use.reader != int(reader.cuda_stream))

    def waits(self, owner: Any, *_args: Any, **_kwargs: Any) -> None:
        """Forget the uses of memory whose owner waited for another stream, or for its event."""
        self._keep(lambda use: use.owner != int(owner.cuda_stream))

    def recorded(self, tensor: Any, stream: Any, *_args: Any, **_kwargs: Any) -> None:
        """Hook `record_stream`: the allocator will wait for that stream before it reuses the memory."""
        new = storage_of(tensor), int(stream.cuda_stream)
        self.recorded_on = [*(one for one in self.recorded_on if not one[0].expired()), new]
        self._keep(lambda use: (use.storage, use.reader) != new)

    def _keep(self, wanted: Callable[[PendingUse], bool]) -> None:
        self.look()
        self.uses = [use for use in self.uses if wanted(use)]


def _addresses(segment: dict[str, Any]) -> tuple[int, int]:
    first = int(segment["address"])
    return first, first + int(segment["total_size"])


def waits(torch: Any, pending_uses: PendingUses) -> Iterable[tuple[Any, str, Callable[..., None]]]:
    """List functions of torch that end a pending use: (owner, name, hook to call before it)."""
    cuda = torch.cuda
    return (
        (cuda, "synchronize", pending_uses.all_waited),
        (cuda.Stream, "synchronize", pending_uses.ended),
        (cuda.Stream, "wait_stream", pending_uses.waits),
        (cuda.Stream, "wait_event", pending_uses.waits),
        (cuda.Event, "synchronize", pending_uses.all_waited),
        (torch.Tensor, "record_stream", pending_uses.recorded),
    )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Inputs of a call, and copies that were made on the stream of the call."""

    inputs: list[torch.Tensor]
    copies: list[torch.Tensor]

    def raced(self) -> list[int]:
        """List the positions of inputs that differ from their copies when all streams have finished."""
        synchronize()
        found = []
        for place, pair in enumerate(zip(self.inputs, self.copies)):
            now, then = (each.contiguous().reshape(-1).view(torch.uint8) for each in pair)
            if not torch.equal(now, then):  # compared as bytes, so that NaN equals itself
                found.append(place)
        return found


class Streams:
    """Remembers whether several streams are in use, and what captured graphs read."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.several = False
        self.graph_inputs: list[tuple[int, int, Any]] = []  # call, number of the input, storage
        self.pending_uses = PendingUses(tell)

    def snapshot(self, leaves: list[torch.Tensor]) -> Snapshot | None:
        """Copy the inputs. None if only one stream is in use, or if they are too large."""
        self.pending_uses.look()
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        if not self.several or size > MOST_BYTES or not any(leaf.is_cuda for leaf in leaves):
            return None
        inputs = [leaf.detach() for leaf in leaves]
        return Snapshot(inputs, [leaf.clone() for leaf in inputs])

    def watch_graph(self, call: int, leaves: list[torch.Tensor]) -> None:
        """Watch the inputs of a call that is captured into a graph, unless the graph owns their memory."""
        segments = torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else []
        pools = [tuple(segment.get("segment_pool_id", DEFAULT_POOL)) for segment in segments]
        owned = [_addresses(each) for each, pool in zip(segments, pools) if pool != DEFAULT_POOL]
        for place, leaf in enumerate(leaves):
            if not any(first <= leaf.data_ptr() < end for first, end in owned):
                self.graph_inputs.append((call, place, storage_of(leaf)))

    def replaying(self, _graph: Any, *_args: Any, **_kwargs: Any) -> None:
        """Before a replay, report each input that was freed since the capture, once."""
        gone = [one for one in self.graph_inputs if one[2].expired()]
        self.graph_inputs = [one for one in self.graph_inputs if one not in gone]
        for call, place, _ in gone:
            self.tell("input", "freed", "graph", call, input=place)
