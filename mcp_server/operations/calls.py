"""Carries the operations out. Steps are imported when they are called, so that the server starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.operations import arguments as args

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.tools.context import Context


async def explain_error(context: Context, given: args.ExplainArguments) -> Record:
    from mcp_server.operations.paths import file, package_file
    from mcp_server.tools.explain_error import explain_error as step

    return await step(
        context,
        text=given.text,
        log=file("log", given.log, Path.cwd()) if given.log else None,
        package=package_file(given.package, Path.cwd()) if given.package else None,
        model_name=given.model_name,
    )


async def check_devices(context: Context, given: args.CheckArguments) -> Record:
    from mcp_server.operations.workload import checked_package
    from mcp_server.tools.check_devices import check_devices as step

    return await step(context, checked_package(given, Path.cwd()))


async def compile_with_flags(context: Context, given: args.CompileArguments) -> Record:
    from mcp_server.operations.workload import exported_program
    from mcp_server.tools.compile_with_flags import compile_with_flags as step

    return await step(context, exported_program(given, Path.cwd()), given.flags)


async def diagnose(context: Context, given: args.DiagnoseArguments) -> Record:
    from mcp_server.diagnosis.diagnose import diagnose as step
    from mcp_server.operations.paths import file
    from mcp_server.operations.symptom import symptom_of
    from mcp_server.operations.workload import chosen_kinds, workload_of

    log = file("log", given.log, Path.cwd()) if given.log else None
    workload = workload_of(given, Path.cwd()) if chosen_kinds(given) or log is None else None
    symptom = symptom_of(given, workload)
    return await step(context, workload, log=log, budget_s=given.budget_s, symptom=symptom)


async def run_deterministic(context: Context, given: args.RepeatArguments) -> Record:
    from mcp_server.operations.workload import workload_of
    from mcp_server.tools.run_deterministic import run_deterministic as step

    return await step(
        context,
        workload_of(given, Path.cwd()),
        repeats=given.repeats,
        caching_off=given.caching_off,
        blocking=given.blocking,
        check_inputs=given.check_inputs,
    )


async def inspect_package(context: Context, given: args.InspectArguments) -> Record:
    from mcp_server.operations.paths import package_file
    from mcp_server.operations.workload import question_of
    from mcp_server.tools.inspect_package import inspect_package as step

    return await step(
        context,
        package_file(given.package, Path.cwd()),
        question_of(given),
        model_name=given.model_name,
        offset=given.offset,
        graph=given.graph,
    )


async def dump_kernel_io(context: Context, given: args.DumpArguments) -> Record:
    from mcp_server.operations.workload import dumped_model
    from mcp_server.tools.dump_kernel_io import dump_kernel_io as step
    from mcp_server.tools.first_bad import Choice

    return await step(
        context,
        dumped_model(given, Path.cwd()),
        Choice(given.launches, given.kernels, given.buffers),
        backend=given.backend,
        level=given.level,
        save=given.save,
        stop_at_first_bad=given.stop_at_first_bad,
    )


async def trace_launches(context: Context, given: args.TraceArguments) -> Record:
    from mcp_server.operations.workload import called_package
    from mcp_server.tools.trace_launches import trace_launches as step

    return await step(
        context,
        called_package(given, Path.cwd()),
        sync=given.sync,
        stop_at=given.stop_at if given.stop_at >= 0 else None,
        calls=given.calls,
    )


async def try_fix(context: Context, given: args.TryArguments) -> Record:
    from mcp_server.diagnosis.try_fix import Asked
    from mcp_server.diagnosis.try_fix import try_fix as step
    from mcp_server.operations.paths import directory, file
    from mcp_server.operations.workload import called_package

    base = directory("cwd", given.cwd, Path.cwd())
    asked = Asked(
        changes=tuple(given.changes),
        kernel=given.kernel,
        replace=tuple(given.replace),
        launch=given.launch if given.launch >= 0 else None,
        how=given.how,
        constants=file("constants", given.constants, base) if given.constants else None,
        set_env=given.set_env,
        expect=file("expect", given.expect, base) if given.expect else None,
        tolerance=given.tolerance or None,
    )
    return await step(context, called_package(given, Path.cwd()), asked)


async def compare_with_eager(context: Context, given: args.CompareArguments) -> Record:
    from mcp_server.operations.workload import compared_model
    from mcp_server.tools.compare_with_eager import compare_with_eager as step

    workload, exported = compared_model(given, Path.cwd())
    return await step(context, workload, exported, tolerance=given.tolerance)


async def locate_fault(context: Context, given: args.LocateArguments) -> Record:
    from mcp_server.model import PackageWorkload
    from mcp_server.operations.workload import located_workload
    from mcp_server.tools.locate_fault import locate_fault as step
    from mcp_server.tools.locate_fault import locate_in_program

    workload, package = located_workload(given, Path.cwd())
    if isinstance(workload, PackageWorkload):
        return await step(context, workload, tool=given.tool, plain_runs=given.plain_runs)
    return await locate_in_program(
        context, workload, package=package, tool=given.tool, plain_runs=given.plain_runs
    )


async def bisect(context: Context, given: args.BisectArguments) -> Record:
    from mcp_server.operations.workload import bisected_program
    from mcp_server.tools.bisect import bisect as step

    return await step(context, bisected_program(given, Path.cwd()), budget_s=given.budget_s)


async def reduce(context: Context, given: args.ReduceArguments) -> Record:
    from mcp_server.operations.workload import reduced_model
    from mcp_server.tools.reduce.reduce import reduce as step

    workload = reduced_model(given, Path.cwd())
    launch = given.launch if given.launch >= 0 else None
    return await step(context, workload, scope=given.scope, launch=launch, budget_s=given.budget_s)
