"""CUDA streams and graphs around a call, and inputs that are freed while a stream may read them.

Inputs that the program lets go of while a stream that does not own their memory may still read them.

The caching allocator gives memory back to the stream it was allocated on, at once and without waiting
(torch/cuda, `Tensor.record_stream`). A package that was called on another stream then reads what the owner's
next tensor puts there. Whether that happens is a matter of time; whether anything rules it out is not: the
owner waited for the other stream, or the stream was recorded on the tensor, or nobody allocated since.

What the hook tells of work on several CUDA streams and of CUDA graphs, around a call of a package.

A call reads its inputs on the current stream. Where another stream still writes one of them, a copy made in
the order of the current stream differs from what stands there once all streams are done. A captured graph
reads the addresses of its capture at every replay, whatever became of the tensors that were there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

import torch

from ..calling import synchronize
from ..encode import frames
from .journal import Journal


@dataclass(frozen=True)
class PendingUse:
    """Input `place` of a call: its memory, which stream reads and which owns it, `allocations` until then."""

    call: int
    place: int
    storage: Any
    reader: int
    owner: int
    allocations: int


class PendingUses:
    """What calls on other streams were given, until the owner of the memory waited for them."""

    def __init__(self, journal: Journal, allocations: Callable[[], int] = lambda: _allocations()) -> None:
        self.journal = journal
        self.allocations = allocations
        self.loans: list[PendingUse] = []
        self.recorded_on: list[tuple[Any, int]] = []  # memory, and a stream that the allocator waits for

    def add(self, call: int, leaves: list[torch.Tensor]) -> None:
        """A call was given these tensors, on the current stream."""
        if any(leaf.is_cuda for leaf in leaves):
            self.lend(call, leaves, int(torch.cuda.current_stream().cuda_stream), _owners())

    def lend(
        self, call: int, leaves: list[torch.Tensor], reader: int, owners: list[tuple[int, int, int]]
    ) -> None:
        """`owners`: first address, address behind the last, and stream of each segment of memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        now = self.allocations()
        for place, leaf in enumerate(leaves):
            memory = StorageWeakRef(leaf.untyped_storage())
            address = leaf.untyped_storage().data_ptr()
            owner = next((stream for first, end, stream in owners if first <= address < end), reader)
            if owner != reader and (memory, reader) not in self.recorded_on:
                self.loans.append(PendingUse(call, place, memory, reader, owner, now))

    def look(self, *_args: Any, **_kwargs: Any) -> None:
        """Tell of memory that was let go before its owner waited, where something was allocated since."""
        gone = [loan for loan in self.loans if loan.storage.expired()]
        self.loans = [loan for loan in self.loans if loan not in gone]
        now = self.allocations() if gone else 0
        for loan in gone:
            if now > loan.allocations:
                self.journal.event("input_let_go", call=loan.call, input=loan.place, frames=frames())

    def all_waited(self, *_args: Any, **_kwargs: Any) -> None:
        """The program waits for the device, or for an event: of which stream is not known."""
        self.look()
        self.loans = []

    def ended(self, reader: Any, *_args: Any, **_kwargs: Any) -> None:
        """The program waits for a stream."""
        self._keep(lambda loan: loan.reader != int(reader.cuda_stream))

    def waits(self, owner: Any, *_args: Any, **_kwargs: Any) -> None:
        """A stream waits for another one, or for an event of one."""
        self._keep(lambda loan: loan.owner != int(owner.cuda_stream))

    def recorded(self, tensor: Any, stream: Any, *_args: Any, **_kwargs: Any) -> None:
        """The allocator is told, before the call or after it, that another stream uses a tensor."""
        from torch.multiprocessing.reductions import StorageWeakRef

        told = StorageWeakRef(tensor.untyped_storage()), int(stream.cuda_stream)
        self.recorded_on = [*(one for one in self.recorded_on if not one[0].expired()), told]
        self._keep(lambda loan: (loan.storage, loan.reader) != told)

    def _keep(self, wanted: Callable[[PendingUse], bool]) -> None:
        self.look()
        self.loans = [loan for loan in self.loans if wanted(loan)]


