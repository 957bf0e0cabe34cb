"""`describe_files`: facts of tensors that were saved one a file."""

from __future__ import annotations

from typing import Any

import torch

from .failures import Refused
from .inputs import load_file
from .report import Report
from .tensors import describe
from .values import first_non_finite


def operate(request: dict[str, Any], report: Report) -> None:
    """One event `file` for each of `files`: its path, and the tensor's facts or why it cannot be read."""
    for path in request["files"]:
        report.event("file", path=path, **_facts(path))


def _facts(path: str) -> dict[str, Any]:
    try:
        tensor = load_file(path, where="cpu")
    except Refused as refused:
        return {"unreadable": refused.what}
    if not isinstance(tensor, torch.Tensor):
        return {"unreadable": "no tensor but " + type(tensor).__name__}
    return {**describe(tensor), "non_finite": first_non_finite(tensor)}
