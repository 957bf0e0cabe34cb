"""One job at a time on a GPU: leases by file locks, and one name for each GPU.

One job at a time on a GPU: leases by file locks, so that they end with the process that holds them.

Advisory, and between the servers of one user on one machine. A job that names no GPU takes no lease.
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


DRIVER = Path("/proc/driver/nvidia/gpus")
LISTING_LIMIT_S = 10.0  # the driver is loaded anew for it where nothing keeps it loaded

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine; `parts` are the UUIDs of its MIG devices, if it is divided."""

    index: int
    uuid: str
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """CUDA sees only the first part of a divided GPU (NVIDIA MIG User Guide)."""
        return self.parts[0] if self.parts else str(self.index)


def device_names(gpus: Iterable[int], visible: str | None, known: Sequence[Gpu] = ()) -> tuple[str, ...]:
    """What the child's device indices are called outside: its index i is entry i of CUDA_VISIBLE_DEVICES.

    An index beyond the entries keeps its own name: the workload will fail, which is a result. An entry that
    `known` does not have keeps its own, too. Raises ProblemError for a negative index.
    """
    entries = [entry.strip() for entry in (visible or "").split(",") if entry.strip()]
    wanted = sorted(set(gpus))
    if wanted and wanted[0] < 0:
        raise ProblemError("not the index of a GPU", value=wanted[0], allowed="0 and above")
    asked = {entries[i] if i < len(entries) else str(i) for i in wanted}
    return tuple(sorted({one_name(entry, known) for entry in asked}))


def one_name(entry: str, known: Sequence[Gpu]) -> str:
    """The name of what an entry of CUDA_VISIBLE_DEVICES means; the entry itself where that is not known.

    Indices are taken in the order of the bus, as `nvidia-smi` has them. CUDA's own order differs on a machine
    with unlike GPUs unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    wanted = entry.lower()
    parts = [part for gpu in known for part in gpu.parts if part.lower().startswith(wanted)]
    if wanted.startswith("mig-") and len(parts) == 1:
        return parts[0]
    found = [gpu for gpu in known if entry == str(gpu.index) or _begins(gpu.uuid, wanted)]
    return found[0].name if len(found) == 1 else entry


def _begins(uuid: str, wanted: str) -> bool:
    return wanted.startswith("gpu-") and uuid.lower().startswith(wanted)


@lru_cache(maxsize=1)
def known_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, without CUDA; looked at once. Empty where nobody lists them."""
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
    """What `nvidia-smi -L` prints: a line for each GPU, below it one for each of its MIG devices."""
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
    """The driver's own files: a directory for each GPU, named after its place on the bus. No MIG devices."""
    texts = [path.read_text("utf-8", "replace") for path in sorted(directory.glob("*/information"))]
    found = [uuid[1] if (uuid := _UUID.search(text)) else "" for text in texts]
    return tuple(Gpu(index, uuid) for index, uuid in enumerate(found))
