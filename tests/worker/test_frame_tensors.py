"""Tensors in a program's frames when a check of its own failed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch

from mcp_server.worker.capture import checks
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.compare import equal_by_name

WORKER = Path(checks.__file__).parents[1]


def test_tensors_in_variables_are_kept_by_name(tmp_path: Path) -> None:
    """Small tensors of the host, innermost first; weights, numbers and what is elsewhere are not."""
    want, weight = torch.arange(6.0), torch.nn.Parameter(torch.ones(3))
    alone, far, name = torch.tensor(1.0), torch.ones(3, device="meta"), "text"
    path = checks.keep(CaptureStore(Journal(str(tmp_path))), 7, [sys._getframe()])
    assert path is not None and (weight.numel(), alone.dim(), far.numel(), name) == (3, 0, 3, "text")
    kept = torch.load(path, weights_only=True)
    assert list(kept) == ["want"] and torch.equal(kept["want"], want)


def test_what_is_too_large_is_left(tmp_path: Path) -> None:
    """One large variable does not keep the others away, and nothing at all is no file."""

    def check() -> str | None:
        large = torch.empty(1).expand(checks.MAX_FRAME_BYTES)
        return checks.keep(CaptureStore(Journal(str(tmp_path))), 1, [sys._getframe()]) if large.dim() else ""

    assert check() is None


def test_each_is_compared_with_the_outputs_of_its_layout() -> None:
    """Equal to one of several outputs is equal; a tensor of another shape is no expectation of this call."""
    tensors = {
        "want": torch.ones(4),
        "got": torch.zeros(4),
        "other": torch.full((4,), 7.0),
        "x": torch.ones(2),
    }
    equal = equal_by_name(tensors, [torch.zeros(4), torch.ones(4)])
    assert equal == {"want": True, "got": True, "other": False}


class Holder:
    def __init__(self, golden: torch.Tensor) -> None:
        self.golden = golden
        self.unnamed = golden + 1


def test_attributes_that_the_function_names_are_kept(tmp_path: Path) -> None:
    """By a name with a dot; what the function does not name is left."""

    def check(holder: Holder) -> str | None:
        assert holder.golden.numel() == 3
        return checks.keep(CaptureStore(Journal(str(tmp_path))), 1, [sys._getframe()])

    path = check(Holder(torch.arange(3.0)))
    assert path is not None
    kept = torch.load(path, weights_only=True)
    assert list(kept) == ["holder.golden"]


def test_a_device_is_read_only_when_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors are kept with those of the host; not while it works, nor without memory for them."""
    near, far = torch.ones(3), torch.ones(3, device="meta")
    assert list(checks.copies([sys._getframe()], torch.device("meta"))) == ["near", "far"]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(checks, "capturing", lambda: False)
    for done in (False, True):
        monkeypatch.setattr(checks, "idle", lambda done=done: done)
        assert checks.readable_device() == (torch.device("cuda", 1) if done else None)
    copies = checks.copies

    def full(frames: list[FrameType], device: torch.device | None) -> dict[str, torch.Tensor]:
        if device is not None:
            raise RuntimeError("CUDA out of memory")
        return copies(frames, device)

    monkeypatch.setattr(checks, "copies", full)
    path = checks.keep(CaptureStore(Journal(str(tmp_path))), 1, [sys._getframe()])
    assert path is not None and (near.numel(), far.numel()) == (3, 3)
    assert list(torch.load(path, weights_only=True)) == ["near"]


def test_the_hook_loads_no_more_of_torch() -> None:
    """It is attached while torch is imported; what evaluates and compares needs all of torch."""
    found, left = set(), ["capture.hook"]
    for name in left:
        tree = ast.parse((WORKER / f"{name.replace('.', '/')}.py").read_text())
        here = name.split(".")[:-1]
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
        near = {
            ".".join([*here[: len(here) + 1 - node.level], module])
            for node in imports
            for module in ([node.module] if node.module else [alias.name for alias in node.names])
        }
        left += sorted(near - set(left))
        found |= near
        values = [each for node in tree.body if isinstance(node, ast.Assign) for each in ast.walk(node.value)]
        calls = [ast.unparse(each.func) for each in values if isinstance(each, ast.Call)]
        assert not [call for call in calls if call.startswith("torch.")], name
    assert "capture.journal" in found and not found & {"compare", "exported", "interpret", "loading", "run"}
