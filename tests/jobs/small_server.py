"""A server reduced to its end: runs one job until standard input ends.

Arguments: the job's directory, and a launcher, whose ranks write the ids of their processes each to a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.server.app import exit_on_signals
from tests.jobs.support import FAMILY, finish, python

OF_EACH_RANK = "import os, sys; sys.argv[1] += '.' + os.environ['SLURM_PROCID']" + FAMILY


async def serve(directory: Path, launcher: tuple[str, ...]) -> None:
    argv = (*launcher, *python(OF_EACH_RANK if launcher else FAMILY, str(directory / "pids")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish, directory, argv)
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    exit_on_signals()
    anyio.run(serve, Path(sys.argv[1]), tuple(sys.argv[2:]))
