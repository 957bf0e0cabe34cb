"""What the hook tells of work on several CUDA streams and of CUDA graphs, around a call of a package.

A call reads its inputs on the current stream. Where another stream still writes one of them, a copy made in
the order of the current stream differs from what stands there once all streams are done. A captured graph
reads the addresses of its capture at every replay, whatever became of the tensors that were there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch

from .callers import frames
from .calling import synchronize
from .capture_lent import Lent
from .journal import Journal

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
        self.lent = Lent(journal)

    def entered(self, *_args: Any, **_kwargs: Any) -> None:
        """The program makes another stream the current one."""
        self.several = True

    def snapshot(self, leaves: list[torch.Tensor]) -> Optional[Snapshot]:
        """Copies of the inputs; None where one stream is all there is, or where they are too large."""
        self.lent.look()
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