def _owners() -> list[tuple[int, int, int]]:
    return [_segment(segment) for segment in torch.cuda.memory_snapshot()]


def _segment(segment: dict[str, Any]) -> tuple[int, int, int]:
    first = int(segment["address"])
    return first, first + int(segment["total_size"]), int(segment["stream"])


def _allocations() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def waits(torch: Any, pending_uses: PendingUses) -> Iterable[tuple[Any, str, Callable[..., None]]]:
    """Functions of torch that end a loan: owner, name, what is told before."""
    cuda = torch.cuda
    return (
        (cuda, "synchronize", pending_uses.all_waited),
        (cuda.Stream, "synchronize", pending_uses.ended),
        (cuda.Stream, "wait_stream", pending_uses.waits),
        (cuda.Stream, "wait_event", pending_uses.waits),
        (cuda.Event, "synchronize", pending_uses.all_waited),
        (torch.Tensor, "record_stream", pending_uses.recorded),
    )


MOST_BYTES = 256 << 20  # inputs above that are not copied
DEFAULT_POOL = (0, 0)  # `segment_pool_id` of memory that no graph owns, torch 2.8-2.15


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Inputs of a call, and copies of their values in the order of the stream that calls."""

    inputs: list[torch.Tensor]
    copies: list[torch.Tensor]

    def raced(self) -> list[int]:
        """Positions of the inputs that hold other values once every stream is done."""
        synchronize()
        pairs = enumerate(zip(self.inputs, self.copies))
        return [place for place, (now, then) in pairs if not torch.equal(_bits(now), _bits(then))]


@dataclass(frozen=True)
class Held:
    """An input at whose address a captured graph reads."""

    call: int
    place: int
    storage: Any


class Streams:
    """Remembers whether several streams are in use, and what captured graphs read."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.several = False
        self.held: list[Held] = []
        self.pending_uses = PendingUses(journal)

    def entered(self, *_args: Any, **_kwargs: Any) -> None:
        """The program makes another stream the current one."""
        self.several = True

    def snapshot(self, leaves: list[torch.Tensor]) -> Optional[Snapshot]:
        """Copies of the inputs; None where one stream is all there is, or where they are too large."""
        self.pending_uses.look()
        size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        if not self.several or size > MOST_BYTES or not any(leaf.is_cuda for leaf in leaves):
            return None
        inputs = [leaf.detach() for leaf in leaves]
        return Snapshot(inputs, [leaf.clone() for leaf in inputs])

    def hold(self, call: int, leaves: list[torch.Tensor]) -> None:
        """A call that is being captured into a graph: watch the memory of its inputs."""
        from torch.multiprocessing.reductions import StorageWeakRef

        owned = _of_graphs()
        for place, leaf in enumerate(leaves):
            if not any(first <= leaf.data_ptr() < end for first, end in owned):
                self.held.append(Held(call, place, StorageWeakRef(leaf.untyped_storage())))

    def replaying(self, _graph: Any, *_args: Any, **_kwargs: Any) -> None:
        """A graph is replayed: tell, once, of inputs whose memory was let go since its capture."""
        gone = [held for held in self.held if held.storage.expired()]
        self.held = [held for held in self.held if held not in gone]
        for held in gone:
            self.journal.event("graph_input_gone", call=held.call, input=held.place, frames=frames())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The values as bytes: NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _of_graphs() -> list[tuple[int, int]]:
    """Address ranges that belong to graphs: what was allocated during a capture is freed within it."""
    segments = torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else []
    return [
        (int(segment["address"]), int(segment["address"]) + int(segment["total_size"]))
        for segment in segments
        if tuple(segment.get("segment_pool_id", DEFAULT_POOL)) != DEFAULT_POOL
    ]
