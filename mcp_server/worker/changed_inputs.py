"""Whether a call changed inputs that it is to update in place."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Mapping

import torch

from .checksums import checksum
from .report import Report


@contextlib.contextmanager
def telling(asked: Mapping[str, int], flat: "list[Any]", report: Report) -> "Iterator[None]":
    """Event `changed_inputs` after a call that came back: of each place in `asked`, whether its values
    changed, and whether its address is no multiple of the bytes that are asked for.
    """
    places = {int(place): int(size) for place, size in asked.items()}
    tensors = {place: flat[place] for place in places if place < len(flat)}
    before = {place: checksum(each) for place, each in tensors.items() if isinstance(each, torch.Tensor)}
    yield
    told = [
        {
            "input": place,
            "changed": checksum(tensors[place]) != digest,
            "misaligned": tensors[place].data_ptr() % places[place] != 0,
        }
        for place, digest in before.items()
    ]
    if told:
        report.event("changed_inputs", inputs=told)
