"""A server reduced to its end: runs one job until standard input ends. Arguments: the job's directory."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.server.app import exit_on_signals
from tests.jobs.support import FAMILY, finish, python


async def serve(directory: Path) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish, directory, python(FAMILY, str(directory / "pids")))
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    exit_on_signals()
    anyio.run(serve, Path(sys.argv[1]))
