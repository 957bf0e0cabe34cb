"""A process that has imported torch and forks for each command, so that the import is paid for once.

The process runs `worker/fork_server.py`. Each fork has its own supervisor, like any other child. When the
context is left, the process and all of its forks are ended.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import SUPERVISOR, Child, Program
from mcp_server.jobs.command import Command
from mcp_server.jobs.run import run

READY = b"ready "  # followed by the process id
READY_BYTES = 64
PYTHON_WORDS = 2  # `PYTHON -u`; the fork already runs, and takes only what follows


class ForkServer:
    """The server's side. `start` replaces `Child.start` for commands that may be forked.

    It is also the `ProcessHandle` of every forked supervisor. They are reaped in the forking process; killing
    one kills all of them.
    """

    def __init__(self, server: socket.socket, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.lost = False

    def start(self, program: Program) -> Child:
        """Fork for `PYTHON -u PROGRAM ARGUMENTS...`; start a fresh process if the fork server died."""
        packet = json.dumps(program.argv[PYTHON_WORDS:]).encode()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = [theirs.fileno(), program.stdout, program.stderr, *program.keep_fds]
                socket.send_fds(self._server, [packet], descriptors)
        except OSError:
            self.lost = True
            ours.close()
            return Child.start(program)
        return Child(self, ours, program)

    def poll(self) -> int:
        """0, as if the supervisor were reaped: reaping it is the task of the forking process."""
        return 0

    def kill(self) -> None:
        """End the process and all forks. Called when a supervisor never reported an exit status."""
        self.lost = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def fork_server(command: Command, directory: Path) -> AsyncIterator[ForkServer | None]:
    """Run `command` for as long as the context lasts, with the supervisor's path appended to its arguments.

    Yields None if it ended or was not ready within `command.timeout_s`; callers then start fresh processes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lasting = replace(command, argv=(*command.argv, str(SUPERVISOR)), timeout_s=math.inf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, lasting, directory, theirs)
        with ours:
            ours.setblocking(False)
            message = b""
            with anyio.move_on_after(command.timeout_s), suppress(OSError):
                await anyio.wait_readable(ours)
                message = ours.recv(READY_BYTES)
            ready = message.startswith(READY)
            yield ForkServer(ours, int(message.removeprefix(READY))) if ready else None
        tasks.cancel_scope.cancel()


async def _run(command: Command, directory: Path, theirs: socket.socket) -> None:
    """Run the process with its end of the socket as standard input."""

    def start(program: Program) -> Child:
        with theirs:
            return Child.start(replace(program, stdin=theirs.fileno()))

    try:
        with theirs:
            await run(command, directory, start=start)
    except ProblemError as problem:
        logging.getLogger(__name__).warning("no fork server: %s", problem)
