"""Handles standard streams that are closed, full or unread, and formats the server's log on stderr."""

import io
import logging
import os
import resource
import select
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import innermost
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import cause

PIECE = 4096
"""The bytes of one write: a pipe that is ready takes this many without waiting (PIPE_BUF of Linux)."""

Writer = Callable[[bytes], int]
"""Writes some of the bytes and returns how many; raises OSError if it cannot."""

DESCRIPTORS = Path("/proc/self/fd")
FEWEST_DESCRIPTORS = 64  # for pipes of a few children, files of a job, and imports of Python


class LossyStream(io.TextIOBase):
    """A log stream that drops what cannot be written; the next write that succeeds says how much was dropped.

    A full disk or closed terminal behind standard error is not a failure.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int, write: Writer) -> None:
        super().__init__()
        self._fd = fd
        self._write = write
        self._lock = threading.RLock()
        self._dropped = 0

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            gap = f"\n[{self._dropped} bytes were dropped here: nobody read them]\n" if self._dropped else ""
            data = (gap + text).encode("utf-8", "backslashreplace")
            written = 0
            with suppress(OSError):
                while written < len(data) and (some := self._write(data[written : written + PIECE])):
                    written += some
            lost = len(data) - written
            self._dropped = lost if written else self._dropped + len(data) - len(gap)
        return len(text)


def check_descriptors() -> None:
    """Raise ProblemError if the limit on open files leaves no room for a job and its children."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FEWEST_DESCRIPTORS:
        raise ProblemError(
            "too few open files are allowed to this process",
            value=f"{soft} (ulimit -n)",
            allowed=f"at least {FEWEST_DESCRIPTORS}",
            next_call=f"ulimit -n {FEWEST_DESCRIPTORS * 4}",
        )


def open_missing() -> None:
    """Open the null device for each closed standard stream, before another file gets its number.

    Raise ProblemError if standard output is closed, so nobody would see the result.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: `fd`
    sys.stderr = LossyStream(2, partial(os.write, 2))
    if sys.stdout is None:
        sys.stdout = LossyStream(1, partial(os.write, 1))
        raise ProblemError(
            "standard output is closed, so nobody would see the result", allowed="> /dev/null, to see none"
        )


@contextmanager
def printing() -> Iterator[None]:
    """Raise ProblemError if what the body prints cannot be written, as on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        # Discard the rest, so that the interpreter's last flush cannot fail.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
        raise ProblemError(f"the result cannot be written to standard output: {cause(error)}") from None


def _writer_that_never_waits(fd: int) -> Writer:
    """A writer that never blocks. `fd` keeps its flags, because a shell may share the open file."""
    kind = os.fstat(fd).st_mode
    if stat.S_ISSOCK(kind):
        behind = socket.socket(fileno=os.dup(fd))
        return lambda data: behind.send(data, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with suppress(OSError):  # a file created by another user cannot be reopened
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return partial(os.write, os.open(DESCRIPTORS / str(fd), flags))
        room = select.poll()
        room.register(fd, select.POLLOUT)
        return lambda data: os.write(fd, data) if room.poll(0) else 0
    return partial(os.write, fd)


LONGEST_MESSAGE = 2_000  # characters
FRAMES = 4  # innermost frames of an exception that are printed

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class BriefFormatter(logging.Formatter):
    """Formats an event as one line, plus one per frame: clients may keep the logs of all their servers."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return clean(super().formatMessage(record)).replace("\n", " ")[:LONGEST_MESSAGE]

    def formatException(self, ei: ExceptionInfo) -> str:
        if ei[1] is None:
            return ""
        error = innermost(ei[1])
        frames = traceback.extract_tb(error.__traceback__ or ei[2])[-FRAMES:]
        text = clean(str(error)).replace("\n", " ")[:LONGEST_MESSAGE]
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        return "\n".join([f"  {type(error).__name__}: {text}", *places])


def log_briefly() -> None:
    """Set up standard error and the root logger before the SDK does, which would print boxed tracebacks.

    If the client does not read standard error, text is dropped: writing must not block the server.
    """
    sys.stderr = LossyStream(2, _writer_that_never_waits(2))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BriefFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
