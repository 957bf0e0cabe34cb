"""Outputs that are views of inputs, into which the program writes new values while it keeps the output."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Iterator, Optional

import torch

from .capture_threads import owner_of, version_of
from .checksums import checksum
from .mapped import unmapped
from .tensors import is_plain

MOST = 64  # outputs that are watched
MOST_BYTES = 1 << 20  # of an output whose values are compared, which numpy can write without a count
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
        self.views: deque[_View] = deque(maxlen=MOST)

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
    small = output.numel() * output.element_size() <= MOST_BYTES and output.device.type == "cpu"
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
