"""What the hook tells of modules: as exported, and beside a comparison that failed."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mcp_server.worker.capture import checks
from mcp_server.worker.capture.calls import Calls
from mcp_server.worker.capture.checks import Models, attributes, digests, named_modules
from mcp_server.worker.capture.compiles import Compiles
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.encode import callers, raised_in
from mcp_server.worker.process import idle


class Gate(nn.Module):  # type: ignore[misc]
    """A layer with a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.level = 3.0
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Dropout())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) - self.level


class Server:
    """An object of a program that holds its model."""

    def __init__(self) -> None:
        self.model = Gate().train(False)


def compiled(directory: Path, module: nn.Module) -> Models:
    """The memory of a hook that saw this module being compiled."""
    models = Models(CaptureStore(Journal(str(directory))))
    models.compiling(dict(module.state_dict()))
    return models


def test_plain_attributes_of_children_are_told() -> None:
    """Numbers, words and modes, by dotted name; tensors and what begins with an underscore are not plain."""
    told = attributes(Gate().train(False))
    assert (told["level"], told["body.1.p"], told["body.1.training"]) == ("3.0", "0.5", "False")
    assert not any("weight" in name or "._" in name or name.startswith("_") for name in told)


def test_the_modules_that_a_statement_names() -> None:
    """Over several lines, and as an attribute; what the function holds besides is not named."""
    server, other, mine = Server(), Gate(), Gate()
    found = [
        named_modules(
            sys._getframe()
        ),
        mine, server.model,
    ]  # fmt: skip
    assert found[0] == {id(mine), id(server.model)} and id(other) not in found[0]


def test_a_module_with_other_weights_is_found_and_kept(tmp_path: Path) -> None:
    """It is found in an attribute of a variable, and saved once its values are not the compiled ones."""
    server, stranger = Server(), nn.Linear(6, 5)
    models = compiled(tmp_path, server.model)
    (same,) = models.near(1, callers())
    assert (same["name"], same["type"], same["file"]) == ("server.model", "Gate", None)
    with torch.no_grad():
        server.model.body[0].bias.add_(1)
    (other,) = models.near(2, callers())
    changed = [name for name, digest in same["digests"].items() if other["digests"][name] != digest]
    assert changed == ["body.0.bias"]
    assert torch.equal(torch.load(other["file"])["body.0.bias"], server.model.body[0].bias)
    assert stranger.weight.shape == (5, 6)


def test_too_many_bytes_are_told_and_not_kept(tmp_path: Path) -> None:
    """Above the cap of the storehouse the digests still say what differs."""
    module = Gate().train(False)
    models = compiled(tmp_path, module)
    models.store.cap = 8
    with torch.no_grad():
        module.body[0].weight.mul_(2)
    (told,) = models.near(1, callers())
    assert told["file"] is None and told["digests"] not in models.compiled


def test_frames_of_an_exception_are_innermost_first() -> None:
    """Variables of a function that has returned by raising are still seen through the exception."""

    def check() -> None:
        module = Gate()
        raise ValueError(type(module).__name__)

    try:
        check()
    except ValueError as error:
        places = raised_in(error)
    assert [frame.f_code.co_name for frame, _ in places[:2]] == [
        "check",
        "test_frames_of_an_exception_are_innermost_first",
    ]
    assert isinstance(places[0][0].f_locals["module"], Gate)


def test_only_tensors_that_hold_values_have_a_digest() -> None:
    """Meta tensors and those whose memory was given back are left out."""
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    told = digests({"good": torch.ones(2, 3), "freed": freed, "meta": torch.ones(2, device="meta")})
    assert set(told) == {"good"}


def test_values_that_cannot_be_looked_at_have_no_digest() -> None:
    """As on a device without memory or with an error: nothing is raised, and nothing is told."""
    with FakeTensorMode():
        unreadable = torch.ones(4)
    assert digests({"good": torch.ones(2), "unreadable": unreadable}) == {}


def test_a_caught_comparison_is_told_once_and_keeps_no_tensors(tmp_path: Path) -> None:
    """What the frames of the exception hold is let go with it; the end of the program tells it no more."""
    journal = Journal(str(tmp_path))
    compiles = Compiles(Calls(journal, CaptureStore(journal)))
    compiles.models.compiled.append({"weight": "0"})
    held: list[weakref.ref[torch.Tensor]] = []

    def check() -> None:
        seen = torch.zeros(2)
        held.append(weakref.ref(seen))
        raise AssertionError

    def survive() -> None:
        try:
            check()
        except AssertionError as error:
            compiles.asserted((torch.zeros(2), torch.ones(2)), None, error)
            compiles.failing(error)

    survive()
    (path,) = tmp_path.glob("capture-*.jsonl")
    assert "assertion_failed" in path.read_text() and "program_failed" not in path.read_text()
    gc.collect()  # up to Python 3.12 a frame that was looked at is in a circle with its exception
    assert held[0]() is None


@pytest.mark.parametrize("broken", [False, True])
def test_a_device_that_is_busy_or_broken_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """At the end of a program over a kernel that hangs, modules are not looked at: that would hang, too."""

    class Stream:
        def query(self) -> bool:
            if broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return False

    model = Gate().train(False)
    models = compiled(tmp_path, model)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: not Stream().query() and False)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    assert not idle(0.05)
    monkeypatch.setattr(checks, "idle", lambda: idle(0.05))
    assert models.near(1, callers()) == []


def test_an_exit_with_a_status_of_failure_is_told(tmp_path: Path) -> None:
    """So is the module near it; an exit that is none, or before any compile, is not."""
    journal = Journal(str(tmp_path))
    compiles = Compiles(Calls(journal, CaptureStore(journal)))
    compiles.exiting(1)
    server = Server()
    compiles.models.compiling(dict(server.model.state_dict()))
    for status in (None, 0, "accuracy 0.52"):
        compiles.exiting(status)
    (path,) = tmp_path.glob("capture-*.jsonl")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    (failed,) = [event for event in told if event["event"] == "program_failed"]
    assert (failed["type"], failed["text"]) == ("builtins.SystemExit", "accuracy 0.52")
    assert [module["name"] for module in failed["modules"]] == ["server.model"]
