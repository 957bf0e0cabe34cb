"""What the hook tells of loads that torch refuses, and of the end of a process that loaded."""

from __future__ import annotations

import io
import resource
import runpy
import zipfile
from pathlib import Path

import pytest

from mcp_server.logs.capture_journal import read_capture
from mcp_server.worker.capture.calls import Calls, failure
from mcp_server.worker.capture.compiles import Compiles
from mcp_server.worker.capture.journal import CaptureStore, Journal, around
from mcp_server.worker.protocol import KeptPackage


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
