"""GPU leases on demand: the processes of a child request the lease just before they use the GPU.

Importing torch and compiling need no GPU, so other jobs can use it meanwhile. A process requests the lease by
connecting to the socket named in its environment (worker/lease.py). It gets one byte when it may go on, and
keeps the lease as long as the connection is open. The child has the lease while any of its processes has it.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.gpus import Lease, Waits

VARIABLE = "AOTI_DEBUG_LEASE"
GRANTED, REFUSED = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class LeaseServer:
    """Grants the lease to the processes of one child. `name` is the value of `VARIABLE`."""

    def __init__(self, lease: Lease, waits: Waits) -> None:
        self.name = f"aoti-debug-{secrets.token_hex(16)}"
        # Shielded: a cancelled child still runs for a moment, and must not do so without its lease.
        self.scope = anyio.CancelScope(shield=True)
        self._lease = lease
        self._waits = waits
        self._turn = anyio.Lock()
        self._holders = 0
        # The abstract namespace (unix(7)) leaves no file behind if this process is killed.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind("\0" + self.name)
        self._listener.listen()

    async def answer(self) -> None:
        """Accept connections until `scope` is cancelled."""
        with self.scope:
            async with anyio.create_task_group() as tasks:
                while self._listener.fileno() >= 0:
                    await anyio.wait_readable(self._listener)
                    with suppress(BlockingIOError, ConnectionError):
                        tasks.start_soon(self._serve, self._listener.accept()[0])

    def close(self) -> None:
        self._listener.close()

    async def _serve(self, process: socket.socket) -> None:
        """Keep the lease until the process closes the connection, at its exit at the latest."""
        with process:
            process.setblocking(False)
            async with self._turn:
                if not _is_own_user(process) or not (self._holders or await self._acquire()):
                    with suppress(OSError):
                        process.send(REFUSED)
                    return
                self._holders += 1
            try:
                with suppress(OSError):
                    process.send(GRANTED)
                    await anyio.wait_readable(process)
            finally:
                self._holders -= 1
                if not self._holders:
                    self._lease.release()

    async def _acquire(self) -> bool:
        """False if the lock file cannot be created. The process already runs, and goes on without a lease."""
        try:
            await self._lease.acquire()
        except ProblemError as problem:
            self._waits.progress(f"no lease of the GPU: {problem}")
            return False
        return True


def _is_own_user(process: socket.socket) -> bool:
    """Whether the peer has our user id: sockets of the abstract namespace have no permissions."""
    peer = process.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(peer)[1]) == os.getuid()


@asynccontextmanager
async def on_request(
    names: Iterable[str], waits: Waits, *, root: Path | None = None
) -> AsyncIterator[tuple[tuple[int, ...], dict[str, str]]]:
    """Lease the GPUs `names` to a child whenever one of its processes requests them.

    Yields the descriptors for the supervisor, and the variables for the child's environment.
    """
    lease = Lease(names, waits, root)
    failure: Exception | None = None
    with closing(lease), closing(LeaseServer(lease, waits)) as requests:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(requests.answer)
            try:
                yield tuple(lease.fds), {VARIABLE: requests.name}
            except Exception as error:  # raised below, where the group does not wrap it
                failure = error
            finally:
                requests.scope.cancel()
    if failure is not None:
        raise failure
