"""A process that died or hangs, from outside: its threads, its mapped files and its memory (x86-64)."""

from __future__ import annotations

import os
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.recorder.stack import Mapping, read_maps

LARGEST_READ = 1 << 20  # bytes of memory at a time
NEXT = "gcore PID for a core file of a process that runs; `ulimit -c unlimited` before it starts"
_GONE = (FileNotFoundError, ProcessLookupError)
WAITS = {
    "0": "reads a file or a pipe",
    "7": "waits for a descriptor",
    "23": "waits for a descriptor",
    "35": "sleeps",
    "61": "waits for a child",
    "202": "waits for another thread",
    "230": "sleeps",
    "232": "waits for a descriptor",
    "281": "waits for a descriptor",
}
"""What a thread does in a system call, by its number (x86-64, asm/unistd_64.h)."""


@dataclass(frozen=True)
class ThreadState:
    """Where a thread is. `signal` is what ended the process, 0 without; `frame` is register rbp, if known."""

    number: int
    pc: int
    sp: int
    frame: int | None = None
    signal: int = 0
    waits: str = ""


@dataclass(frozen=True)
class Remains:
    """The threads, the one that got the signal first. `read` gives fewer bytes where memory is not there.

    `running` are threads of a live process that are in no system call: where they are is not known.
    `is_cut`: the core file ends before its last page.
    """

    threads: tuple[ThreadState, ...]
    maps: tuple[Mapping, ...]
    read: Callable[[int, int], bytes]
    running: tuple[int, ...] = ()
    is_cut: bool = False

    def mapping(self, address: int) -> Mapping | None:
        number = bisect_right(self._starts, address) - 1
        found = self._sorted[number] if number >= 0 else None
        return found if found is not None and address < found.end else None

    @cached_property
    def _sorted(self) -> list[Mapping]:
        return sorted(self.maps, key=lambda each: each.start)

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self._sorted]


@contextmanager
def open_process(pid: int) -> Iterator[Remains]:
    """A process that runs, which goes on. Raises `ProblemError` where it may not be looked at, or ends."""
    root = Path("/proc", str(pid))
    memory = _memory(root, pid)
    try:
        yield _living(root, pid, memory)
        with suppress(*_GONE):
            if not _has_ended(root):
                return
        raise _ended(pid, "the process ended while it was looked at")
    finally:
        os.close(memory)


def _memory(root: Path, pid: int) -> int:
    try:
        if _has_ended(root):
            raise _ended(pid, "the process has ended, and its parent has not waited for it")
        return os.open(root / "mem", os.O_RDONLY)
    except _GONE as error:
        raise ProblemError("there is no such process", value=str(pid), next_call=NEXT) from error
    except OSError as error:
        raise _refused(pid) from error


def _living(root: Path, pid: int, memory: int) -> Remains:
    try:
        maps = read_maps((root / "maps").read_text(errors="replace"))
        tasks = sorted((root / "task").iterdir(), key=lambda each: int(each.name))
        states = [_state(task) for task in tasks]
    except PermissionError as error:
        raise _refused(pid) from error
    except _GONE as error:
        raise _ended(pid, "the process ended while it was looked at") from error
    known = tuple(each for each in states if isinstance(each, ThreadState))
    running = tuple(each for each in states if isinstance(each, int))
    return Remains(known, maps, lambda at, count: _mapped(memory, at, count), running)


def _has_ended(root: Path) -> bool:
    """Also of a process that is only an entry for its parent (Z, X: proc(5))."""
    state = (root / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return not state or state[0] in "ZX"


def _ended(pid: int, what: str) -> ProblemError:
    return ProblemError(what, value=str(pid), allowed="a process that runs", next_call=NEXT)


def _refused(pid: int) -> ProblemError:
    return ProblemError(
        "this process may not be looked at",
        value=str(pid),
        allowed="one of the same user, with kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE (docker: --cap-add)",
        next_call="post-mortem as the user of the process, or with a core file of it",
    )


def _state(task: Path) -> ThreadState | int | None:
    """From `202 0x7f.. 0x80 ... SP PC`; the number of a thread that runs, whose place nobody says.

    None of a thread that has ended.
    """
    try:
        words = (task / "syscall").read_text().split()
    except _GONE:
        return None
    number = int(task.name)
    if len(words) < 3:
        return number
    pc, sp = int(words[-1], 16), int(words[-2], 16)
    return ThreadState(number, pc, sp, waits=WAITS.get(words[0], "")) if pc else None


def _mapped(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, min(count, LARGEST_READ), address)
    except (OSError, OverflowError):
        return b""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else ""
