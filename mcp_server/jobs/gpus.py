"""GPU leases, which let one job at a time use a GPU, and a clock that stops while a job waits.

A lease is a file lock, so it ends with the process that holds it. Leases are advisory, and shared by the
servers of one user on one machine. A job that names no GPU needs no lease.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import flock, is_current, open_lock, private_directory, storing

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.5


def lease_root() -> Path:
    """The local directory for leases. State directories may be shared between machines, but GPUs are not."""
    return Path("/tmp") / f"aoti-debug-{os.getuid()}"


@dataclass(frozen=True)
class Waits:
    """A job that wants a GPU: its name for other jobs (`holder`), and a function to call while it waits.

    `shared` has the job's leases, by GPU: its processes may use one GPU together.
    """

    holder: str
    progress: Callable[[str], None] = lambda _line: None
    blocked: Callable[[], AbstractContextManager[None]] = nullcontext
    shared: dict[str, Lease] = field(default_factory=dict)


class Lease:
    """The lock of the GPU `name`; `users` counts the children of a job that want or have it.

    All copies of its descriptor hold the lock: if this process is killed, the supervisors of its children
    keep the lease until they have ended their programs.
    """

    def __init__(self, name: str) -> None:
        self.name, self.users = name, 0
        self._path = private_directory(lease_root()) / f"gpu-{name.replace('/', '_')}.lock"
        with storing(self._path):
            self.fd = open_lock(self._path)

    async def acquire(self, waits: Waits) -> None:
        """Lock the GPU. A lock taken by another child of the same job also counts for this child."""
        if not self._try_lock():
            with waits.blocked():
                await self._wait(waits)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, waits.holder.encode("utf-8", "replace")[:200], 0)

    async def _wait(self, waits: Waits) -> None:
        pause, reported = FIRST_WAIT_S, ""
        while not self._try_lock():
            holder = ""
            with suppress(OSError):
                holder = self._path.read_text("utf-8", "replace").strip()
            line = f"waiting for GPU {self.name}, in use by {holder or 'another job'}"
            if line != reported:
                waits.progress(line)
            reported = line
            await anyio.sleep(pause)
            pause = min(LONGEST_WAIT_S, pause * 1.5)

    def _try_lock(self) -> bool:
        """Try the lock. If a cleaner of /tmp removed the lock file, create it again."""
        with storing(self._path):
            if not is_current(self.fd, self._path):
                fresh = open_lock(self._path)
                os.dup2(fresh, self.fd, inheritable=False)
                os.close(fresh)
            return flock(self.fd) and is_current(self.fd, self._path)


@contextmanager
def _used(name: str, shared: dict[str, Lease]) -> Iterator[Lease]:
    """Yield the job's lease of this GPU. The lease ends when its last user leaves."""
    if name not in shared:
        shared[name] = Lease(name)
    lease = shared[name]
    lease.users += 1
    try:
        yield lease
    finally:
        lease.users -= 1
        if not lease.users:
            del shared[name]
            os.close(lease.fd)


@asynccontextmanager
async def leased(names: Iterable[str], waits: Waits) -> AsyncIterator[tuple[int, ...]]:
    """Lease the GPUs `names` for the body, and yield the descriptors of the locks.

    Locks are taken in sorted order, so that two jobs cannot wait for each other.
    """
    with ExitStack() as stack:
        found = []
        for name in sorted(set(names)):
            lease = stack.enter_context(_used(name, waits.shared))
            await lease.acquire(waits)
            found.append(lease.fd)
        yield tuple(found)


def device_names(gpus: Iterable[int], visible: str | None) -> tuple[str, ...]:
    """Return machine-wide names for the child's device indices: index i is entry i of CUDA_VISIBLE_DEVICES.

    An index beyond the entries is its own name: the workload then fails, which is a result. A variable that
    is set and empty hides every GPU, so no name is returned. An index and a UUID of one GPU are two names.
    Raise ProblemError for a negative index.
    """
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    wanted = sorted(set(gpus))
    if wanted and wanted[0] < 0:
        raise ProblemError("not the index of a GPU", value=wanted[0], allowed="0 and above")
    if visible is not None and not entries:
        return ()
    return tuple(sorted({entries[i] if i < len(entries) else str(i) for i in wanted}))


class Clock:
    """A clock for the limits of a job. It stands still while all of the job's children wait for a GPU.

    Up to `allowance_s` of builds that make progress do not count either.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._stopped_at: float | None = None
        self._waited = self.spared_s = self.allowance_s = 0.0
        self.ends_s = math.inf  # seconds of work after which no child goes on
        self._spared_at = self.began
        self._limits: dict[anyio.CancelScope, float] = {}  # seconds left when the clock stopped
        self._children = self._blocked = 0

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def waited_s(self) -> float:
        """Seconds that the clock stood still, including a current stop."""
        return self._waited + (time.monotonic() - self._stopped_at if self._stopped_at is not None else 0.0)

    @property
    def worked_s(self) -> float:
        return self.wall_s - self.waited_s - self.spared_s

    @property
    def left_s(self) -> float:
        return max(self.ends_s - self.worked_s, 1.0)

    def spare(self, seconds: float) -> float:
        """Do not count the last `seconds` of a build. Return how many of them `allowance_s` covers."""
        now = time.monotonic()
        granted = min(seconds, self.allowance_s - self.spared_s)
        fresh = min(granted, now - self._spared_at)  # another child may have built at the same time
        self.spared_s, self._spared_at = self.spared_s + fresh, now
        for scope in self._limits:
            scope.deadline += fresh
        return granted

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancel the body after `seconds` of this clock."""
        still = self._stopped_at is not None
        scope = anyio.CancelScope(deadline=math.inf if still else anyio.current_time() + seconds)
        self._limits[scope] = seconds
        try:
            with scope:
                yield scope
        finally:
            del self._limits[scope]

    def child(self) -> AbstractContextManager[None]:
        return self._added(children=1, blocked=0)

    def blocked(self) -> AbstractContextManager[None]:
        return self._added(children=0, blocked=1)

    @contextmanager
    def _added(self, children: int, blocked: int) -> Iterator[None]:
        self._count(children, blocked)
        try:
            yield
        finally:
            self._count(-children, -blocked)

    def _count(self, children: int, blocked: int) -> None:
        self._children += children
        self._blocked += blocked
        waits = bool(self._blocked) and self._blocked >= self._children
        if waits and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            for scope in self._limits:
                self._limits[scope] = scope.deadline - anyio.current_time()
                scope.deadline = math.inf
        elif not waits and self._stopped_at is not None:
            self._waited, self._stopped_at = self.waited_s, None
            for scope, left in self._limits.items():
                scope.deadline = anyio.current_time() + left
