"""One job at a time on a GPU: leases by file locks, so that they end with the process that holds them.

Advisory, and between the servers of one user on one machine. A job that names no GPU takes no lease.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import anyio

from mcp_server.jobs.private import is_current, open_lock, private_directory, storing

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.5


def lease_root() -> Path:
    """On this machine's own disk: a state directory may be shared between machines, GPUs are not."""
    return Path("/tmp") / f"aoti-debug-{os.getuid()}"


def _quiet(_line: str) -> None:
    """For who does not want to know."""


@dataclass(frozen=True)
class Waits:
    """Who wants a lease, as others are told (`holder`), and who hears of it when it has to be waited for.

    `blocked` is around the waiting; `tell` gets a line for each job that is waited for.
    """

    holder: str
    tell: Callable[[str], None] = _quiet
    blocked: Callable[[], AbstractContextManager[None]] = nullcontext


class Lease:
    """The GPUs `names`: nobody's until `acquire`.

    `fds` are there from the start, so that a supervisor can be given them. A lock belongs to all copies of a
    descriptor: when this process is killed, the supervisor has the lease until it has ended its program.
    """

    def __init__(self, names: Iterable[str], waits: Waits, root: Path | None = None) -> None:
        directory = private_directory(root or lease_root())
        self._waits = waits
        self._names = sorted(set(names))
        self._paths = [directory / f"gpu-{name.replace('/', '_')}.lock" for name in self._names]
        self.fds: list[int] = []
        try:
            for path in self._paths:
                with storing(path):
                    self.fds.append(open_lock(path))
        except BaseException:
            self.close()
            raise

    async def acquire(self) -> None:
        """Wait until they are free; say for whom, and say so again when that changes.

        The names are taken in one order by everyone, so that two jobs cannot wait for each other.
        """
        for place in range(len(self.fds)):
            if not self._taken(place):
                with self._waits.blocked():
                    await self._wait(place)
            os.ftruncate(self.fds[place], 0)
            os.pwrite(self.fds[place], self._waits.holder.encode("utf-8", "replace")[:200], 0)

    async def _wait(self, place: int) -> None:
        pause, told = FIRST_WAIT_S, ""
        while not self._taken(place):
            line = f"waiting for GPU {self._names[place]}, in use by {_holder(self._paths[place])}"
            if line != told:
                self._waits.tell(line)
            told = line
            await anyio.sleep(pause)
            pause = min(LONGEST_WAIT_S, pause * 1.5)

    def _taken(self, place: int) -> bool:
        """Try the lock; a lock file that a cleaner removed meanwhile is made anew."""
        path = self._paths[place]
        with storing(path):
            if not is_current(self.fds[place], path):
                anew = open_lock(path)
                os.dup2(anew, self.fds[place], inheritable=False)
                os.close(anew)
            try:
                fcntl.flock(self.fds[place], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return is_current(self.fds[place], path)

    def release(self) -> None:
        """Give them back, whoever has copies of the descriptors."""
        for fd in self.fds:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go; a supervisor that was given the descriptors has the lease until it ends."""
        while self.fds:
            os.close(self.fds.pop())


@asynccontextmanager
async def leased(
    names: Iterable[str], waits: Waits, *, root: Path | None = None
) -> AsyncIterator[Sequence[int]]:
    """Hold the GPUs `names`; yields the descriptors of the locks."""
    lease = Lease(names, waits, root)
    try:
        await lease.acquire()
        yield tuple(lease.fds)
    finally:
        lease.close()


def _holder(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip() or "another job"
    except OSError:
        return "another job"
