"""What the hook keeps of a program's modules, loads and end, and its journal."""

from __future__ import annotations

import ast
import gc
import io
import json
import math
import os
import resource
import runpy
import sys
import threading
import weakref
import zipfile
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from mcp_server.logs import captured
from mcp_server.logs.capture_journal import read_capture
from mcp_server.worker.capture import checks, events
from mcp_server.worker.capture import journal as module
from mcp_server.worker.capture.calls import Calls, failure
from mcp_server.worker.capture.checks import Models, attributes, digests, named_modules
from mcp_server.worker.capture.compiles import Compiles
from mcp_server.worker.capture.events import TensorFacts
from mcp_server.worker.capture.journal import CaptureStore, Journal, around
from mcp_server.worker.compare import equal_by_name
from mcp_server.worker.encode import callers, raised_in
from mcp_server.worker.events import Refused
from mcp_server.worker.process import idle
from mcp_server.worker.protocol import KeptPackage
from mcp_server.worker.report import Report, plain

# What the hook tells of modules: as exported, and beside a comparison that failed.


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
    assert (same.name, same.type, same.file) == ("server.model", "Gate", None)
    with torch.no_grad():
        server.model.body[0].bias.add_(1)
    (other,) = models.near(2, callers())
    changed = [name for name, digest in same.digests.items() if other.digests[name] != digest]
    assert changed == ["body.0.bias"]
    assert torch.equal(torch.load(str(other.file))["body.0.bias"], server.model.body[0].bias)
    assert stranger.weight.shape == (5, 6)


def test_too_many_bytes_are_told_and_not_kept(tmp_path: Path) -> None:
    """Above the cap of the storehouse the digests still say what differs."""
    module = Gate().train(False)
    models = compiled(tmp_path, module)
    models.store.cap = 8
    with torch.no_grad():
        module.body[0].weight.mul_(2)
    (told,) = models.near(1, callers())
    assert told.file is None and told.digests not in models.compiled


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


# What the hook tells of loads that torch refuses, and of the end of a process that loaded.


def calls(directory: Path) -> Calls:
    journal = Journal(str(directory))
    return Calls(journal, CaptureStore(journal))


def test_a_package_that_torch_refuses_itself(tmp_path: Path) -> None:
    """It is a failed load of that package at the caller's line, with the options that were given."""
    hook = calls(tmp_path)

    def refuse(path: Path, model_name: str = "model", device_index: int = -1) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    package = tmp_path / "gpu.pt2"
    package.write_bytes(b"PK")
    with pytest.raises(AssertionError):
        around(hook.journal, refuse, hook.opening, hook.opened)(package, "tower", device_index=1)
    (load,) = read_capture(tmp_path).loads
    assert (load.package, load.outcome, load.options) == (
        package,
        "failed",
        {"model_name": "tower", "device_index": 1},
    )
    assert load.error is not None and "not compiled with CUDA" in load.error.text
    assert load.stack[0].file == __file__ and load.copy_path is not None


def test_a_process_that_may_open_no_more_files() -> None:
    """An error that comes when no file can be opened says so, whatever its text; another does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    error = RuntimeError("Failed to initialize zip archive: file open failed")
    assert failure(error)["no_files"] is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        told = failure(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told["no_files"] == 0


def large_package(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data/aotinductor/m/a.wrapper.so", bytes(2 << 20))
    return path


def keep_under_limit(hook: Calls, package: Path) -> KeptPackage:
    """What is kept of this package by a process that may write files of one MiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        return hook.store.package(str(package))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_package_that_the_process_may_not_copy(tmp_path: Path) -> None:
    """It is linked, so that it outlives its removal, and nothing is left of the copy that was begun."""
    package = large_package(tmp_path / "large.pt2")
    told = keep_under_limit(calls(tmp_path), package)
    size = package.stat().st_size
    package.unlink()
    kept = told["copy"]
    assert isinstance(kept, str) and Path(kept).stat().st_size == size == told["bytes"]
    assert not list(tmp_path.rglob("*.partial-*"))


