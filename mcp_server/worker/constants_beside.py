"""The constants that launches read, held against those of the exported program."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .probes import BEFORE, Event, tensor_of
from .probes import arguments as probe_arguments
from .report import Report
from .updates import constants_of

PART = 1 << 22  # elements looked at together


class Constants:
    """Event `constant_differs` for a constant whose values are not the program's own, at its first launch.

    `names` gives the program's name of each constant of the package. One that Inductor laid out anew is not
    compared.
    """

    def __init__(self, module: Any, names: "dict[str, str]", report: Report) -> None:
        self.own = constants_of(module)
        self.names = names
        self.report = report
        self.seen: "set[str]" = set()

    def look(self, event: Event) -> None:
        if event.phase != BEFORE:
            return
        for argument in probe_arguments(event):
            name = argument.name.decode()
            tensor = tensor_of(argument) if name in self.names and name not in self.seen else None
            if tensor is not None:
                self.seen.add(name)
                self._compare(self.names[name], tensor, int(event.launch))

    def _compare(self, name: str, tensor: torch.Tensor, launch: int) -> None:
        own = self.own.get(name)
        held = _whole(tensor, own) if own is not None else None
        if own is None or held is None:
            return
        different = _differing(held, own.detach())
        if different:
            self.report.event(
                "constant_differs",
                name=name,
                launch=launch,
                elements=held.numel(),
                different=different,
            )


def _differing(held: torch.Tensor, own: torch.Tensor) -> int:
    """How many elements differ; two NaN do not. In parts, since the masks of a large weight are large."""
    rows = max(1, PART // max(1, own[:1].numel())) if own.dim() else 1
    pairs = zip(held.split(rows), own.split(rows)) if own.dim() else [(held, own)]
    return sum(_differing_part(left, right.to(left.device)) for left, right in pairs)


def _differing_part(held: torch.Tensor, own: torch.Tensor) -> int:
    return int(((held != own) & ~(held.isnan() & own.isnan())).sum())


def _whole(tensor: torch.Tensor, own: torch.Tensor) -> "Optional[torch.Tensor]":
    """The constant behind what may be a view of it, laid out as the program's; None if it cannot be."""
    span = 1 + sum((size - 1) * step for size, step in zip(own.shape, own.stride()))
    room = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
    if tensor.dtype != own.dtype or room < span or not own.numel():
        return None
    return tensor.as_strided(own.shape, own.stride(), 0)
