"""What the tests of the join share: recorded wrappers as packages, and made-up journals."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mcp_server.logs.journal import (
    Journal,
    JournalArgument,
    JournalLaunch,
    JournalRun,
    Role,
    TensorFacts,
    read_journal_file,
)
from mcp_server.memory_faults import Fault
from mcp_server.memory_faults.join import join_fault
from mcp_server.memory_faults.situation import Evidence
from mcp_server.package.view import PackageView, view_package
from mcp_server.runtime.context import stream_events
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.fault_methods import read_report
from mcp_server.tools.fault_run import read_ranges
from mcp_server.worker.events import Argument, Given
from tests.recorded import RECORDINGS

WRAPPERS = RECORDINGS / "wrappers"
BASE = 0x7F00_0000_0000


def recorded(name: str, directory: Path) -> PackageView:
    """A recorded wrapper of torch 2.11 on CUDA as a package of nothing else."""
    shutil.copyfile(WRAPPERS / f"{name}.torch-2.11-cuda.cpp", directory / f"{name}.wrapper.cpp")
    return view_package(directory)


def tensor(pointer: int, shape: Sequence[int], dtype: str = "float32", device: str = "cuda:0") -> TensorFacts:
    """A contiguous tensor that fills its storage."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return TensorFacts(pointer, dtype, device, tuple(shape), tuple(stride), 0)


def given(name: str, parameter: str, role: Role, facts: TensorFacts) -> JournalArgument:
    return JournalArgument(name, parameter, role, facts)


def launch(index: int, kernel: str, *arguments: JournalArgument, fault: str = "") -> JournalLaunch:
    """A launch that came back, with a device error when `fault` is given."""
    return JournalLaunch((1, 2, 0), index, index, kernel, 1, 0, 1, arguments, fault)


def journal(*launches: JournalLaunch) -> Journal:
    return Journal((JournalRun((1, 2, 0), "run_impl", 1, "unfinished", launches),))


def line_of(view: PackageView, symbol: str, code: str) -> int:
    """The line in the embedded source of a kernel that holds `code`."""
    kernel = next(k for k in view.wrapper.kernels.values() if k.symbol == symbol)
    return next(n for n, text in enumerate(kernel.source.split("\n"), 1) if code in text)


FAULTS = RECORDINGS / "memory_faults"


PROGRAMS = sorted(path.name for path in FAULTS.iterdir())


def view_of(recording: Path, directory: Path, old: str = "", new: str = "") -> PackageView:
    """The recorded package; with `old` made `new` in its generated code, which keeps its lines."""
    for path in recording.glob("model*"):
        shutil.copyfile(path, directory / path.name)
    if old:
        path = directory / "model.wrapper.cpp"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return view_package(directory)


def joined(
    name: str, directory: Path, *, with_journal: bool = True, old: str = "", new: str = ""
) -> Fault | None:
    """The first fault of a recorded run, joined with everything that the run left."""
    recording = FAULTS / name
    view = view_of(recording, directory, old, new)
    _, found = read_report(recording / "memcheck.txt", "memcheck", view)
    leaves = [leaf for event in stream_events(recording / "report.jsonl", Given) for leaf in event.leaves]
    evidence = Evidence(
        journal=read_journal_file(recording / "launches.jsonl") if with_journal else None,
        synchronous=with_journal,
        ranges=read_ranges(stream_events(recording / "report.jsonl", Argument)),
        inputs=from_leaves([replace(leaf, kind="tensor") for leaf in leaves], None).tensors,
    )
    return join_fault(view, found[0], evidence) if found else None