def test_a_package_that_can_be_neither_copied_nor_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size, that of its largest member, and why it was not kept are told."""

    def refuse(*_args: object) -> None:
        raise OSError("Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    package = large_package(tmp_path / "large.pt2")
    told = keep_under_limit(calls(tmp_path), package)
    assert (told["copy"], told["largest"]) == (None, 2 << 20)
    assert told["bytes"] == package.stat().st_size and "too large" in str(told["notice"])


def test_a_load_that_a_loader_tells_is_told_once(tmp_path: Path) -> None:
    """What fails in the loader is its own load; a stream has no package to keep."""
    hook = calls(tmp_path)

    class AOTIModelPackageLoader:
        def __init__(self, package: str) -> None:
            raise RuntimeError("Failed to initialize zip archive")

    made = around(hook.journal, AOTIModelPackageLoader.__init__, hook.loading, hook.loaded)

    def load(path: object) -> None:
        made(object.__new__(AOTIModelPackageLoader), str(path))

    for path in (tmp_path / "cut.pt2", io.BytesIO(b"PK")):
        with pytest.raises(RuntimeError):
            around(hook.journal, load, hook.opening, hook.opened)(path)
    loads = read_capture(tmp_path).loads
    assert [load.outcome for load in loads] == ["failed", "failed"]


@pytest.mark.parametrize(("code", "own"), [("{}['shirt']", True), ("torch.load('none')", False)])
def test_the_exception_that_ends_a_process(tmp_path: Path, code: str, own: bool) -> None:
    """It is told with its lines, and whether it was raised outside of torch, once something was loaded."""
    hook = calls(tmp_path)
    compiles = Compiles(hook)
    (tmp_path / "worker.py").write_text(f"import torch\n{code}\n")
    with pytest.raises((KeyError, FileNotFoundError)) as caught:
        runpy.run_path(str(tmp_path / "worker.py"))
    compiles.failing(caught.value)
    assert read_capture(tmp_path).ends == []
    hook.loads[hook] = 0
    compiles.failing(caught.value)
    (end,) = read_capture(tmp_path).ends
    assert end.own is own and any(line.file.endswith("worker.py") and line.line == 2 for line in end.stack)


# The capture's journal: bounded, ordered, and complete at its end.


def numbers(directory: Path) -> list[int]:
    """`n` of every event that is still there, in order."""
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=200))
def test_a_full_journal_keeps_its_beginning_and_its_end(sizes: list[int]) -> None:
    """Whatever the sizes of events, the first and the latest are kept, and the files stay bounded."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FULL", 4000)
        patch.setattr(module, "TAIL", 2000)
        journal = Journal(name)
        for size in sizes:
            journal.event(events.HookFailed("filler", "x" * size))
        os.close(journal.file)
        kept, last = numbers(Path(name)), len(sizes) + 1
        assert kept[0] == 1 and kept[-1] == last and len(set(kept)) == len(kept)
        suffix = [n for n in kept if n > last - 3]
        assert len(suffix) == min(3, last)
        total = sum(path.stat().st_size for path in Path(name).glob("*.jsonl"))
        assert total <= 4000 + 2 * 2000 + 2 * 600


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    """Events of several threads neither mix nor get lost."""
    journal = Journal(str(tmp_path))

    def write() -> None:
        for _ in range(50):
            journal.event(events.HookFailed("filler", "y" * 300))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(journal.file)
    assert numbers(tmp_path) == list(range(1, 402))


def test_numbers_that_json_does_not_know() -> None:
    """Non-finite numbers become words, at any depth, and unknown objects their repr."""
    assert plain({"a": [float("nan"), (float("-inf"), 1.5)], 2: object}) == {
        "a": ["nan", ["-inf", 1.5]],
        "2": repr(object),
    }


def test_a_hook_that_fails_changes_nothing(tmp_path: Path) -> None:
    """What the hook's own code raises is journaled; the program gets its result and its exceptions."""
    journal = Journal(str(tmp_path))

    def original(x: int) -> int:
        """The program's function."""
        return 10 // x

    def before(x: int) -> int:
        if x == 2:
            raise KeyError("mine")
        return x

    def after(_state: Any, _result: Any, _error: BaseException | None) -> None:
        raise OSError("disk full")

    wrapped = around(journal, original, before, after)
    assert wrapped(2) == wrapped(x=2) == 5 and wrapped(5) == 2 and wrapped.__doc__ == original.__doc__
    with pytest.raises(ZeroDivisionError):
        wrapped(0)
    os.close(journal.file)
    (process,) = read_capture(tmp_path).processes
    assert process.hook_failures == ["KeyError: 'mine'", "OSError: disk full"]


def test_a_report_is_strict_json(tmp_path: Path) -> None:
    """A number that JSON does not have, or a value of another kind, is told as text."""
    report = Report(str(tmp_path / "report.jsonl"))
    mean = TensorFacts(mean=math.nan, shape=[2, 3])
    report.event(Refused("no", value={"low": -math.inf, 1: True, "path": tmp_path, "of": mean}))
    report.event(Refused("\udce9", value=0.5))
    first, second = map(json.loads, (tmp_path / "report.jsonl").read_text().splitlines())
    of = {"mean": "nan", "shape": [2, 3]}
    assert first["value"] == {"low": "-inf", "1": True, "path": repr(tmp_path), "of": of}
    assert second["value"] == 0.5


NAMES = {"copy": "copy_path", "frames": "stack", "package_path": "package"}  # in the record
NUMBERS = {"compile", "load", "update", "call"}
UNREAD = {"bytes", "sha256", "largest"}  # of the package of a host
OF_THE_ERROR = {"type", "text", "no_files", "file_bytes", "stopped_at"}


@pytest.mark.parametrize(
    ("kinds", "record"),
    [
        ((events.Compiling, events.Compiled, events.CompileFailed), captured.CapturedCompile),
        ((events.Packaging,), captured.CapturedPackaging),
        ((events.Loading, events.Loaded, events.LoadFailed), captured.CapturedLoad),
        ((events.Host,), captured.CapturedHost),
        ((events.Updating, events.Updated, events.UpdateFailed), captured.CapturedUpdate),
        ((events.Calling, events.Called, events.CallFailed), captured.CapturedCall),
        ((events.Exporting,), captured.CapturedExport),
        ((events.InputLetGo, events.GraphInputGone), captured.FreedInput),
        ((events.AssertionFailed,), captured.CapturedAssertion),
        ((events.ProgramFailed,), captured.CapturedEnd),
    ],
)
def test_the_record_has_what_the_hook_writes(kinds: tuple[Any, ...], record: type[BaseModel]) -> None:
    """Each field of the events of a phase is one of the record that the server reads, or of its error."""
    known = set(record.model_fields)
    for kind in kinds:
        names = {NAMES.get(field.name, field.name) for field in fields(kind)}
        assert names - known - NUMBERS <= (OF_THE_ERROR if issubclass(kind, events.Failed) else UNREAD)


# Tensors in a program's frames when a check of its own failed.

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
