"""Tensors that a program held when a check of its own failed: one may be what the check expected.

Those of its variables, and attributes of what is in them, where the functions that it was in name them.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any, Iterator, Optional

import torch

from .calling import capturing, idle
from .source_at import function_at
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
    """Variables of all frames, then attributes, by names that have a dot."""
    found = [(name, value) for frame in frames for name, value in list(frame.f_locals.items())]
    found += [named for frame in frames for named in _attributes(frame)]
    yield from ((name, value) for name, value in found if isinstance(value, torch.Tensor) and _plain(value))


def _attributes(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Attributes of variables that the function of this frame names; properties are not asked."""
    function = function_at(frame, frame.f_lineno)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = getattr(frame.f_locals.get(node.value.id), "__dict__", {})
            if isinstance(holder, dict):
                yield "{}.{}".format(node.value.id, node.attr), holder.get(node.attr)


def _plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.numel() > 1


def keep(store: Storehouse, number: int, frames: list[FrameType]) -> Optional[str]:
    """The file with those tensors; None where there are none."""
    try:
        found = copies(frames, readable())
    except RuntimeError:  # no memory for them on the device
        found = copies(frames, host())
    return store.save("held", number, found) if found else None
