"""What calls gave that computed with refilled constants: to be held against the same calls, made again."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Optional

import torch

from .capture_managed import Managed
from .layout import storage_bytes
from .storehouse import Storehouse

MOST = 8  # answers of one loaded model that are kept, the latest
MOST_BYTES = 8 << 20  # of one


class Answers:
    """Saves outputs, of the latest calls only. Like reading the constants, that takes of the time for it."""

    def __init__(self, store: Storehouse, managed: Managed) -> None:
        self.store = store
        self.managed = managed
        self.kept: dict[int, deque[str]] = {}

    def keep(self, number: int, load: int, result: Any) -> Optional[str]:
        """The file of the tensors that a call gave; None where they are many bytes, or cannot be read."""
        tensors = [leaf.detach() for leaf in result if isinstance(leaf, torch.Tensor)]
        if not tensors or storage_bytes(tensors) > MOST_BYTES:
            return None
        begin = time.monotonic()
        try:
            path = self.store.save("returned", number, tensors)
        except (OSError, RuntimeError):
            return None
        self.managed.spent_s += time.monotonic() - begin
        kept = self.kept.setdefault(load, deque())
        kept.append(path)
        if len(kept) > MOST:
            os.unlink(kept.popleft())
        return path
