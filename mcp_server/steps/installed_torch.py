"""Which torch an interpreter has, without importing it."""

from __future__ import annotations

import json
from pathlib import Path

from mcp_server.jobs.types import Command
from mcp_server.steps.context import WORKER_MAIN, Context, check_interpreter

TOOLCHAIN = WORKER_MAIN.with_name("toolchain.py")


async def installed_torch(context: Context, python: Path) -> str | None:
    """Such as `2.11.0+cu130`; None when it cannot be told. Takes about 0.1 s."""
    check_interpreter(python)
    command = Command(argv=(str(python), str(TOOLCHAIN)), cwd=context.directory, timeout_s=60)
    finished = await context.run(command, "which-torch")
    try:
        version = json.loads(finished.stdout.read_text(encoding="utf-8"))["torch_version"]
    except (ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and version[:1].isdigit() else None
