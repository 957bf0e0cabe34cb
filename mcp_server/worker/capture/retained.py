"""What a program still holds when a load or call fails: loaded packages, and outputs of earlier calls."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import torch

from ..process import unmapped
from ..tensors import is_plain
from .streams import storage_of

MAX_OUTPUTS = 4096  # that are watched, the latest
MAX_READ = 64  # constants that are tried before each call


class RetainedOutputs:
    """Watches the memory of outputs without keeping it alive."""

    def __init__(self) -> None:
        self.known: deque[tuple[int, str, int, Any, Any]] = deque(maxlen=MAX_OUTPUTS)

    def returned(self, call: int, outputs: Iterable[Any]) -> None:
        """Watch the outputs of a call."""
        for output in outputs:
            if isinstance(output, torch.Tensor) and is_plain(output):
                size = int(output.untyped_storage().nbytes())
                kind = output.device.type
                self.known.append((call, kind, size, storage_of(output), weakref.ref(output)))

    def now(self) -> dict[str, dict[str, int]]:
        """By kind of device: `calls`, `bytes`, and `views` for outputs of which only a view is left."""
        found: dict[str, dict[str, int]] = {}
        calls: dict[str, set[int]] = {}
        seen: set[int] = set()
        for call, kind, size, storage, output in self.known:
            if storage.expired() or storage.cdata in seen:
                continue
            seen.add(storage.cdata)
            facts = found.setdefault(kind, {"calls": 0, "bytes": 0, "views": 0})
            facts["bytes"] += size
            facts["views"] += output() is None
            calls.setdefault(kind, set()).add(call)
            facts["calls"] = len(calls[kind])
        return found


def lost(constants: Mapping[str, Optional[torch.Tensor]]) -> dict[str, str]:
    """Constants in the host's memory whose first or last byte cannot be read, with the file behind them.

    A mapped file that was made shorter leaves such pages: reading one ends the process with SIGBUS.
    """
    known = [(name, tensor) for name, tensor in constants.items() if tensor is not None][:MAX_READ]
    places = unmapped([tensor for _, tensor in known])
    return {known[place][0]: _file_at(known[place][1].data_ptr()) for place in places}


def _file_at(address: int) -> str:
    """The file that is mapped at an address; empty where none is."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            columns = line.split(None, 5)
            first, last = (int(end, 16) for end in columns[0].split("-"))
            if first <= address < last:
                path = columns[5].strip() if len(columns) > 5 else ""
                return path if os.path.isabs(path) else ""
    return ""
