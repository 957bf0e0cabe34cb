"""`describe_inputs`: facts of every leaf of an inputs file, without the device that it was saved from."""

from __future__ import annotations

from typing import Any

import torch

from .inputs import arrange, load_file, read
from .layout import sharing
from .report import Report
from .tensors import describe, leaves


def operate(request: dict[str, Any], report: Report) -> None:
    """Event `inputs`: `leaves` (path, kind, layout, statistics), `sharing` (groups of one storage)."""
    asked = request.get("inputs")
    devices: dict[int, str] = {}
    if isinstance(asked, str):
        loaded = load_file(asked, where=_remember(devices))
        arranged = arrange(loaded, asked)
    else:
        arranged = read(request)
    tree = arranged.args if arranged.flat else (arranged.args, arranged.kwargs)
    found = leaves(tree)
    tensors = [leaf for _, leaf in found if isinstance(leaf, torch.Tensor)]
    report.event(
        "inputs",
        leaves=[_facts(path, leaf, devices) for path, leaf in found],
        sharing=sharing(tensors),
    )


def _remember(devices: dict[int, str]) -> Any:
    """A map_location that keeps every storage on the CPU and notes where it was saved from."""

    def locate(storage: Any, location: str) -> Any:
        devices[storage.data_ptr()] = location
        return storage

    return locate


def _facts(path: str, leaf: Any, devices: dict[int, str]) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"path": path, "kind": type(leaf).__name__, "value": repr(leaf)[:200]}
    facts = {"path": path, "kind": "tensor", **describe(leaf)}
    if leaf.layout is torch.strided and not leaf.is_nested:
        facts["device"] = devices.get(leaf.untyped_storage().data_ptr(), str(leaf.device))
    return facts
