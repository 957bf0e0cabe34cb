"""`dump_kernel_io`: what chosen launches read and wrote, seen by probes or by AOTInductor's value printer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.logs.printer import (
    Printed,
    PrintedScalar,
    PrintedTensor,
    SavedTensor,
    read_printer,
    read_saved,
)
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.package.launches import Launch, Role
from mcp_server.package.view import PackageView, view_package
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.context import Context, WorkerRun
from mcp_server.tools.failure import read_failure, read_output
from mcp_server.tools.kernel_io import (
    ArgumentValues,
    Backend,
    BadElement,
    Choice,
    KernelIO,
    LaunchValues,
    Phase,
    launch_values,
    measured,
    overview,
)
from mcp_server.tools.probe_backend import Seen, observe
from mcp_server.tools.requests import INPUTS_HELP, run_request
from mcp_server.worker import events

INPUTS = "model inputs"


def printed_launches(
    records: Iterable[Printed], model: PackageView, facts: Mapping[str, ArgumentValues] | None = None
) -> Iterator[LaunchValues]:
    """Launches in the order of the output; the model's inputs are a first one without a number.

    `facts` are the values of level 1's files by path.
    """
    # Each group is the next launch of its kernel: the code is a straight line outside branches and loops.
    next_index = 0
    for sequence, group in enumerate(_grouped(records)):
        following = model.wrapper.launches[next_index:]
        known = next((launch for launch in following if launch.kernel == group[0].kernel), None)
        next_index = known.index + 1 if known else next_index
        arguments = [_argument(record, known, facts or {}) for record in group]
        number = known.index if known else None
        yield launch_values(model, number, group[0].kernel or INPUTS, sequence, arguments)


def _grouped(records: Iterable[Printed]) -> Iterator[list[Printed]]:
    """Records of one launch each: of one kernel, and none of before the launch behind one of after it."""
    group: list[Printed] = []
    for record in records:
        again = record.when == "before_launch" and any(one.when == "after_launch" for one in group)
        if group and (again or record.kernel != group[0].kernel):
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _argument(record: Printed, known: Launch | None, facts: Mapping[str, ArgumentValues]) -> ArgumentValues:
    when: Phase = "after" if record.when == "after_launch" else "before"
    if isinstance(record, PrintedScalar):
        return ArgumentValues(name=record.argument, when=when, role="read", value=record.text)
    roles: dict[str | None, Role] = {a.target: a.role for a in known.tensors} if known else {}
    role = roles.get(record.argument, "unknown")
    # A buffer that no launch was seen to write before.
    fresh = isinstance(record, PrintedTensor) and record.uninitialised
    unset = when == "before" and (role == "written" or (role == "unknown" and fresh))
    if isinstance(record, SavedTensor):
        values = facts.get(record.path) or ArgumentValues(name="", when=when, device=record.device)
        return values.model_copy(
            update={"name": record.argument, "when": when, "role": role, "uninitialised": unset}
        )
    minimum, maximum, mean = (  # None for what JSON has no number for
        number if number is not None and math.isfinite(number) else None
        for number in (record.minimum, record.maximum, record.mean)
    )
    return ArgumentValues(
        name=record.argument,
        when=when,
        role=role,
        dtype=record.dtype,
        shape=list(record.size),
        stride=list(record.stride),
        device=record.device,
        min=minimum,
        max=maximum,
        mean=mean,
        non_finite=_non_finite(record),
        uninitialised=unset,
    )


def _non_finite(record: PrintedTensor) -> BadElement | None:
    """NaN or infinity in the minimum, the maximum or the printed values.

    The mean alone is no sign: in float32 it overflows over finite values. A complex tensor has nothing else.
    """
    printed = [record.minimum, record.maximum, *record.values]
    if record.minimum is None:
        printed.append(record.mean)
    bad = [value for value in printed if value is not None and not math.isfinite(value)]
    if not bad:
        return None
    worst = next((value for value in bad if math.isnan(value)), max(bad))
    counted = sum(not math.isfinite(value) for value in record.values) or None
    return BadElement(value=str(worst), count=counted)


SHOWN = 24
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


async def run_printer(context: Context, workload: PackageWorkload, model: PackageView, level: Level) -> Seen:
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
    own = directory if level == "1" else None  # where level 1 saves its files
    done = await context.worker("run", run_request(workload), directory=directory, workload=workload, cwd=own)
    if level == "1":
        return await _saved(context, model, done)
    notes = [*DEFECTS[level], *([MISSING] if level == "2" else [])]
    last = read_output(done.finished.stdout).last_launch

    def launches() -> Iterator[LaunchValues]:
        return printed_launches(read_printer(_lines(done)), model)

    return Seen(launches, notes, done, last.kernel if last else "")


def _lines(done: WorkerRun) -> Iterator[str]:
    """Lines of stdout alone: stderr would fall between the lines of a tensor."""
    with done.finished.stdout.open(encoding="utf-8", errors="replace") as file:
        yield from file


async def _saved(context: Context, model: PackageView, done: WorkerRun) -> Seen:
    """Level 1: only the last file of a name still holds what its record says."""
    kernels = {launch.kernel for launch in model.wrapper.launches}
    tensors, dropped = await anyio.to_thread.run_sync(read_saved, _lines(done), kernels)
    facts: dict[str, ArgumentValues] = {}
    paths = sorted({record.path for record in tensors})
    if paths:
        described = await context.worker("describe_files", {"files": paths}, python=done.python)
        for event in described.all(events.File):
            path = Path(str(event.path))
            saved = context.artifact(path, "tensor saved by printer level 1")
            facts[str(path)] = measured(event, name="", when="before", value=event.unreadable, saved=saved)
    notes = [*DEFECTS["1"], MISSING]
    lost = len(tensors) - len(paths)
    if lost:
        notes.append(
            f"{lost} tensors were overwritten by a later launch of the same kernel, and show its values"
        )
    if dropped:
        notes.append(f"{dropped} files were left out")
    return Seen(lambda: printed_launches(tensors, model, facts), notes, done)


async def dump_kernel_io(
    context: Context,
    workload: PackageWorkload | ExportedWorkload,
    choice: Choice | None = None,
    *,
    backend: Literal["auto", "probes", "printer"] = "auto",
    level: Level = "2",
    save: bool = False,
    stop_at_first_bad: bool = False,
    shown: int = SHOWN,
) -> KernelIO:
    """Run the call once and look at the chosen launches, by default at all.

    Launch probes are preferred: they see every tensor and need no recompile. The value printer is taken when
    it is asked for (at `level`), or when a package that has one cannot be rebuilt. An exported program is
    compiled first, with provenance; again with the printer when that package cannot be rebuilt. `save` and
    `stop_at_first_bad` are for probes. A call that fails is a result. Raises ProblemError for a wrong choice,
    missing inputs, and a package that neither way can show.
    """
    asked = choice or Choice()
    if workload.inputs is None:
        raise ProblemError("looking at kernels needs inputs", allowed=INPUTS_HELP)
    if backend == "printer" and (save or stop_at_first_bad):
        raise ProblemError("save and stop_at_first_bad need backend probes", allowed="printer level 1 saves")
    printer = level if backend == "printer" else None
    compiled, model, choice = await _compiled(context, workload, asked, printer)
    why = "asked for"
    if backend != "printer":
        try:
            seen = await observe(context, compiled, model, choice, save=save, stop=stop_at_first_bad)
            return await _result(context, seen, model, choice, "probes", "every tensor, no recompile", shown)
        except ProblemError as problem:
            printed = level_of(model.package)
            if backend == "probes" or (printed is None and isinstance(workload, PackageWorkload)):
                raise
            why = f"no probes: {problem}"
        level = printed or "2"
        if printed is None:
            compiled, model, choice = await _compiled(context, workload, asked, level)
    seen = await run_printer(context, compiled, model, level)
    return await _result(context, seen, model, choice, "printer", why, shown)


async def _compiled(
    context: Context, workload: PackageWorkload | ExportedWorkload, choice: Choice, level: Level | None
) -> tuple[PackageWorkload, PackageView, Choice]:
    """The package to run; an exported program is compiled with provenance, and the printer if asked for."""
    if isinstance(workload, ExportedWorkload):
        flags: dict[str, object] = {} if level is None else {FLAG: level}
        if level == "2" and choice.kernels:
            flags[FILTER] = ",".join(choice.kernels)
        workload = await compiled_package(context, workload, flags)
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    return workload, model, choice.checked(model)


async def _result(
    context: Context, seen: Seen, model: PackageView, choice: Choice, backend: Backend, why: str, shown: int
) -> KernelIO:
    # Reads all that was printed or reported: in a thread, for it may be long.
    found = await anyio.to_thread.run_sync(
        overview, seen.launches(), model, choice, seen.run.directory, shown
    )
    returned = seen.run.last(events.Called) is not None
    ended_in = "" if returned else seen.last_launch
    if not (returned or ended_in or found.last is None):
        # The launch of which nothing was seen afterwards.
        ended_in = "" if any(a.when == "after" for a in found.last.arguments) else found.last.kernel
    return KernelIO(
        backend=backend,
        why=why,
        returned=returned,
        stopped=seen.stopped,
        first_bad=found.first_bad,
        last_launch=ended_in,
        launches=found.shown,
        seen=found.count,
        left_out=max(0, found.count - shown),
        notes=seen.notes,
        failure=None if seen.stopped else read_failure(seen.run.finished),
        table=context.artifact(found.table, "table of all launches"),
        json_file=context.artifact(found.json_file, "all launches"),
        log=context.artifact(seen.run.finished.output, "output of the run"),
        cost=context.cost.cost(),
    )
