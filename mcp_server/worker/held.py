"""Tensors in a program's variables when a check of its own failed: one may be what the check expected."""

from __future__ import annotations

from types import FrameType
from typing import Any, Iterator, Optional

import torch

from .compare import compare
from .report import Report
from .storehouse import Storehouse

MOST = 8
MOST_BYTES = 64 << 20


def tensors_in(frames: list[FrameType]) -> dict[str, torch.Tensor]:
    """Tensors in variables of these frames by name, innermost first, as far as they are few and small.

    Those of the host alone: a device may be at work still, or broken.
    """
    found: dict[str, torch.Tensor] = {}
    left = MOST_BYTES
    for name, value in _variables(frames):
        size = value.numel() * value.element_size()
        if name not in found and size <= left and len(found) < MOST:
            found[name] = value.detach()
            left -= size
    return found


def _variables(frames: list[FrameType]) -> Iterator[tuple[str, torch.Tensor]]:
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            if isinstance(value, torch.Tensor) and _plain(value):
                yield name, value


def _plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() > 1
    )


def keep(store: Storehouse, number: int, frames: list[FrameType]) -> Optional[str]:
    """The file with those tensors; None where there are none."""
    found = tensors_in(frames)
    if not found:
        return None
    return store.save("held", number, {name: tensor.clone() for name, tensor in found.items()})


def compare_held(held: "dict[str, torch.Tensor]", result: Any, report: Report) -> None:
    """Event `compared_held`: whether each tensor that has the layout of an output equals one."""
    outputs = [leaf for leaf in result if isinstance(leaf, torch.Tensor)]
    equal: dict[str, bool] = {}
    for name, tensor in held.items():
        alike = [one for one in outputs if (one.shape, one.dtype) == (tensor.shape, tensor.dtype)]
        if alike:
            equal[name] = any(compare(tensor, one)["equal"] for one in alike)
    report.event("compared_held", equal=equal)
