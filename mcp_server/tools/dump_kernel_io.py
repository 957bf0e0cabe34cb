"""`dump_kernel_io`: what chosen launches read and wrote, seen by probes or by AOTInductor's value printer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    summarise,
)
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.archive import Package, open_package
from mcp_server.package.launches import Launch, Role
from mcp_server.package.wrapper import read_wrapper
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.context import Context, Event, WorkerRun
from mcp_server.tools.failure import read_failure, read_output
from mcp_server.tools.first_bad import Choice, Launches, Model, overview
from mcp_server.tools.kernel_io import (
    ArgumentValues,
    Backend,
    BadElement,
    KernelIO,
    LaunchValues,
    Phase,
    measured,
)
from mcp_server.tools.probe_backend import Seen, observe
from mcp_server.tools.requests import INPUTS_HELP, run_request

INPUTS = "model inputs"


@dataclass
class _Group:
    """Records of one launch."""

    kernel: str
    records: list[Printed] = field(default_factory=list)

    def belongs(self, record: Printed) -> bool:
        """A new launch begins with another kernel, or when something comes before a launch that has ended."""
        ended = any(one.when == "after_launch" for one in self.records)
        return record.kernel == self.kernel and not (ended and record.when == "before_launch")


def printed_launches(
    records: Iterable[Printed], model: Model, facts: Mapping[str, ArgumentValues] | None = None
) -> Iterator[LaunchValues]:
    """Launches in the order of the output; the model's inputs are a first one without a number.

    `facts` are the values of level 1's files by path.
    """
    # Each group is the next launch of its kernel: the code is a straight line outside branches and loops.
    place = 0
    for sequence, group in enumerate(_grouped(records)):
        following = model.wrapper.launches[place:]
        found = next((launch for launch in following if launch.kernel == group.kernel), None)
        place = found.index + 1 if found else place
        yield _launch(group, sequence, found, model, facts or {})


def _grouped(records: Iterable[Printed]) -> Iterator[_Group]:
    group: _Group | None = None
    for record in records:
        if group is None or not group.belongs(record):
            if group is not None:
                yield group
            group = _Group(record.kernel)
        group.records.append(record)
    if group is not None:
        yield group


def _launch(
    group: _Group, sequence: int, known: Launch | None, model: Model, facts: Mapping[str, ArgumentValues]
) -> LaunchValues:
    arguments = [_argument(record, known, facts) for record in group.records]
    tensors = {a.target for a in known.tensors if a.target} if known else set()
    return LaunchValues(
        kernel=group.kernel or INPUTS,
        sequence=sequence,
        launch=known.index if known else None,
        arguments=arguments,
        not_shown=sorted(tensors - {a.name for a in arguments}),
        locations=model.locations(known.index) if known else [],
    )


def _argument(record: Printed, known: Launch | None, facts: Mapping[str, ArgumentValues]) -> ArgumentValues:
    role = _role(record.argument, known)
    when: Phase = "after" if record.when == "after_launch" else "before"
    unset = when == "before" and (role == "written" or (role == "unknown" and _fresh(record)))
    if isinstance(record, PrintedScalar):
        return ArgumentValues(name=record.argument, when=when, role="read", value=record.text)
    if isinstance(record, SavedTensor):
        values = facts.get(record.path) or ArgumentValues(name="", when=when, device=record.device)
        return values.model_copy(
            update={"name": record.argument, "when": when, "role": role, "uninitialised": unset}
        )
    return _tensor(record, when, role, unset)


def _fresh(record: Printed) -> bool:
    """A buffer that no launch was seen to write before."""
    return isinstance(record, PrintedTensor) and record.uninitialised


def _role(name: str, known: Launch | None) -> Role:
    roles: dict[str | None, Role] = {a.target: a.role for a in known.tensors} if known else {}
    return roles.get(name, "unknown")


def _tensor(record: PrintedTensor, when: Phase, role: Role, unset: bool) -> ArgumentValues:
    return ArgumentValues(
        name=record.argument,
        when=when,
        role=role,
        dtype=record.dtype,
        shape=list(record.size),
        stride=list(record.stride),
        device=record.device,
        min=finite(record.minimum),
        max=finite(record.maximum),
        mean=finite(record.mean),
        non_finite=non_finite(record),
        uninitialised=unset,
    )


def finite(number: float | None) -> float | None:
    """None for what JSON has no number for."""
    return number if number is not None and math.isfinite(number) else None


def non_finite(record: PrintedTensor) -> BadElement | None:
    """What minimum, maximum and printed values say. The mean alone is no sign: in float32 it overflows over
    finite values; a complex tensor has nothing else.
    """
    told = [record.minimum, record.maximum, *record.values]
    if record.minimum is None:
        told.append(record.mean)
    bad = [value for value in told if value is not None and not math.isfinite(value)]
    if not bad:
        return None
    worst = next((value for value in bad if math.isnan(value)), None) or max(bad)
    counted = sum(not math.isfinite(value) for value in record.values) or None
    return BadElement(value=str(worst), count=counted)


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
    report = await anyio.to_thread.run_sync(summarise, _lines(done.finished.stdout), kernels)
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


SHOWN = 24


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
    compiled = await _compiled(context, workload, asked, level if backend == "printer" else None)
    model = await anyio.to_thread.run_sync(_model, compiled)
    choice = asked.checked(model)
    if backend == "printer":
        seen = await run_printer(context, compiled, model, level)
        return await _result(context, seen, model, choice, "printer", "asked for", shown)
    try:
        seen = await observe(context, compiled, model, choice, save=save, stop=stop_at_first_bad)
    except ProblemError as problem:
        has = await _with_printer(context, workload, compiled, asked) if backend == "auto" else None
        if has is None:
            raise
        model = await anyio.to_thread.run_sync(_model, has.package)
        seen = await run_printer(context, has.package, model, has.level)
        choice, why = asked.checked(model), f"no probes: {problem}"
        return await _result(context, seen, model, choice, "printer", why, shown)
    return await _result(context, seen, model, choice, "probes", "every tensor, no recompile", shown)


@dataclass(frozen=True)
class _Printing:
    """A package that has the value printer, at `level`."""

    package: PackageWorkload
    level: Level


async def _with_printer(
    context: Context,
    workload: PackageWorkload | ExportedWorkload,
    compiled: PackageWorkload,
    choice: Choice,
) -> _Printing | None:
    """The package when it prints, else one compiled again from the exported program; None without either."""
    level = level_of(_model(compiled).package)
    if level is not None:
        return _Printing(compiled, level)
    if isinstance(workload, PackageWorkload):
        return None
    return _Printing(await _compiled(context, workload, choice, "2"), "2")


def _model(workload: PackageWorkload) -> Model:
    package = open_package(workload.package, workload.model_name)
    return Model(package, read_wrapper(package.wrapper_text, package.kernel_text))


async def _compiled(
    context: Context, workload: PackageWorkload | ExportedWorkload, choice: Choice, level: Level | None
) -> PackageWorkload:
    """The package to run; an exported program is compiled with provenance, and the printer if asked for."""
    if isinstance(workload, PackageWorkload):
        return workload
    flags: dict[str, object] = {} if level is None else {FLAG: level}
    if level == "2" and choice.kernels:
        flags[FILTER] = ",".join(choice.kernels)
    return await compiled_package(context, workload, flags)


async def _result(
    context: Context, seen: Seen, model: Model, choice: Choice, backend: Backend, why: str, shown: int
) -> KernelIO:
    # Reads all that was printed or reported: in a thread, for it may be long.
    found = await anyio.to_thread.run_sync(overview, seen.launches, model, choice, seen.run.directory, shown)
    returned = seen.run.last("called") is not None
    return KernelIO(
        backend=backend,
        why=why,
        returned=returned,
        stopped=seen.stopped,
        first_bad=found.first_bad,
        last_launch="" if returned else seen.last_launch or _open(found.last),
        launches=found.shown.launches,
        seen=found.shown.count,
        left_out=max(0, found.shown.count - shown),
        notes=seen.notes,
        failure=None if seen.stopped else read_failure(seen.run.finished),
        table=context.artifact(found.table, "table of all launches"),
        json_file=context.artifact(found.json_file, "all launches"),
        log=context.artifact(seen.run.finished.output, "output of the run"),
        cost=context.cost.cost(),
    )


def _open(last: LaunchValues | None) -> str:
    """The launch of which nothing was seen afterwards, when the call did not return."""
    if last is None or any(argument.when == "after" for argument in last.arguments):
        return ""
    return last.kernel
