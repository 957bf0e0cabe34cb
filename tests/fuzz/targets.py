"""All readers of bytes from outside, as functions of bytes, with the exceptions that each may raise."""

import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from mcp_server.errors import ProblemError
from mcp_server.jobs.output import clean
from mcp_server.logs.captured import read_capture
from mcp_server.logs.crash_reports import read_cuda_gdb, read_native, read_progress_log
from mcp_server.logs.journal import read_journal, read_printout
from mcp_server.logs.log import read_log
from mcp_server.package.archive import open_package, read_constants, read_metadata, read_proxy_calls
from mcp_server.package.assertion import read_assertion
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.defects import read_library
from mcp_server.package.exported import read_exported
from mcp_server.package.members import ZipContainer, refuse_unsafe
from mcp_server.package.problems import PackageError
from mcp_server.package.prover import find_kernel_defects
from mcp_server.package.signature import TreeSpecError, leaf_paths, read_signature
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.view import PackageView
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes.commands import read_recorded, safe_flags
from mcp_server.recorder.ring import read_crash, read_recording
from mcp_server.runtime.failure import read_launcher
from mcp_server.sweep import read_plan
from tests.fuzz import made
from tests.logs.support import read_sanitizer
from tests.recorded import RECORDINGS

RECORDED = RECORDINGS
FINDS = Path(__file__).with_name("finds.jsonl")


@dataclass(frozen=True)
class Target:
    """A reader of bytes. `seeds` are patterns below `tests/recordings`; `made` yields files made for it."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    seeds: tuple[str, ...] = ()
    made: Callable[[], Iterable[bytes]] = tuple

    def tolerates(self, data: bytes) -> None:
        """Raise what the reader must not raise."""
        try:
            self.read(data)
        except self.refusals:
            return


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def of_bytes(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            path.write_bytes(data)
            return read(path)

    return of_bytes


def _child_output(data: bytes) -> object:
    """A child's output, without escapes and control characters."""
    text = clean(data.decode("utf-8", "replace"))
    assert not any(ord(char) < 32 and char not in "\t\n" for char in text)
    return text


def _package(path: Path) -> object:
    package = open_package(path)
    return PackageView(package).wrapper if package.wrapper_text else None


def _wrapper(data: bytes) -> object:
    """Read a wrapper and its kernels in all ways, with sizes that no machine has."""
    wrapper = read_wrapper(_text(data))
    flow, lines = Dataflow(wrapper.run), wrapper.text.count("\n") + 1
    for launch in wrapper.launches:
        flow.backward_from(launch.index)
        flow.forward(launch.writes, launch.index)
        wrapper.grid(launch)
    for kernel in wrapper.kernels.values():
        find_asserts(kernel.source)
        read_program(kernel)
    assert all(1 <= problem.line <= lines for problem in wrapper.problems)
    package = SimpleNamespace(device_type="cuda")
    parts = {"wrapper": wrapper, "package": package, "label": str, "flow_of": lambda _launch: flow}
    view = cast(PackageView, SimpleNamespace(**parts))
    symbols = [each.name for each in wrapper.symbols.values() if each.kind in ("size", "stride")]
    for size in (0, -3, 1 << 70):
        find_kernel_defects(view, dict.fromkeys(symbols, size))
    return wrapper


