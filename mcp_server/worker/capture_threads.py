"""Whether another thread wrote an input of a call while the call ran.

A tensor counts the in-place operations on it (`_version`). Kernels of a package write through raw addresses
and are not counted (torch 2.8-2.15).
"""

from __future__ import annotations

import threading
from typing import Any

import torch


def versions(leaves: list[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    """The inputs with their counts; empty where no other thread could write them."""
    return [(leaf, _version(leaf)) for leaf in leaves] if threading.active_count() > 1 else []


def rewritten(before: list[tuple[torch.Tensor, int]]) -> list[int]:
    """Positions of the inputs that were written since."""
    return [place for place, (leaf, count) in enumerate(before) if _version(leaf) != count]


def _version(leaf: Any) -> int:
    """Tensors of inference mode keep no count."""
    return 0 if leaf.is_inference() else int(leaf._version)
