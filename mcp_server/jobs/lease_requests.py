"""A lease that the processes of a child ask for when they come to launch something on the GPU.

Until then they import torch and compile, which keeps nobody else from the GPU. A process asks by connecting
to the socket whose name is in its environment (worker/lease.py): it gets one byte when it may go on, and has
the lease for as long as it keeps the connection. The child has it while one of its processes has.
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


class Requests:
    """Answers the processes of one child. `name` is what they find in `VARIABLE`."""

    def __init__(self, lease: Lease, waits: Waits) -> None:
        self.name = f"aoti-debug-{secrets.token_hex(16)}"
        # Who cancels the child must not end this before the child is dead: it would go on without a lease.
        self.scope = anyio.CancelScope(shield=True)
        self._lease = lease
        self._waits = waits
        self._turn = anyio.Lock()
        self._holders = 0
        # In the abstract namespace (unix(7)): no file is left when this process is killed.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind("\0" + self.name)
        self._listener.listen()

    async def answer(self) -> None:
        """Until `scope` is cancelled."""
        with self.scope:
            async with anyio.create_task_group() as tasks:
                while self._listener.fileno() >= 0:
                    await anyio.wait_readable(self._listener)
                    with suppress(BlockingIOError, ConnectionError):
                        tasks.start_soon(self._serve, self._listener.accept()[0])

    def close(self) -> None:
        """When nobody answers any more."""
        self._listener.close()

    async def _serve(self, process: socket.socket) -> None:
        """Hold the lease until the process hangs up, which it does at its end at the latest."""
        with process:
            process.setblocking(False)
            async with self._turn:
                if not _of_this_user(process) or not (self._holders or await self._acquired()):
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

    async def _acquired(self) -> bool:
        """False when the lock cannot be made any more: the process, which runs already, goes on without."""
        try:
            await self._lease.acquire()
        except ProblemError as problem:
            self._waits.tell(f"no lease of the GPU: {problem}")
            return False
        return True


def _of_this_user(process: socket.socket) -> bool:
    """Anyone may connect in the abstract namespace."""
    told = process.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) == os.getuid()


@asynccontextmanager
async def on_request(
    names: Iterable[str], waits: Waits, *, root: Path | None = None
) -> AsyncIterator[tuple[tuple[int, ...], dict[str, str]]]:
    """Lease the GPUs `names` to a child while it asks for them.

    Yields the descriptors for its supervisor, and the variables for its environment.
    """
    lease = Lease(names, waits, root)
    failure: Exception | None = None
    with closing(lease), closing(Requests(lease, waits)) as requests:
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
