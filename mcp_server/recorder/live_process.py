"""Examines a live process: its mapped files, its memory, and where its threads are.

A thread that waits in a system call is read without stopping it. The position of a thread that computes is
unknown, so it is stopped briefly (ptrace), and its registers and stack are copied. The same is done for a
thread that waits for a lock, because only its registers say where a frame of unoptimised code begins. The
wait for a lock, unlike some system calls, continues after a stop.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.recorder.core_file import RBP, REGISTERS, RIP, RSP
from mcp_server.recorder.remains import FUTEX, LARGEST_READ, NEXT, WAITS, Remains, ThreadState, read_maps

_GONE = (FileNotFoundError, ProcessLookupError)
Read = Callable[[int, int], bytes]

# Requests of ptrace, its event for a requested stop, and __WALL of wait4 (linux/ptrace.h, wait.h).
_GETREGS, _DETACH, _SEIZE, _INTERRUPT = 12, 17, 0x4206, 0x4207
_EVENT_STOP, _ALL = 128, 0x40000000
_STOP_S = 0.2  # limit for stopping a thread: one in an uninterruptible wait does not stop
STACK = 1 << 16  # bytes copied from the stack of a thread that computes
MOST_STOPPED = 256


@contextmanager
def open_process(pid: int) -> Iterator[Remains]:
    """Open a live process, which continues to run. Raise `ProblemError` if access is denied or it ends."""
    root = Path("/proc", str(pid))
    memory = _memory(root, pid)
    try:
        yield _living(root, pid, memory)
        with suppress(*_GONE):
            if not _has_ended(root):
                return
        raise _ended(pid, "the process ended during the inspection")
    finally:
        os.close(memory)


def _memory(root: Path, pid: int) -> int:
    try:
        if _has_ended(root):
            raise _ended(pid, "the process has ended, and its parent has not waited for it")
        return os.open(root / "mem", os.O_RDONLY)
    except _GONE as error:
        raise ProblemError("there is no such process", value=str(pid), next_call="ps -e") from error
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
        raise _ended(pid, "the process ended during the inspection") from error
    known = tuple(each for each in states if isinstance(each, ThreadState))
    running = tuple(each for each in states if isinstance(each, int))

    def read(address: int, count: int) -> bytes:
        return _mapped(memory, address, count)

    waiting = {each.number: each for each in known if each.lock}
    seen = _positions([*running, *waiting][:MOST_STOPPED], read)
    caught = [each for each in seen if each.state.number not in waiting]
    stopped = {each.state.number for each in caught}
    there = {(each.state.number, each.state.pc, each.state.sp): each.state.frame for each in seen}
    return Remains(
        (
            *(replace(each, frame=there.get((each.number, each.pc, each.sp))) for each in known),
            *(each.state for each in caught),
        ),
        maps,
        lambda at, count: _copied(caught, at, count) or read(at, count),
        tuple(number for number in running if number not in stopped),
    )


@dataclass(frozen=True)
class _Caught:
    """A thread that was found computing, with a copy of the top of its stack at that moment."""

    state: ThreadState
    stack: bytes


def _copied(caught: Sequence[_Caught], address: int, count: int) -> bytes:
    for each in caught:
        at = address - each.state.sp
        if at >= 0 and at + count <= len(each.stack):
            return each.stack[at : at + count]
    return b""


def _positions(threads: Sequence[int], read: Read) -> list[_Caught]:
    """Stop each thread for a moment and copy its position; leave out those that cannot be stopped.

    The work runs in a separate thread: when that ends, the system releases all threads that it still traces.
    """
    found: list[_Caught] = []

    def look() -> None:
        found.extend(filter(None, (_position(thread, read) for thread in threads)))

    if threads:
        looker = threading.Thread(target=look, daemon=True)
        looker.start()
        looker.join()
    return found


def _position(thread: int, read: Read) -> _Caught | None:
    if _ptrace(_SEIZE, thread):
        return None
    signal = 0
    try:
        status = None if _ptrace(_INTERRUPT, thread) else _stopped(thread)
        if status is None:
            return None
        # If a signal has just arrived, the thread must still get it.
        signal = (status >> 8) & 0xFF if status >> 16 != _EVENT_STOP else 0
        raw = ctypes.create_string_buffer(REGISTERS.size)
        if _ptrace(_GETREGS, thread, raw):
            return None
        registers = REGISTERS.unpack(raw.raw)
        state = ThreadState(thread, registers[RIP], registers[RSP], registers[RBP], computes=True)
        return _Caught(state, read(state.sp, STACK))
    finally:
        _ptrace(_DETACH, thread, ctypes.c_void_p(signal))


def _stopped(thread: int) -> int | None:
    """Wait until the thread has stopped, and return its status. None if it does not stop, or has ended."""
    until = time.monotonic() + _STOP_S
    with suppress(ChildProcessError):
        while time.monotonic() < until:
            found, status = os.waitpid(thread, os.WNOHANG | _ALL)
            if found:
                return status if os.WIFSTOPPED(status) else None
            time.sleep(0.0001)
    return None


def _ptrace(request: int, thread: int, data: object = None) -> bool:
    """Make a ptrace request. Return whether it failed."""
    call = ctypes.CDLL(None).ptrace
    call.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    call.restype = ctypes.c_long
    return bool(call(request, thread, None, data) < 0)


def _has_ended(root: Path) -> bool:
    """Whether the process has ended, even if its parent still has an entry for it (Z, X: proc(5))."""
    state = (root / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return not state or state[0] in "ZX"


def _ended(pid: int, what: str) -> ProblemError:
    return ProblemError(what, value=str(pid), allowed="a process that runs", next_call=NEXT)


def _refused(pid: int) -> ProblemError:
    return ProblemError(
        "this user may not inspect the process",
        value=str(pid),
        allowed="one of the same user, with kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE (docker: --cap-add)",
        next_call="post-mortem as the user of the process, or with a core file of it",
    )


def _state(task: Path) -> ThreadState | int | None:
    """Read where a thread waits, from its file `syscall`: `202 0x7f.. 0x80 ... SP PC`.

    A running thread has no known position: return only its number. Return None if the thread has ended.
    """
    try:
        words = (task / "syscall").read_text().split()
    except _GONE:
        return None
    number = int(task.name)
    if len(words) < 3:
        return number
    pc, sp = int(words[-1], 16), int(words[-2], 16)
    lock = int(words[1], 16) if words[0] == FUTEX else 0
    forever = bool(lock) and not int(words[4], 16)  # no struct timespec
    waits = WAITS.get(words[0], "")
    return ThreadState(number, pc, sp, waits=waits, lock=lock, forever=forever) if pc else None


def _mapped(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, min(count, LARGEST_READ), address)
    except (OSError, OverflowError):
        return b""
