"""Whether another thread wrote an input of a call while the call ran, or before it began.

A tensor counts the in-place operations on it (`_version`). Kernels of a package write through raw addresses
and are not counted (torch 2.8-2.15).
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch


def versions(leaves: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The inputs with their counts; empty where no other thread could write them."""
    return [(leaf, version_of(leaf)) for leaf in leaves] if threading.active_count() > 1 else []


def rewritten(before: list[tuple[torch.Tensor, int]]) -> list[int]:
    """Positions of the inputs that were written since."""
    return [place for place, (leaf, count) in enumerate(before) if version_of(leaf) != count]


class Repeats:
    """Remembers the inputs of the last call of each load."""

    def __init__(self) -> None:
        self.last: dict[int, list[tuple[Any, int]]] = {}

    def again(self, load: int, leaves: list[torch.Tensor]) -> list[int]:
        """Positions of the inputs that are the very tensors of the call before, and not written since.

        Views of one tensor count as that tensor.
        """
        before = self.last.get(load, [])
        self.last[load] = [(weakref.ref(owner_of(leaf)), version_of(leaf)) for leaf in leaves]
        pairs = enumerate(zip(before, leaves))
        return [
            place
            for place, ((old, count), leaf) in pairs
            if old() is owner_of(leaf) and count == version_of(leaf)
        ]


def owner_of(leaf: Any) -> Any:
    """The tensor whose memory a view shows; itself for one of its own."""
    return leaf if leaf._base is None else leaf._base


def version_of(leaf: Any) -> int:
    """Tensors of inference mode keep no count."""
    return 0 if leaf.is_inference() else int(leaf._version)
