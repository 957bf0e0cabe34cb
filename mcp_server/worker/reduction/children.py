"""Reproductions run in isolated children, several side by side; one that dies or hangs is a normal result."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Sequence

import torch

from .script import SCRIPT

LOG = "output.log"
POLL_S = 0.05
READ = 1 << 20  # bytes of a log that are looked at, from its start and from its end


@dataclass(frozen=True)
class Ended:
    """How a reproduction ended: `status` as of `subprocess` (negative: the signal), None after `kill`."""

    directory: str
    status: Optional[int]
    seconds: float

    @property
    def text(self) -> str:
        return read(os.path.join(self.directory, LOG))

    @property
    def phase(self) -> str:
        """The last phase that it said it began."""
        said = [line for line in self.text.splitlines() if line.startswith("phase: ")]
        return said[-1][len("phase: ") :] if said else ""


def read(path: str) -> str:
    with open(path, "rb") as file:
        start = file.read(READ)
        file.seek(max(file.tell(), os.path.getsize(path) - READ))
        return (start + file.read()).decode("utf-8", "replace")


class Child:
    """One running reproduction, in a process group of its own."""

    def __init__(self, directory: str, fork: bool, limit_s: float) -> None:
        self.directory = directory
        self.start = time.monotonic()
        self.limit_s = limit_s
        self.pid = _fork(directory) if fork else _spawn(directory)

    def poll(self) -> Optional[Ended]:
        """How it ended; None while it runs. Ends it at its time limit."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.start
        if pid:
            self._kill_group()
            return Ended(self.directory, os.waitstatus_to_exitcode(status), seconds)
        if seconds > self.limit_s:
            self.kill()
            return Ended(self.directory, None, seconds)
        return None

    def kill(self) -> None:
        self._kill_group()
        os.waitpid(self.pid, 0)

    def _kill_group(self) -> None:
        """Compilers that it started end with it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _spawn(directory: str) -> int:
    """A new interpreter."""
    log = os.path.join(directory, LOG)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-u", os.path.join(directory, SCRIPT)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600), (os.POSIX_SPAWN_DUP2, 1, 2)],
        setpgroup=0,
    )


def _fork(directory: str) -> int:
    """A copy of this process, which has torch and its compiler imported: saves seconds each time.

    Only where no CUDA context and no thread pool exist yet, neither of which survives a fork.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child may have done it, or have ended already
            os.setpgid(pid, pid)
        return pid
    os._exit(_be_child(directory))


def _be_child(directory: str) -> int:
    """In the child: run the script as Python would; its exit status."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    log = os.open(os.path.join(directory, LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
    faulthandler.enable()
    sys.argv[:] = [SCRIPT]
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        runpy.run_path(os.path.join(directory, SCRIPT), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def side_by_side(
    directories: Sequence[str], start: Callable[[str], Child], count: int
) -> Iterator[tuple[int, Ended]]:
    """Run the scripts, `count` at a time in their order; each with its number as it ends.

    Closing the iterator ends those that still run.
    """
    running: dict[int, Child] = {}
    waiting = list(enumerate(directories))
    try:
        while waiting or running:
            while waiting and len(running) < count:
                number, directory = waiting.pop(0)
                running[number] = start(directory)
            time.sleep(POLL_S)
            polled = [(number, child.poll()) for number, child in running.items()]
            done = [(number, ended) for number, ended in polled if ended is not None]
            for number, _ in done:  # all of them first: the reader may close this after any
                del running[number]
            yield from done
    finally:
        for child in running.values():
            child.kill()
