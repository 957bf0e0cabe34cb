"""What a program still holds when a load or call fails: loaded packages, and outputs of earlier calls."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import torch

from ..process import unmapped
from ..tensors import is_plain
from .streams import storage_of

MAX_OUTPUTS = 4096  # that are watched, the latest


class RetainedOutputs:
    """Watches the memory of outputs without keeping it alive."""

    def __init__(self) -> None:
        self.known: deque[tuple[int, str, int, Any]] = deque(maxlen=MAX_OUTPUTS)

    def returned(self, call: int, outputs: Iterable[Any]) -> None:
        """Watch the outputs of a call."""
        for output in outputs:
            if isinstance(output, torch.Tensor) and is_plain(output):
                size = int(output.untyped_storage().nbytes())
                self.known.append((call, output.device.type, size, storage_of(output)))

    def now(self) -> dict[str, dict[str, int]]:
        """`calls` and `bytes` by kind of device."""
        used = [entry for entry in self.known if not entry[3].expired()]
        found = {}
        for kind in {kind for _, kind, _, _ in used}:
            calls = {call for call, where, _, _ in used if where == kind}
            sizes = {storage.cdata: size for _, where, size, storage in used if where == kind}
            found[kind] = {"calls": len(calls), "bytes": sum(sizes.values())}
        return found


def lost(constants: Mapping[str, Optional[torch.Tensor]]) -> dict[str, str]:
    """Constants in the host's memory whose first or last byte cannot be read, with the file behind them.

    A mapped file that was made shorter leaves such pages: reading one ends the process with SIGBUS.
    """
    known = [(name, tensor) for name, tensor in constants.items() if tensor is not None]
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