TARGETS: dict[str, Target] = {
    "log": Target(lambda data: read_log(_lines(data)), seeds=("**/*.plain.txt", "**/*.log")),
    "sanitizer": Target(lambda data: read_sanitizer(_lines(data)), seeds=("**/*memcheck*.txt",)),
    "cuda_gdb": Target(lambda data: read_cuda_gdb(_lines(data)), seeds=("**/*gdb*.txt",)),
    "progress_log": Target(lambda data: read_progress_log(_lines(data)), seeds=("**/*coredump*.txt",)),
    "native": Target(lambda data: read_native(_lines(data)), seeds=("**/*asan*.txt",)),
    "printer": Target(lambda data: read_printout(_lines(data)), seeds=("**/*printer*.txt",)),
    "journal": Target(lambda data: read_journal(_lines(data)), made=made.journals),
    "capture": Target(
        _of_file(lambda path: read_capture(path.parent), "capture-1.jsonl"),
        (ValueError,),
        made=lambda: [made.CAPTURE],
    ),
    "wrapper": Target(_wrapper, seeds=("wrappers/**/*",)),
    "inputs": Target(
        lambda data: (read_signature(_text(data)), read_constants(_text(data))), seeds=("wrappers/**/*",)
    ),
    "commands": Target(
        lambda data: safe_flags(read_recorded(_text(data))), (ProblemError,), made=lambda: [made.COMPILED]
    ),
    "treespec": Target(lambda data: leaf_paths(_text(data)), (TreeSpecError,), made=lambda: [made.TREE]),
    "proxy": Target(lambda data: read_proxy_calls(_text(data)), (ValueError,), made=lambda: [made.PROXY]),
    "ranks": Target(lambda data: read_launcher(_lines(data)), made=lambda: [made.RANKS]),
    "child_output": Target(_child_output, seeds=("**/*.plain.txt",)),
    "assertion": Target(lambda data: read_assertion(_text(data)), seeds=("**/*index-oob*.txt",)),
    "metadata": Target(lambda data: read_metadata(_text(data)), (ValueError,), made=lambda: [made.METADATA]),
    "library": Target(
        lambda data: read_library(io.BytesIO(data)), (PackageError, ValueError), made=made.libraries
    ),
    "package": Target(_of_file(_package, "model.pt2"), (PackageError, ProblemError), made=made.packages),
    "exported": Target(
        _of_file(read_exported, "program.pt2"), (PackageError, ProblemError, ValueError), made=made.programs
    ),
    "recording": Target(
        _of_file(read_recording, "1-1-0.ring"),
        (ProblemError,),
        made=lambda: [made.recording(made.call(1, 0), made.call(2, 192, end=0))],
    ),
    "crash": Target(_of_file(read_crash, "1-1-0.crash"), (ProblemError,), made=lambda: [made.CRASH]),
    "sweep": Target(_of_file(read_plan, "cases.yaml"), (ProblemError,), made=lambda: [made.PLAN]),
}


# torch's reader of archives. The loader of packages uses the same library, miniz, with the same checks.
_READ_BY_TORCH = """
import json, sys, torch
for line in sys.stdin:
    try:
        reader = torch._C.PyTorchFileReader(line.rstrip())
        found = {name: len(reader.get_record(name)) for name in reader.get_all_records()}
    except Exception:
        found = None
    print(json.dumps(found), flush=True)
"""


class Readings:
    """Three readers of an archive: ours, `zipfile`, and torch's in a child that may die."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.pt2"
        self._child: subprocess.Popen[str] | None = None

    def disagreement(self, data: bytes) -> str:
        """What another reader sees differently in an archive that we accept. Empty if nothing."""
        self._path.write_bytes(data)
        try:
            refuse_unsafe(self._path)
            ours = {member.name: member.size for member in ZipContainer(self._path).members}
        except PackageError:
            return ""
        with zipfile.ZipFile(self._path) as archive:
            listed = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        if listed != ours:
            return f"zipfile sees {listed}, and we see {ours}"
        seen = self._read_by_torch()
        below = {name.partition("/")[2]: size for name, size in ours.items()}
        return f"torch sees {seen}, and we see {below}" if seen is not None and seen != below else ""

    def _read_by_torch(self) -> dict[str, int] | None:
        """The members. None if torch rejects the archive, or dies."""
        if self._child is None or self._child.poll() is not None:
            argv = [sys.executable, "-c", _READ_BY_TORCH]
            self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(f"{self._path}\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        found: dict[str, int] | None = json.loads(line) if line else None
        return found

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()


def seeds(target: Target) -> Iterator[bytes]:
    """Yield real output to start from, at most 100 KB each."""
    for pattern in target.seeds:
        for path in sorted(RECORDED.glob(pattern)):
            if path.is_file():
                yield path.read_bytes()[:100_000]
    yield from target.made()
