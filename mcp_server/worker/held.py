"""Tensors in a program's variables when a check of its own failed: one may be what the check expected."""

from __future__ import annotations

from types import FrameType
from typing import Iterator, Optional

import torch

from .calling import capturing, idle
from .storehouse import Storehouse

MOST = 8
MOST_BYTES = 64 << 20


def copies(frames: list[FrameType], devices: "frozenset[torch.device]") -> dict[str, torch.Tensor]:
    """Copies of tensors in variables of these frames by name, innermost first, as far as they are few and
    small, and on these devices.
    """
    found: dict[str, torch.Tensor] = {}
    left = MOST_BYTES
    for name, value in _variables(frames):
        size = value.numel() * value.element_size()
        if name not in found and value.device in devices and size <= left and len(found) < MOST:
            found[name] = value.detach().clone()
            left -= size
    return found


def host() -> "frozenset[torch.device]":
    """Not a constant of this file: a device cannot be made while torch is being imported, as the hook is."""
    return frozenset({torch.device("cpu")})


def readable() -> "frozenset[torch.device]":
    """The host, and the current device if it is neither at work still nor broken."""
    if not torch.cuda.is_initialized() or capturing() or not idle():
        return host()
    return host() | {torch.device("cuda", torch.cuda.current_device())}


def _variables(frames: list[FrameType]) -> Iterator[tuple[str, torch.Tensor]]:
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor) and _plain(value):
                yield name, value


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 1


def keep(store: Storehouse, number: int, frames: list[FrameType]) -> Optional[str]:
    """The file with those tensors; None where there are none."""
    try:
        found = copies(frames, readable())
    except RuntimeError:  # no memory for them on the device
        found = copies(frames, host())
    return store.save("held", number, found) if found else None
