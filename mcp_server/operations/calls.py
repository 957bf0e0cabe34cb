"""Carries the operations out. Steps are imported when they are called, so that the server starts fast.

Arguments are checked in a thread: archives are opened for that, and other calls are answered meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync as in_thread

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.operations import arguments as args
from mcp_server.operations import workload as checked

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.tools.context import Context
    from mcp_server.tools.inspect_package import Question


async def explain_error(context: Context, given: args.ExplainArguments) -> Record:
    from mcp_server.tools.explain_error import explain_error as step

    return await step(
        context,
        text=given.text,
        log=checked.optional_file("log", given.log),
        package=await in_thread(checked.package_file, given.package, Path.cwd()) if given.package else None,
        model_name=given.model_name,
    )


async def check_devices(context: Context, given: args.CheckArguments) -> Record:
    from mcp_server.tools.check_devices import check_devices as step

    if given.inputs and not given.package:
        raise ProblemError("inputs are checked against a package, and none is given")
    return await step(context, await in_thread(checked.package_workload, given) if given.package else None)


async def compile_with_flags(context: Context, given: args.CompileArguments) -> Record:
    from mcp_server.tools.compile_with_flags import compile_with_flags as step

    return await step(context, await in_thread(checked.exported_workload, given), given.flags)


async def diagnose(context: Context, given: args.DiagnoseArguments) -> Record:
    from mcp_server.diagnosis.diagnose import diagnose as step

    log = checked.optional_file("log", given.log)
    workload = None
    if checked.chosen_kinds(given) or log is None:
        workload = await in_thread(checked.workload_of, given)
    symptom = checked.symptom_of(given, workload)
    return await step(context, workload, log=log, budget_s=given.budget_s, symptom=symptom)


async def run_deterministic(context: Context, given: args.RepeatArguments) -> Record:
    from mcp_server.tools.run_deterministic import run_deterministic as step

    return await step(
        context,
        await in_thread(checked.workload_of, given),
        repeats=given.repeats,
        caching_off=given.caching_off,
        blocking=given.blocking,
        check_inputs=given.check_inputs,
    )


async def inspect_package(context: Context, given: args.InspectArguments) -> Record:
    from mcp_server.tools.inspect_package import inspect_package as step

    return await step(
        context,
        await in_thread(checked.package_file, given.package, Path.cwd()),
        question_of(given),
        model_name=given.model_name,
        offset=given.offset,
        graph=given.graph,
    )


SUBJECTS = ("launch", "kernel", "buffer", "symbol", "input", "constant", "location", "assertion")


def question_of(given: args.InspectArguments) -> Question | None:
    """The question, None for the overview. Raises ProblemError for two at once.

    An assertion may come with the kernel that printed it.
    """
    from mcp_server.tools.inspect_package import Question

    asked = {name: getattr(given, name) for name in SUBJECTS if getattr(given, name) not in ("", -1)}
    if len(asked) > 1 and set(asked) != {"assertion", "kernel"}:
        allowed = "one of " + ", ".join(SUBJECTS)
        raise ProblemError("more than one question", value=", ".join(asked), allowed=allowed)
    if given.generated_line >= 0 and "assertion" not in asked:
        raise ProblemError("generated_line goes with an assertion")
    line = given.generated_line if given.generated_line >= 0 else None
    return Question(**asked, generated_line=line) if asked else None


async def dump_kernel_io(context: Context, given: args.DumpArguments) -> Record:
    from mcp_server.tools.dump_kernel_io import dump_kernel_io as step
    from mcp_server.tools.first_bad import Choice

    if bool(given.package) == bool(given.exported):
        raise ProblemError("give one model", allowed="either package or exported")
    workload: PackageWorkload | ExportedWorkload
    if given.package:
        workload = await in_thread(checked.package_workload, given)
    else:
        workload = await in_thread(checked.exported_workload, given)
    return await step(
        context,
        workload,
        Choice(given.launches, given.kernels, given.buffers),
        backend=given.backend,
        level=given.level,
        save=given.save,
        stop_at_first_bad=given.stop_at_first_bad,
    )


async def trace_launches(context: Context, given: args.TraceArguments) -> Record:
    from mcp_server.tools.trace_launches import trace_launches as step

    stop_at = given.stop_at if given.stop_at >= 0 else None
    workload = await in_thread(checked.package_workload, given)
    return await step(context, workload, sync=given.sync, stop_at=stop_at, calls=given.calls)


async def try_fix(context: Context, given: args.TryArguments) -> Record:
    from mcp_server.diagnosis.try_fix import Asked
    from mcp_server.diagnosis.try_fix import try_fix as step

    base = checked.folder_of(given)
    asked = Asked(
        changes=tuple(given.changes),
        kernel=given.kernel,
        replace=tuple(given.replace),
        launch=given.launch if given.launch >= 0 else None,
        how=given.how,
        constants=checked.optional_file("constants", given.constants, base),
        set_env=given.set_env,
        expect=checked.optional_file("expect", given.expect, base),
        tolerance=given.tolerance or None,
    )
    return await step(context, await in_thread(checked.package_workload, given), asked)


async def compare_with_eager(context: Context, given: args.CompareArguments) -> Record:
    from mcp_server.tools.compare_with_eager import compare_with_eager as step

    if not (given.script or given.exported):
        raise ProblemError("nothing to compare with", allowed="exported, package and exported, or script")
    workload = await in_thread(checked.paired_model, given)
    exported = None
    if isinstance(workload, PackageWorkload):
        exported = await in_thread(checked.exported_file, given.exported, checked.folder_of(given))
    return await step(context, workload, exported, tolerance=given.tolerance)


async def locate_fault(context: Context, given: args.LocateArguments) -> Record:
    from mcp_server.tools.locate_fault import locate_fault as step
    from mcp_server.tools.locate_fault import locate_in_program

    package = None
    if given.command and given.package:  # the package is the one that the command, its host, loads
        package = await in_thread(checked.package_file, given.package, checked.folder_of(given))
        given = given.model_copy(update={"package": ""})
    workload = await in_thread(checked.workload_of, given)
    assert not isinstance(workload, ExportedWorkload), "there is no such argument"
    if isinstance(workload, PackageWorkload):
        return await step(context, workload, tool=given.tool, plain_runs=given.plain_runs)
    return await locate_in_program(
        context, workload, package=package, tool=given.tool, plain_runs=given.plain_runs
    )


async def reduce(context: Context, given: args.ReduceArguments) -> Record:
    from mcp_server.tools.reduce.reduce import reduce as step

    if given.scope == "graph" and given.exported:  # the program has the graph, not the package
        given = given.model_copy(update={"package": ""})
    workload = await in_thread(checked.paired_model, given)
    launch = given.launch if given.launch >= 0 else None
    return await step(context, workload, scope=given.scope, launch=launch, budget_s=given.budget_s)
