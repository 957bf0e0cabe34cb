"""Inputs of a recorded call: tensors from the bytes that a recording kept of them."""

from __future__ import annotations

from typing import Any

import torch

from .protocol import RebuildRequest, RecordedTensor
from .report import Refused, Report
from .tensors import CALL_FORMAT, span


def tensor(asked: RecordedTensor) -> torch.Tensor:
    """The tensor, with its strides, on its device. Raises `Refused` where its memory is not all there."""
    dtype: Any = getattr(torch, asked["dtype"])
    sizes, strides = asked["sizes"], asked["strides"]
    needed = span(sizes, strides) * torch.empty(0, dtype=dtype).element_size()
    if needed != asked["length"]:
        raise Refused("the bytes that were kept are not those of the layout", asked["length"], str(needed))
    if not needed:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=asked["device"])
    with open(asked["file"], "rb") as file:
        file.seek(asked["offset"])
        memory = bytearray(file.read(needed))
    if len(memory) != needed:
        raise Refused("the recording was cut", len(memory), str(needed))
    return torch.frombuffer(memory, dtype=dtype).to(asked["device"]).as_strided(sizes, strides)


def operate(request: RebuildRequest, report: Report) -> None:
    """Write the call to `out`, as the file of a captured call."""
    report.phase("rebuilding")
    leaves = [tensor(each) for each in request["tensors"]]
    torch.save({"format": CALL_FORMAT, "leaves": leaves, "spec": ""}, request["out"])
