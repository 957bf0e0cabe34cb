"""`dump_kernel_io`: what chosen launches read and wrote, the first bad value, and who brought it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.steps.compiled import compiled_package
from mcp_server.steps.context import Context
from mcp_server.steps.failure import read_failure
from mcp_server.steps.first_bad import Model
from mcp_server.steps.kernel_choice import Choice
from mcp_server.steps.kernel_io import Backend, KernelIO, LaunchValues
from mcp_server.steps.launch_overview import overview
from mcp_server.steps.printer_backend import FILTER, FLAG, Level, level_of, run_printer
from mcp_server.steps.probe_backend import Seen, observe
from mcp_server.steps.requests import INPUTS_HELP

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
    model = _model(compiled)
    choice = asked.checked(model)
    if backend == "printer":
        seen = await run_printer(context, compiled, model, level)
        return _result(context, seen, model, choice, "printer", "asked for", shown)
    try:
        seen = await observe(context, compiled, model, choice, save=save, stop=stop_at_first_bad)
    except ProblemError as problem:
        has = await _with_printer(context, workload, compiled, asked) if backend == "auto" else None
        if has is None:
            raise
        model = _model(has.package)
        seen = await run_printer(context, has.package, model, has.level)
        return _result(context, seen, model, asked.checked(model), "printer", f"no probes: {problem}", shown)
    return _result(context, seen, model, choice, "probes", "every tensor, no recompile", shown)


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


def _result(
    context: Context, seen: Seen, model: Model, choice: Choice, backend: Backend, why: str, shown: int
) -> KernelIO:
    found = overview(seen.launches, model, choice, seen.run.directory, shown)
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
