"""GPU leases, so that one job at a time uses a GPU, and canonical names of GPUs.

A lease is a file lock, so it ends with the process that has it. Leases are advisory, and shared by the
servers of one user on one machine. A job that names no GPU needs no lease.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.private import is_current, open_lock, private_directory, storing

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.5


def lease_root() -> Path:
    """A local directory. The state directory may be shared between machines, but GPUs are not."""
    return Path("/tmp") / f"aoti-debug-{os.getuid()}"


def _quiet(_line: str) -> None:
    """The default: drop the line."""


@dataclass(frozen=True)
class Waits:
    """Who wants a lease, and callbacks for the time spent waiting for it.

    `holder` is the name that other jobs see. `progress` gets a line for each job that is waited for.
    `blocked` wraps the waiting.
    """

    holder: str
    progress: Callable[[str], None] = _quiet
    blocked: Callable[[], AbstractContextManager[None]] = nullcontext


class Lease:
    """Locks for the GPUs `names`, not locked until `acquire`.

    `fds` exist from the start, so that a supervisor can inherit them. A lock belongs to all copies of a
    descriptor: if this process is killed, the supervisor keeps the lease until it has ended its program.
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
        """Lock all GPUs, waiting for jobs that use them.

        Everyone locks in sorted order, so that two jobs cannot wait for each other.
        """
        for place in range(len(self.fds)):
            if not self._try_lock(place):
                with self._waits.blocked():
                    await self._wait(place)
            os.ftruncate(self.fds[place], 0)
            os.pwrite(self.fds[place], self._waits.holder.encode("utf-8", "replace")[:200], 0)

    async def _wait(self, place: int) -> None:
        pause, reported = FIRST_WAIT_S, ""
        while not self._try_lock(place):
            line = f"waiting for GPU {self._names[place]}, in use by {_holder(self._paths[place])}"
            if line != reported:
                self._waits.progress(line)
            reported = line
            await anyio.sleep(pause)
            pause = min(LONGEST_WAIT_S, pause * 1.5)

    def _try_lock(self, place: int) -> bool:
        """Try the lock. A lock file that a cleaner of /tmp removed is created again."""
        path = self._paths[place]
        with storing(path):
            if not is_current(self.fds[place], path):
                fresh = open_lock(path)
                os.dup2(fresh, self.fds[place], inheritable=False)
                os.close(fresh)
            try:
                fcntl.flock(self.fds[place], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return is_current(self.fds[place], path)

    def release(self) -> None:
        """Unlock, even if other processes have copies of the descriptors."""
        for fd in self.fds:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptors. A supervisor that inherited them keeps the lease until it ends."""
        while self.fds:
            os.close(self.fds.pop())


@asynccontextmanager
async def leased(
    names: Iterable[str], waits: Waits, *, root: Path | None = None
) -> AsyncIterator[Sequence[int]]:
    """Lease the GPUs `names` for the body. Yields the descriptors of the locks."""
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


DRIVER = Path("/proc/driver/nvidia/gpus")
LISTING_LIMIT_S = 10.0  # without persistence mode, nvidia-smi loads the driver first

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine. `parts` are the UUIDs of its MIG devices, if MIG is on."""

    index: int
    uuid: str
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """CUDA uses only the first MIG device of a GPU (NVIDIA MIG User Guide)."""
        return self.parts[0] if self.parts else str(self.index)


def device_names(gpus: Iterable[int], visible: str | None, known: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """Machine-wide names of the child's device indices: its index i is entry i of CUDA_VISIBLE_DEVICES.

    An index beyond the entries, and an entry that is not in `known`, name themselves. The workload then
    fails, which is a result. Raises ProblemError for a negative index.
    """
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    wanted = sorted(set(gpus))
    if wanted and wanted[0] < 0:
        raise ProblemError("not the index of a GPU", value=wanted[0], allowed="0 and above")
    asked = {entries[i] if i < len(entries) else str(i) for i in wanted}
    return tuple(sorted({canonical_name(entry, known) for entry in asked}))


def canonical_name(entry: str, known: Sequence[Gpu]) -> str:
    """The name of the GPU that an entry of CUDA_VISIBLE_DEVICES selects, or the entry if it is ambiguous.

    Indices follow the PCI bus order of `nvidia-smi`. CUDA's default order can differ on a machine with
    different GPU models unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    wanted = entry.lower()
    parts = [part for gpu in known for part in gpu.parts if part.lower().startswith(wanted)]
    if wanted.startswith("mig-") and len(parts) == 1:
        return parts[0]
    by_uuid = wanted.startswith("gpu-")
    found = [
        gpu for gpu in known if entry == str(gpu.index) or (by_uuid and gpu.uuid.lower().startswith(wanted))
    ]
    return found[0].name if len(found) == 1 else entry


@lru_cache(maxsize=1)
def known_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, listed once and without CUDA; empty if they cannot be listed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return read_driver(DRIVER)
    asked = [tool, "-L"]
    try:
        done = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LISTING_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return read_driver(DRIVER)
    return read_listing(done.stdout) or read_driver(DRIVER)


def read_listing(text: str) -> tuple[Gpu, ...]:
    """Parse `nvidia-smi -L`: a line for each GPU, followed by one for each of its MIG devices."""
    found: list[Gpu] = []
    for line in text.splitlines():
        gpu, part = _GPU.match(line), _PART.match(line)
        if gpu:
            found.append(Gpu(int(gpu[1]), gpu[2]))
        elif part and found:
            last = found.pop()
            found.append(Gpu(last.index, last.uuid, (*last.parts, part[1])))
    return tuple(found)


def read_driver(directory: Path) -> tuple[Gpu, ...]:
    """Read /proc/driver/nvidia/gpus, one directory per GPU in bus order. MIG devices are not listed."""
    texts = [path.read_text("utf-8", "replace") for path in sorted(directory.glob("*/information"))]
    found = [uuid[1] if (uuid := _UUID.search(text)) else "" for text in texts]
    return tuple(Gpu(index, uuid) for index, uuid in enumerate(found))
