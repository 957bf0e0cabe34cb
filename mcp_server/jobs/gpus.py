"""GPU leases, so that one job at a time uses a GPU, from the start or on request; names of GPUs.

A lease is a file lock, so it ends with the process that has it. Leases are advisory, and shared by the
servers of one user on one machine. A job that names no GPU needs no lease.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import flock, is_current, open_lock, private_directory, storing

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 0.5


def lease_root() -> Path:
    """A local directory. The state directory may be shared between machines, but GPUs are not."""
    return Path("/tmp") / f"aoti-debug-{os.getuid()}"


@dataclass(frozen=True)
class Waits:
    """Who wants a lease (`holder`, as other jobs see it), and what to call while it waits for one."""

    holder: str
    progress: Callable[[str], None] = lambda _line: None
    blocked: Callable[[], AbstractContextManager[None]] = nullcontext


class Lease:
    """Locks for the GPUs `names`, not locked until `acquire`.

    `fds` exist from the start, so that a supervisor can inherit them. A lock belongs to all copies of a
    descriptor: if this process is killed, the supervisor keeps the lease until it has ended its program.
    """

    def __init__(self, names: Iterable[str], waits: Waits) -> None:
        directory = private_directory(lease_root())
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
        """Lock all GPUs in sorted order, so that two jobs cannot wait for each other."""
        for fd, path, name in zip(self.fds, self._paths, self._names, strict=True):
            if not self._try_lock(fd, path):
                with self._waits.blocked():
                    await self._wait(fd, path, name)
            os.ftruncate(fd, 0)
            os.pwrite(fd, self._waits.holder.encode("utf-8", "replace")[:200], 0)

    async def _wait(self, fd: int, path: Path, name: str) -> None:
        pause, reported = FIRST_WAIT_S, ""
        while not self._try_lock(fd, path):
            holder = ""
            with suppress(OSError):
                holder = path.read_text("utf-8", "replace").strip()
            line = f"waiting for GPU {name}, in use by {holder or 'another job'}"
            if line != reported:
                self._waits.progress(line)
            reported = line
            await anyio.sleep(pause)
            pause = min(LONGEST_WAIT_S, pause * 1.5)

    def _try_lock(self, fd: int, path: Path) -> bool:
        """Try the lock. A lock file that a cleaner of /tmp removed is created again."""
        with storing(path):
            if not is_current(fd, path):
                fresh = open_lock(path)
                os.dup2(fresh, fd, inheritable=False)
                os.close(fresh)
            return flock(fd) and is_current(fd, path)

    def release(self) -> None:
        """Unlock, even if other processes have copies of the descriptors."""
        for fd in self.fds:
            fcntl.flock(fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the descriptors. A supervisor that inherited them keeps the lease until it ends."""
        while self.fds:
            os.close(self.fds.pop())


@asynccontextmanager
async def leased(names: Iterable[str], waits: Waits) -> AsyncIterator[tuple[int, ...]]:
    """Lease the GPUs `names` for the body. Yields the descriptors of the locks."""
    with closing(Lease(names, waits)) as lease:
        await lease.acquire()
        yield tuple(lease.fds)


VARIABLE = "AOTI_DEBUG_LEASE"
GRANTED, REFUSED = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class LeaseServer:
    """Grants a lease to the processes of one child when they request it.

    Importing torch and compiling need no GPU, so other jobs can use it meanwhile. A process requests the
    lease by connecting to the socket `name` (worker/lease.py). It gets one byte when it may go on, and keeps
    the lease as long as the connection is open. The child has the lease while any of its processes has it.
    """

    def __init__(self, lease: Lease, waits: Waits) -> None:
        self.name = f"aoti-debug-{secrets.token_hex(16)}"
        # Shielded: a cancelled child still runs for a moment, and must not do so without its lease.
        self.scope = anyio.CancelScope(shield=True)
        self._lease = lease
        self._waits = waits
        self._turn = anyio.Lock()
        self._holders = 0
        # The abstract namespace (unix(7)) leaves no file behind if this process is killed.
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.setblocking(False)
        self.listener.bind("\0" + self.name)
        self.listener.listen()

    async def answer(self) -> None:
        """Accept connections until `scope` is cancelled."""
        with self.scope:
            async with anyio.create_task_group() as tasks:
                while self.listener.fileno() >= 0:
                    await anyio.wait_readable(self.listener)
                    with suppress(BlockingIOError, ConnectionError):
                        tasks.start_soon(self._serve, self.listener.accept()[0])

    async def _serve(self, process: socket.socket) -> None:
        """Keep the lease until the process closes the connection, at its exit at the latest."""
        with process:
            process.setblocking(False)
            async with self._turn:
                # Sockets of the abstract namespace have no permissions: any user may connect.
                peer = process.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                is_ours = _CREDENTIALS.unpack(peer)[1] == os.getuid()
                if not is_ours or not (self._holders or await self._acquire()):
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
        """False if the lock file cannot be created. The running process continues without a lease."""
        try:
            await self._lease.acquire()
        except ProblemError as problem:
            self._waits.progress(f"no lease of the GPU: {problem}")
            return False
        return True


@asynccontextmanager
async def on_request(
    names: Iterable[str], waits: Waits
) -> AsyncIterator[tuple[tuple[int, ...], dict[str, str]]]:
    """Lease the GPUs to a child on request. Yields descriptors for its supervisor, and variables for it."""
    failure: Exception | None = None
    lease = Lease(names, waits)
    requests = LeaseServer(lease, waits)
    with closing(lease), closing(requests.listener):
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


LISTING_LIMIT_S = 10.0  # without persistence mode, nvidia-smi loads the driver first

_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[0-9a-fA-F-]+)\)")
_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")


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

    An entry is an index or the beginning of a UUID. Indices follow the PCI bus order of `nvidia-smi`. CUDA's
    default order can differ on a machine with different GPU models unless CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    names = {part: part for gpu in known for part in gpu.parts}
    names |= {each: gpu.name for gpu in known for each in (gpu.uuid, str(gpu.index))}
    begins = entry.lower() if entry.lower().startswith(("gpu-", "mig-")) else "no UUID"
    found = [name for each, name in names.items() if each == entry or each.lower().startswith(begins)]
    return found[0] if len(found) == 1 else entry


@lru_cache(maxsize=1)
def known_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, listed once and without CUDA; empty if they cannot be listed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        done = subprocess.run(
            [tool, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LISTING_LIMIT_S
        )
        return read_listing(done.stdout)
    return ()


def read_listing(text: str) -> tuple[Gpu, ...]:
    """Parse `nvidia-smi -L`: a line for each GPU, followed by one for each of its MIG devices."""
    found: list[Gpu] = []
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            found.append(Gpu(int(gpu[1]), gpu[2]))
        elif found and (part := _PART.match(line)):
            found[-1] = replace(found[-1], parts=(*found[-1].parts, part[1]))
    return tuple(found)
