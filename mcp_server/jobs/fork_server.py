"""A process that has imported torch, and forks for each command: the import is paid for once.

The process is `worker/fork_server.py`, which runs as a command of its own; what it forks is supervised as any
other child is. When the server here is left, nothing of either remains.
"""

from __future__ import annotations

import json
import logging
import math
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import SUPERVISOR, Child, checked, request
from mcp_server.jobs.run import run
from mcp_server.jobs.types import Command

READY = b"ready "  # and the process id
READY_BYTES = 64
AFTER_OPTIONS = 2  # `PYTHON -u` come before what the forked process takes as its arguments


class ForkServer:
    """The server's end. `start` takes the place of `Child.start` for commands that may be forked.

    As a keeper it stands for the supervisors that were forked: they are reaped over there, and a lost one
    takes the others along.
    """

    def __init__(self, server: socket.socket, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.lost = False

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        memory_bytes: int | None = None,
        keep_fds: Sequence[int] = (),
    ) -> Child:
        """Fork for `PYTHON -u PROGRAM ARGUMENTS...`; started as usual when the server has gone.

        Raises ProblemError as `Child.start` does.
        """
        packet = json.dumps(checked(argv)[AFTER_OPTIONS:]).encode()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._server, [packet], [theirs.fileno(), stdout, stderr, *keep_fds])
        except OSError:
            self.lost = True
            ours.close()
            streams = {"stdout": stdout, "stderr": stderr, "keep_fds": keep_fds}
            return Child.start(argv, cwd=cwd, env=env, memory_bytes=memory_bytes, **streams)  # type: ignore[arg-type]
        return Child.asked(self, ours, request(cwd, env, memory_bytes))

    def poll(self) -> int:
        """Nothing is left to be reaped here."""
        return 0

    def kill(self) -> None:
        """End the process and everything that it forked; called when a supervisor said nothing of its end."""
        self.lost = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def fork_server(command: Command, directory: Path) -> AsyncIterator[ForkServer | None]:
    """Run `command`, which gets the supervisor's path as its last argument, for as long as the context lasts.

    Yields None when it ended, or was not ready within `command.timeout_s`: then everything starts as usual.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lasting = replace(command, argv=(*command.argv, str(SUPERVISOR)), timeout_s=math.inf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, lasting, directory, theirs)
        with ours:
            ours.setblocking(False)
            pid = await _ready(ours, command.timeout_s)
            yield ForkServer(ours, pid) if pid else None
        tasks.cancel_scope.cancel()


async def _run(command: Command, directory: Path, theirs: socket.socket) -> None:
    """The process, with its end of the socket as standard input."""

    def start(argv: Sequence[str], **how: Any) -> Child:
        with theirs:
            return Child.start(argv, stdin=theirs.fileno(), **how)

    try:
        with theirs:
            await run(command, directory, start=start)
    except ProblemError as problem:
        logging.getLogger(__name__).warning("no fork server: %s", problem)


async def _ready(ours: socket.socket, timeout_s: float) -> int:
    """The id of the process, when it said in time that it is ready; else 0."""
    with anyio.move_on_after(timeout_s):
        await anyio.wait_readable(ours)
        with suppress(OSError):
            told = ours.recv(READY_BYTES)
            return int(told.removeprefix(READY)) if told.startswith(READY) else 0
    return 0
