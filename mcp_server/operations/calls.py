"""Carries the operations out. Steps are imported when they are called, so that the server starts fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.operations import arguments as args

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.steps.context import Context


async def compile_with_flags(context: Context, given: args.CompileArguments) -> Record:
    from mcp_server.operations.workload import exported_of
    from mcp_server.steps.compile_with_flags import compile_with_flags as step

    return await step(context, exported_of(given, Path.cwd()), given.flags)
