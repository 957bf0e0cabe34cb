"""What the hook keeps of a program's modules, loads and end, and its journal."""

import gc
import json
import os
import resource
import sys
import weakref
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.logs.captured import read_capture
from mcp_server.tools.capture import hook_environment
from mcp_server.worker.capture import compiles as compiling
from mcp_server.worker.capture import journal as module
from mcp_server.worker.capture.calls import Calls, failure
from mcp_server.worker.capture.journal import CaptureStore, Journal, around
from tests.support.command import ran
from tests.zoo.names import few

Compiles = compiling.Compiles

PROGRAM = """from __future__ import annotations
import inspect, beside
def double(x): return x + x
print(double(2), beside.VALUE, __name__, __file__, inspect.getsource(double))
"""


@pytest.mark.parametrize(("file", "shown"), [("program.py", "4 1"), ("beside.py", "4 2")])
def test_a_changed_file_is_run_and_read(tmp_path: Path, file: str, shown: str) -> None:
    """A changed script or module runs with its own name, path and lines. The files are not written."""
    texts = {"program.py": PROGRAM, "beside.py": "VALUE = 1\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (changed := tmp_path / "changed").write_text(texts[file].replace("x + x", "x * 2").replace("= 1", "= 2"))
    (kept := tmp_path / "kept").mkdir()
    asked = {"AOTI_DEBUG_CHANGED": f"{tmp_path / file}{os.pathsep}{changed}"}
    done = ran([sys.executable, "program.py"], tmp_path, **asked, **hook_environment(kept, asked))
    line = "def double(x): return x * 2" if file == "program.py" else "def double(x): return x + x"
    assert done.stdout.strip() == f"{shown} __main__ {tmp_path / 'program.py'} {line}", done.stderr
    assert (tmp_path / file).read_text() == texts[file]


# Failed comparisons.


@pytest.fixture
def compiles(tmp_path: Path) -> Compiles:
    """The hook's record of a program that has compiled."""
    journal = Journal(str(tmp_path))
    made = Compiles(Calls(journal, CaptureStore(journal)))
    made.compiles = True
    return made


def test_a_caught_comparison_is_told_once_and_keeps_no_tensors(compiles: Compiles, tmp_path: Path) -> None:
    """The exception's frames are not kept alive, and the end of the program reports nothing more."""
    held: list[weakref.ref[torch.Tensor]] = []

    def check() -> None:
        seen = torch.zeros(2)
        held.append(weakref.ref(seen))
        raise AssertionError

    def survive() -> None:
        try:
            check()
        except AssertionError as error:
            told = compiles.comparisons.asserting(torch.zeros(2), torch.ones(2))
            next(told)
            with pytest.raises(StopIteration):
                told.send((None, error))
            compiles.failing(error)

    survive()
    (path,) = tmp_path.glob("capture-*.jsonl")
    assert "assertion_failed" in path.read_text() and "program_failed" not in path.read_text()
    gc.collect()  # up to Python 3.12, a frame that was inspected is in a cycle with its exception
    assert held[0]() is None


@pytest.mark.parametrize("change", ["written", "replaced", "compared", "mixed", ""])
def test_weights_that_change_after_export_are_kept(compiles: Compiles, tmp_path: Path, change: str) -> None:
    """A write, a new tensor, and another model where a check failed count. The file has the last values.

    Values that the package has under the name of another weight are told.
    """
    model, of, taken = torch.nn.Linear(3, 2), "", {}
    exported = compiles.exporting(model, (torch.ones(1, 3),))
    next(exported)
    with pytest.raises(StopIteration):
        exported.send((None, None))
    with torch.no_grad():
        if change == "written":
            model.weight.mul_(2)
        elif change == "mixed":
            model.weight.mul_(2)
            held = torch.float32, vars(compiling)["digests"]({"": model.weight})[""]
            compiles.calls.held = {"bias": held, "weight": (held[0], "old")}
            model.bias, taken = torch.nn.Parameter(torch.ones(2)), {"bias": "weight"}
        elif change == "replaced":
            model.weight = torch.nn.Parameter(torch.zeros(2, 3))
    try:
        if change == "compared":
            compiles.calls.held, of = {"weight": (torch.float32, "the digest of others")}, "model"
            model = torch.nn.Linear(3, 2)
        raise ValueError("late")
    except ValueError as error:
        compiles.failing(error)
    found = read_capture(tmp_path).drifts
    names = ["bias", "weight"] if taken else ["weight"]
    assert [(each.names, each.of, each.taken) for each in found] == ([(names, of, taken)] if change else [])
    for each in found:
        assert each.file is not None
        assert torch.equal(torch.load(each.file, weights_only=True)["weight"], model.weight)


def test_a_load_that_is_not_strict_tells_what_it_did_not_find(compiles: Compiles, tmp_path: Path) -> None:
    """A checkpoint of a wrapped model has other names. A complete load is not recorded."""
    model = torch.nn.Linear(3, 2)
    for prefix in ("", "module."):
        state = {prefix + name: value for name, value in model.state_dict().items()}
        loading = compiles.loading_weights(model, state, strict=False)
        next(loading)
        with pytest.raises(StopIteration):
            loading.send((model.load_state_dict(state, strict=False), None))
    (found,) = read_capture(tmp_path).partial_loads
    assert (found.missing, found.of, found.names[0], found.unexpected[0]) == (2, 2, "weight", "module.weight")


GOT, FIRST, OTHER = torch.ones(3), torch.ones(3), torch.zeros(3)


@pytest.mark.parametrize(
    ("compared", "told"),
    [
        pytest.param([("allclose", GOT, OTHER)], [1], id="allclose"),
        pytest.param([("equal", GOT, OTHER)], [1], id="equal"),
        pytest.param([("equal", OTHER, GOT)], [1], id="the other way"),
        pytest.param([("equal", OTHER, FIRST), ("equal", GOT, OTHER)], [1], id="the last one"),
        pytest.param([("equal", OTHER, torch.full((3,), 2.0))], [], id="no output"),
        pytest.param([("allclose", GOT, OTHER), ("allclose", GOT, FIRST)], None, id="one held after it"),
    ],
)
@pytest.mark.parametrize("returned", [False, True], ids=["ends there", "came back"])
def test_the_last_comparison_that_failed_tells_what_was_expected(
    compiles: Compiles,
    tmp_path: Path,
    compared: list[tuple[str, torch.Tensor, torch.Tensor]],
    told: list[int] | None,
    returned: bool,
) -> None:
    """If a program ends in the function that compared, the calls of the outputs and both sides are recorded.

    A comparison in a function that returned is not related to the end.
    """
    own, journal = compiles.comparisons, compiles.calls.journal
    for number, output in enumerate((FIRST, GOT)):
        compiles.calls.outputs.add(number, [torch.zeros(2), output])

    def check() -> None:
        for name, first, second in compared:
            around(journal, getattr(torch, name), own.comparing)(first, second)
        if not returned:
            raise RuntimeError("not the model's")

    with pytest.raises(RuntimeError) as raised:
        check()
        raise RuntimeError("next")
    compiles.failing(raised.value)
    failed = read_capture(tmp_path).assertions
    assert [check.calls for check in failed] == ([told] if told is not None and not returned else [])
    if told and not returned:
        sides = torch.load(str(failed[0].file))
        assert torch.equal(sides["actual"][0], GOT) and torch.equal(sides["expected"][0], OTHER)
        assert sides["places"] == [1]
    assert returned or len(list(tmp_path.glob("*.pt"))) == len(failed)


def test_checks_by_numpy_and_before_an_exit_are_told(compiles: Compiles, tmp_path: Path) -> None:
    """NumPy compares memory of an output. `raise SystemExit` is seen only by the hook at exit."""
    own, journal = compiles.comparisons, compiles.calls.journal
    compiles.calls.outputs.add(1, [GOT])
    with pytest.raises(AssertionError):
        around(journal, np.testing.assert_allclose, own.asserting)(GOT.numpy(), OTHER.numpy())
    around(journal, torch.allclose, own.comparing)(GOT, OTHER)
    own.left()
    assert [each.calls for each in read_capture(tmp_path).assertions] == [[1], [1]]


def test_an_exit_with_a_status_of_failure_is_told(compiles: Compiles, tmp_path: Path) -> None:
    """Exit status 0, or an exit before any compile, is not recorded."""
    compiles.compiles = False
    compiles.exiting(1)
    compiles.compiles = True
    for status in (None, 0, "accuracy 0.52"):
        compiles.exiting(status)
    (path,) = tmp_path.glob("capture-*.jsonl")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    (failed,) = [event for event in told if event["event"] == "program_failed"]
    assert (failed["type"], failed["text"]) == ("builtins.SystemExit", "accuracy 0.52")


# Failed loads, and the end of a process.


@pytest.fixture
def hook(tmp_path: Path) -> Calls:
    journal = Journal(str(tmp_path))
    return Calls(journal, CaptureStore(journal))


def test_a_package_that_torch_refuses_itself(hook: Calls, tmp_path: Path) -> None:
    """The load is recorded as failed, with the caller's line and options."""

    def refuse(path: Path, model_name: str = "model", device_index: int = -1) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    package = tmp_path / "gpu.pt2"
    package.write_bytes(b"PK")
    with pytest.raises(AssertionError):
        around(hook.journal, refuse, hook.opening)(package, "tower", device_index=1)
    (load,) = read_capture(tmp_path).loads
    assert (load.package, load.outcome) == (package, "failed")
    assert load.options == {"model_name": "tower", "device_index": 1}
    assert load.error is not None and "not compiled with CUDA" in load.error.text
    assert load.stack[0].file == __file__ and load.copy_path is not None


def test_a_process_that_may_open_no_more_files() -> None:
    """The error says if no more files could be opened, whatever its text."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    error = RuntimeError("Failed to initialize zip archive: file open failed")
    assert failure(error)["no_files"] is None
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        told = failure(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert told["no_files"] == 0


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "not kept"])
def test_a_package_that_the_process_may_not_copy(
    hook: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """The package is linked, so that it survives removal. Otherwise its size and the reason are recorded.

    The process may write files of one MiB. The incomplete copy is removed.
    """
    package = tmp_path / "large.pt2"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("m/data/aotinductor/m/a.wrapper.so", bytes(2 << 20))
    size = package.stat().st_size

    def refuse(*_args: object) -> None:
        raise OSError("Invalid cross-device link")

    if not linked:
        monkeypatch.setattr("os.link", refuse)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        told = hook.store.package(str(package))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    package.unlink()
    kept = told["copy"]
    assert told["bytes"] == size and not list(tmp_path.rglob("*.partial-*"))
    if linked:
        assert isinstance(kept, str) and Path(kept).stat().st_size == size
    else:
        assert kept is None and "too large" in str(told["notice"])


# The journal of a capture.


def numbers(directory: Path) -> list[int]:
    """`n` of every event in the files, in order."""
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


@settings(max_examples=few(30), deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=200))
def test_a_full_journal_keeps_its_beginning_and_its_end(sizes: list[int]) -> None:
    """Whatever the sizes of events, the first and the last are kept, and the files stay small."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FULL", 4000)
        patch.setattr(module, "TAIL", 2000)
        journal = Journal(name)
        for size in sizes:
            journal.event("hook_failed", where="filler", error="x" * size)
        os.close(journal.file)
        kept, last = numbers(Path(name)), len(sizes) + 1
        assert kept[0] == 1 and kept[-1] == last and len(set(kept)) == len(kept)
        suffix = [n for n in kept if n > last - 3]
        assert len(suffix) == min(3, last)
        total = sum(path.stat().st_size for path in Path(name).glob("*.jsonl"))
        assert total <= 4000 + 2 * 2000 + 2 * 600


def test_a_hook_that_fails_changes_nothing(tmp_path: Path) -> None:
    """An exception in the hook is journaled. The program gets its own results and exceptions."""
    journal = Journal(str(tmp_path))

    def original(x: int) -> int:
        """The program's function."""
        return 10 // x

    def hook(x: int) -> Any:
        if x == 2:
            raise KeyError("mine")
        yield
        raise OSError("disk full")

    wrapped = around(journal, original, hook)
    assert wrapped(2) == wrapped(x=2) == 5 and wrapped(5) == 2 and wrapped.__doc__ == original.__doc__
    with pytest.raises(ZeroDivisionError):
        wrapped(0)
    os.close(journal.file)
    (process,) = read_capture(tmp_path).processes
    assert process.hook_failures == ["KeyError: 'mine'", "OSError: disk full"]
