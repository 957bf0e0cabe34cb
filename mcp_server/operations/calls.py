"""Carries the operations out. Steps are imported when they are called, so that the server starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.operations import arguments as args

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.steps.context import Context


async def check_devices(context: Context, given: args.CheckArguments) -> Record:
    from mcp_server.operations.workload import checked_package
    from mcp_server.steps.check_devices import check_devices as step

    return await step(context, checked_package(given, Path.cwd()))


async def compile_with_flags(context: Context, given: args.CompileArguments) -> Record:
    from mcp_server.operations.workload import exported_program
    from mcp_server.steps.compile_with_flags import compile_with_flags as step

    return await step(context, exported_program(given, Path.cwd()), given.flags)


async def diagnose(context: Context, given: args.DiagnoseArguments) -> Record:
    from mcp_server.diagnose import diagnose as step
    from mcp_server.operations.workload import workload_of

    return await step(context, workload_of(given, Path.cwd()), budget_s=given.budget_s)
