"""Inputs that the program lets go of while a stream that does not own their memory may still read them.

The caching allocator gives memory back to the stream it was allocated on, at once and without waiting
(torch/cuda, `Tensor.record_stream`). A package that was called on another stream then reads what the owner's
next tensor puts there. Whether that happens is a matter of time; whether anything rules it out is not: the
owner waited for the other stream, or the stream was recorded on the tensor, or nobody allocated since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable

import torch

from .callers import frames
from .journal import Journal


@dataclass(frozen=True)
class Loan:
    """Input `place` of a call: its memory, which stream reads and which owns it, `allocations` until then."""

    call: int
    place: int
    storage: Any
    reader: int
    owner: int
    allocations: int


class Lent:
    """What calls on other streams were given, until the owner of the memory waited for them."""

    def __init__(self, journal: Journal, allocations: Callable[[], int] = lambda: _allocations()) -> None:
        self.journal = journal
        self.allocations = allocations
        self.loans: list[Loan] = []
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
                self.loans.append(Loan(call, place, memory, reader, owner, now))

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

    def _keep(self, wanted: Callable[[Loan], bool]) -> None:
        self.look()
        self.loans = [loan for loan in self.loans if wanted(loan)]


def _owners() -> list[tuple[int, int, int]]:
    return [_segment(segment) for segment in torch.cuda.memory_snapshot()]


def _segment(segment: dict[str, Any]) -> tuple[int, int, int]:
    first = int(segment["address"])
    return first, first + int(segment["total_size"]), int(segment["stream"])


def _allocations() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def waits(torch: Any, lent: Lent) -> Iterable[tuple[Any, str, Callable[..., None]]]:
    """Functions of torch that end a loan: owner, name, what is told before."""
    cuda = torch.cuda
    return (
        (cuda, "synchronize", lent.all_waited),
        (cuda.Stream, "synchronize", lent.ended),
        (cuda.Stream, "wait_stream", lent.waits),
        (cuda.Stream, "wait_event", lent.waits),
        (cuda.Event, "synchronize", lent.all_waited),
        (torch.Tensor, "record_stream", lent.recorded),
    )
