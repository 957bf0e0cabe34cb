"""Keeps tensors of launches as files, up to a cap."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .report import Report
from .safetensors_file import stem, write


class Saver:
    """Saves into `directory`, or nowhere when that is None; `cap` bytes in all."""

    def __init__(self, directory: "Optional[str]", cap: int) -> None:
        self.directory = directory
        self.cap = self.left = cap
        self.refused = 0

    def save(
        self, where: "dict[str, Any]", phase: str, facts: "dict[str, Any]", tensor: torch.Tensor
    ) -> "Optional[str]":
        """The path of the new file; None when nothing is to be saved, or this cannot be.

        `where` tells the launch and its kernel, `facts` name, stride and device of the tensor.
        """
        if self.directory is None:
            return None
        size = tensor.numel() * tensor.element_size()
        if size > self.left or tensor.layout is not torch.strided or tensor.is_nested:
            self.refused += 1
            return None
        self.left -= size
        name = facts["name"] or facts["parameter"]
        told = {**where, "stride": facts.get("stride"), "device": facts.get("device")}
        try:
            place = stem(where["launch"], where["kernel"], name, phase)
            return write(self.directory, place, name, tensor, told)
        except (KeyError, OSError):  # a dtype that the format does not have; a full disk
            self.refused += 1
            return None

    def close(self, report: Report) -> None:
        if self.refused:
            report.event("not_saved", tensors=self.refused, cap=self.cap)
