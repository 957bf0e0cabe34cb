"""What the tests of the join share: recorded wrappers as packages, and made-up journals."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, JournalRun, Role, TensorFacts
from mcp_server.package.archive import Package
from mcp_server.package.members import FLAT_MODEL, DirectoryContainer, flat_model
from mcp_server.package.view import PackageView
from tests.recorded import RECORDINGS

WRAPPERS = RECORDINGS / "wrappers"
BASE = 0x7F00_0000_0000


def recorded(name: str, directory: Path) -> PackageView:
    """A recorded wrapper of torch 2.11 on CUDA as a package of nothing else."""
    shutil.copyfile(WRAPPERS / f"{name}.torch-2.11-cuda.cpp", directory / f"{name}.wrapper.cpp")
    container = DirectoryContainer(directory, recursive=False)
    models = flat_model(container)
    return PackageView(Package(directory, container, tuple(models), models[FLAT_MODEL]))


def tensor(
    pointer: int, shape: Sequence[int], dtype: str = "float32", itemsize: int = 4, device: str = "cuda:0"
) -> TensorFacts:
    """A contiguous tensor that fills its storage."""
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.insert(0, step)
        step *= max(size, 1)
    total = 1
    for size in shape:
        total *= size
    return TensorFacts(pointer, dtype, itemsize, device, tuple(shape), tuple(stride), 0, total * itemsize)


def given(name: str, parameter: str, role: Role, facts: TensorFacts) -> JournalArgument:
    return JournalArgument(name, parameter, role, facts)


def number(parameter: str, value: int) -> JournalArgument:
    return JournalArgument(parameter, parameter, "read", None, value)


def launch(index: int, kernel: str, *arguments: JournalArgument, fault: str = "") -> JournalLaunch:
    """A launch that came back, with a device error when `fault` is given."""
    return JournalLaunch((1, 2, 0), index, index, kernel, 1, 0, 1, arguments, fault)


def journal(*launches: JournalLaunch) -> Journal:
    return Journal((JournalRun((1, 2, 0), "run_impl", 1, "unfinished", launches),))


def line_of(view: PackageView, symbol: str, code: str) -> int:
    """The line in the embedded source of a kernel that holds `code`."""
    kernel = next(k for k in view.wrapper.kernels.values() if k.symbol == symbol)
    return next(n for n, text in enumerate(kernel.source.split("\n"), 1) if code in text)
