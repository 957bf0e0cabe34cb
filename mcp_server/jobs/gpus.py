"""One job at a time on a GPU: leases by file locks, so that they end with the process that holds them.

Advisory, and between the servers of one user on one machine. A job that names no GPU takes no lease.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.private import private_directory, storing, try_lock

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.5


def lease_root() -> Path:
    """On this machine's own disk: a state directory may be shared between machines, GPUs are not."""
    return Path("/tmp") / f"aoti-debug-{os.getuid()}"


def device_names(gpus: Iterable[int], visible: str | None) -> tuple[str, ...]:
    """What the child's device indices are called outside: its index i is entry i of CUDA_VISIBLE_DEVICES.

    An index beyond the entries keeps its own name: the workload will fail, which is a result.
    Raises ProblemError for a negative index.
    """
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    wanted = sorted(set(gpus))
    if wanted and wanted[0] < 0:
        raise ProblemError("not the index of a GPU", value=wanted[0], allowed="0 and above")
    return tuple(sorted({entries[i] if i < len(entries) else str(i) for i in wanted}))


@asynccontextmanager
async def leased(
    names: Iterable[str],
    holder: str,
    *,
    on_wait: Callable[[str], None] | None = None,
    root: Path | None = None,
) -> AsyncIterator[tuple[int, ...]]:
    """Hold the GPUs `names`; yields the descriptors of the locks.

    Waits until they are free and says once per GPU that it waits and for whom (`holder` of the other).
    The names are taken in one order by everyone, so that two jobs cannot wait for each other.
    """
    directory = private_directory(root or lease_root())
    held: list[int] = []
    try:
        for name in sorted(set(names)):
            path = directory / f"gpu-{name.replace('/', '_')}.lock"
            held.append(await _acquire(path, name, on_wait))
            _sign(held[-1], holder)
        yield tuple(held)
    finally:
        for fd in held:
            os.close(fd)


async def _acquire(path: Path, name: str, on_wait: Callable[[str], None] | None) -> int:
    pause = FIRST_WAIT_S
    told = False
    while (fd := _try(path)) is None:
        if on_wait and not told:
            on_wait(f"waiting for GPU {name}, in use by {_holder(path)}")
        told = True
        await anyio.sleep(pause)
        pause = min(LONGEST_WAIT_S, pause * 1.5)
    return fd


def _try(path: Path) -> int | None:
    with storing(path):
        return try_lock(path)


def _sign(fd: int, holder: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, holder.encode("utf-8", "replace")[:200], 0)


def _holder(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip() or "another job"
    except OSError:
        return "another job"
