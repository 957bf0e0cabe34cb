"""Kernel I/O through AOTInductor's value printer, with its defects worked round or told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.evidence.printer import SavedTensor, read_printer, summarise
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.first_bad import Model
from mcp_server.steps.kernel_io import ArgumentValues, measured
from mcp_server.steps.launch_overview import Launches
from mcp_server.steps.logs import read_output
from mcp_server.steps.printed_launches import printed_launches
from mcp_server.steps.probe_backend import Seen
from mcp_server.steps.reports import Event
from mcp_server.steps.requests import run_request

Level = Literal["1", "2", "3"]

FLAG = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"

# What each level leaves in wrapper.cpp (codegen/debug_utils.py, torch 2.8-2.15).
MARKS: dict[Level, str] = {
    "1": "aoti_torch_save_tensor_handle(",
    "2": "aoti_torch_print_tensor_handle(",
    "3": 'printf("[ before_launch: ',
}

DEFECTS: dict[Level, tuple[str, ...]] = {
    "1": (
        "level 1 names a file by kernel and argument: a second launch of the kernel overwrites the first",
        "level 1 ignores the filter at compile time; what was not asked for is left out here",
    ),
    "2": (
        "mean, min and max are computed in float32: integers above 2**24 and float64 lose precision",
        "each tensor is synchronised and reduced around each launch: timing and overlap are not the usual",
    ),
    "3": (
        "level 3 names launches only; on CUDA the last name is the fault's only with CUDA_LAUNCH_BLOCKING=1",
    ),
}
MISSING = (
    "the printer shows no weights, views and fresh outputs of C++ and extern kernels, and nothing of custom "
    "ops, scatter and index_put (see not_shown)"
)


def level_of(package: Package) -> Level | None:
    """The level that the package was compiled with; None without a printer."""
    return next((level for level, mark in MARKS.items() if mark in package.wrapper_text), None)


async def run_printer(context: Context, workload: PackageWorkload, model: Model, level: Level) -> Seen:
    """Run the package once in a directory of its own, and read what the printer left.

    Raises ProblemError when the package was not compiled with `level`.
    """
    compiled = level_of(model.package)
    if compiled != level:
        has = f"with printer level {compiled}" if compiled else "without the printer"
        raise ProblemError(
            f"the package was compiled {has}",
            value=f"level {level}",
            allowed=f"compile with {FLAG}={level}, or ask for the exported program",
            next_call="compile_with_flags",
        )
    directory = context.fresh("printer")
    (directory / "tmp").mkdir()  # torch 2.8 makes tmp/aoti_torch only below an existing tmp
    done = await context.worker(
        "run",
        run_request(workload),
        directory=directory,
        env=workload.env,
        python=context.python_for(workload),
        cwd=directory if level == "1" else workload.cwd,
        timeout_s=workload.timeout_s,
    )
    if level == "1":
        return await _saved(context, model, done)
    output = done.finished.stdout
    launches = Launches(lambda: printed_launches(read_printer(_lines(output)), model))
    notes = [*DEFECTS[level], *([MISSING] if level == "2" else [])]
    return Seen(launches, notes, done, _last_launch(done))


def _lines(path: Path) -> Iterator[str]:
    """stdout alone: stderr would fall between the lines of a tensor."""
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def _last_launch(done: WorkerRun) -> str:
    last = read_output(done.finished.stdout).last_launch
    return last.kernel if last else ""


async def _saved(context: Context, model: Model, done: WorkerRun) -> Seen:
    """Level 1: only the last file of a name still holds what its record says."""
    kernels = {launch.kernel for launch in model.wrapper.launches}
    report = summarise(_lines(done.finished.stdout), kernels)
    facts = await _describe(context, done, sorted({record.path for record in report.saved}))
    lost = overwritten(report.saved)
    notes = [*DEFECTS["1"], MISSING]
    if lost:
        notes.append(
            f"{lost} tensors were overwritten by a later launch of the same kernel, and show its values"
        )
    if report.dropped:
        notes.append(f"{report.dropped} files were left out")
    return Seen(Launches(lambda: printed_launches(report.saved, model, facts)), notes, done)


def overwritten(saved: Sequence[SavedTensor]) -> int:
    """How many of the tensors that were saved are no longer in the file that was named."""
    return len(saved) - len({record.path for record in saved})


async def _describe(context: Context, done: WorkerRun, paths: list[str]) -> dict[str, ArgumentValues]:
    if not paths:
        return {}
    described = await context.worker("describe_files", {"files": paths}, python=done.python)
    return {event["path"]: _values(context, event) for event in described.all("file")}


def _values(context: Context, event: Event) -> ArgumentValues:
    saved = context.artifact(Path(event["path"]), "tensor saved by printer level 1")
    unreadable = event.get("unreadable", "")
    return ArgumentValues(name="", when="before", value=unreadable, saved=saved, **measured(event))
