"""The GPU lease, requested just before this process uses the GPU.

The server listens on a socket in the abstract namespace (`jobs/gpus.py`). Processes of the same
child share one lease and never wait for each other.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import threading
import time
import zipfile
from typing import Optional

VARIABLE = "AOTI_DEBUG_LEASE"
STACKS_AFTER = "AOTI_DEBUG_STACKS_AFTER"
GRANTED = b"1"
ORPHAN_S = 5.0  # the server has died; a supervisor ends this process meanwhile
FIRST_LOOK_S = 0.1  # long enough for the answer if the GPU is free


class _Lease:
    """The connection is the lease. A forked child has a copy of it, and so has the lease with its parent."""

    lock = threading.Lock()
    connection: Optional[socket.socket] = None


_lease = _Lease()
# A thread of the parent may have locked it.
os.register_at_fork(after_in_child=lambda: setattr(_lease, "lock", threading.Lock()))


def take() -> None:
    """Wait for the GPU lease. Returns at once if this process has it, or if there is no lease server."""
    if _lease.connection is not None or VARIABLE not in os.environ:
        return
    with _lease.lock:
        if _lease.connection is None:
            _lease.connection = _connect(os.environ[VARIABLE])


def leave() -> None:
    """Let others use the GPU until the next `take`."""
    with _lease.lock:
        if _lease.connection is not None:
            _lease.connection.close()
        _lease.connection = None


def _connect(name: str) -> Optional[socket.socket]:
    """Connect and wait for the lease; None if it was refused or the server cannot be reached."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect("\0" + name)
        connection.settimeout(FIRST_LOOK_S)
        try:
            granted = connection.recv(1)
        except socket.timeout:
            connection.settimeout(None)
            granted = _later(connection)
        if granted == GRANTED:
            return connection
        if not granted:
            time.sleep(ORPHAN_S)
    except OSError:
        pass
    connection.close()
    return None


def _later(connection: socket.socket) -> bytes:
    """The answer. The time limit stands still until then, so the late stack dump is postponed."""
    after = float(os.environ.get(STACKS_AFTER) or 0)
    if not after:
        return connection.recv(1)
    with open("/proc/self/stat", "rb") as file:
        started_ticks = int(file.read().rpartition(b")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    faulthandler.cancel_dump_traceback_later()
    granted = connection.recv(1)
    faulthandler.dump_traceback_later(max(1.0, after - age_s), exit=False)
    return granted


def for_cuda(package: str) -> bool:
    """Whether a file is a package for CUDA; true where it does not say."""
    try:
        with zipfile.ZipFile(package) as archive:
            names = [name for name in archive.namelist() if name.endswith("_metadata.json")]
            texts = [archive.read(name) for name in names]
    except (OSError, zipfile.BadZipFile, RuntimeError):
        return True
    return not texts or any(b'"cuda"' in text for text in texts)
