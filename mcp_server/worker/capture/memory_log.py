"""The log of memory: what happened, beside the calls themselves, to storage that a call reads or gave out.

Each event has a `storage`, the `act` upon it and the `interval` in which that was done; `logs.captured` has
the record. The program did it, or another thread or stream of it, and no call waited for that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Optional

import torch

from ..encode import frames
from ..process import capturing, idle, unmapped
from .journal import Journal
from .memory import AT_FAILURE, SHARE, Aliases, InputMemory, Managed, version_of
from .streams import Snapshot, Streams


@dataclass(frozen=True, eq=False)
class Watched:
    """The memory of the inputs of a call that has begun. `gone`: some of it cannot be read."""

    gone: bool
    snapshot: Optional[Snapshot]
    versions: list[tuple[torch.Tensor, int]]
    inputs: list[Optional[InputMemory]]


class MemoryLog:
    """Journals the events, and remembers what later ones are told from."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.managed = Managed()
        self.aliases = Aliases()
        self.streams = Streams(self.tell)
        self.unread: set[int] = set()  # loads whose constants were not read at the last call
        self.outputs: set[tuple[int, int, int]] = set()  # those that were told, each once

    def tell(self, storage: str, act: str, interval: str, call: Optional[int], **more: Any) -> None:
        """Write one event, of call number `call`."""
        self.journal.event(
            "memory", storage=storage, act=act, interval=interval, call=call, frames=frames(), **more
        )

    def entering(self, call: int, load: int, inputs: list[torch.Tensor]) -> Watched:
        """A call begins: tell what became of its memory before."""
        gone, recording = unmapped(inputs), capturing()
        for place in gone:
            self.tell("input", "unmapped", "call", call, input=place)
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
        snapshot = None if recording else self.streams.snapshot(inputs)
        if recording:
            self.streams.watch_graph(call, inputs)
        several = threading.active_count() > 1  # another one may write the inputs during the call
        versions = [(leaf, version_of(leaf)) for leaf in inputs] if several else []
        return Watched(bool(gone), snapshot, versions, self.aliases.inputs(inputs))

    def returned(self, call: int, watched: Watched, outputs: Any, readable: bool) -> None:
        """A call has returned `outputs`, whose device is `readable`: tell what became of its inputs."""
        self.aliases.returned(call, watched.inputs, outputs)
        if watched.snapshot is not None:
            for place in watched.snapshot.raced() if readable else ():
                self.tell("input", "written", "stream", call, input=place)
            self.streams.pending_uses.add(call, watched.snapshot.inputs)
        for place, (leaf, count) in enumerate(watched.versions):
            if version_of(leaf) != count:
                self.tell("input", "written", "call", call, input=place)

    def failed(self, load: Optional[int] = None, call: Optional[int] = None) -> None:
        """A call of `load`, or a check of the program, has failed: look more closely at constants."""
        if any(self.managed.known.values()) and not capturing() and idle():
            for each in sorted(self.unread) if load is None else self.unread & {load}:
                self._look(each, call, AT_FAILURE)

    def _look(self, load: int, call: Optional[int], share: float) -> None:
        """Read the constants of a load, if that may take so much time, and tell which were written."""
        names = self.managed.refilled(load, share)
        if names is not None:
            self.unread.discard(load)
        if names:
            self.tell("constant", "written", "update", call, load=load, names=names)
