"""Standard streams that are closed, full, or read by nobody, and what the server writes to stderr."""

from __future__ import annotations

import io
import logging
import os
import select
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import innermost
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import cause

PIECE = 4096
"""Bytes of one write: a pipe that is ready takes as many without waiting (PIPE_BUF of Linux)."""

Writer = Callable[[bytes], int]
"""Writes some of the bytes and says how many; OSError when it cannot."""

DESCRIPTORS = Path("/proc/self/fd")


class LossyStream(io.TextIOBase):
    """Text for a log: what cannot be written is dropped, and counted in the first line that gets through."""

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
            written = self._written(data)
            lost = len(data) - written
            self._dropped = lost if written else self._dropped + len(data) - len(gap)
        return len(text)

    def _written(self, data: bytes) -> int:
        """How many bytes got through."""
        done = 0
        with suppress(OSError):
            while done < len(data) and (some := self._write(data[done : done + PIECE])):
                done += some
        return done


def open_missing() -> None:
    """Put the null device where a standard stream is closed, before another file gets its number.

    Raises ProblemError for a closed standard output: nobody would see the result.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    if sys.stderr is None:
        sys.stderr = LossyStream(2, _plain_writer(2))
    if sys.stdout is None:
        sys.stdout = LossyStream(1, _plain_writer(1))
        raise ProblemError(
            "standard output is closed: nobody would see the result", allowed="> /dev/null, to see none"
        )


def let_errors_be_lost() -> None:
    """Standard error takes what it can, and a full disk or a closed terminal behind it is no failure."""
    sys.stderr = LossyStream(2, _plain_writer(2))


def never_wait_for_errors() -> None:
    """As `let_errors_be_lost`, and a reader who does not read holds nobody up: a server must go on."""
    sys.stderr = LossyStream(2, _writer_that_never_waits(2))


def drop_output() -> None:
    """Send the rest of standard output nowhere, so that the interpreter's last flush cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def flush_output() -> None:
    """Raise ProblemError when standard output does not take what was printed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output()
        raise ProblemError(f"the result cannot be written to standard output: {cause(error)}") from None


def _plain_writer(fd: int) -> Writer:
    return lambda data: os.write(fd, data)


def _writer_that_never_waits(fd: int) -> Writer:
    """By what is behind the descriptor. Its own flags stay: a shell may share the open file with us."""
    kind = os.fstat(fd).st_mode
    if stat.S_ISSOCK(kind):
        behind = socket.socket(fileno=os.dup(fd))
        return lambda data: behind.send(data, socket.MSG_DONTWAIT)
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with suppress(OSError):  # what another user made cannot be opened anew
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            anew = os.open(DESCRIPTORS / str(fd), flags)
            return lambda data: os.write(anew, data)
        return lambda data: os.write(fd, data) if _has_room(fd) else 0
    return _plain_writer(fd)


def _has_room(fd: int) -> bool:
    asked = select.poll()
    asked.register(fd, select.POLLOUT)
    return bool(asked.poll(0))


LONGEST_MESSAGE = 2_000  # characters
FRAMES = 4
"""Frames of an exception that are named, the innermost."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class BriefFormatter(logging.Formatter):
    """One line per event and one per frame: a client that keeps the log of every server has room for it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return clean(super().formatMessage(record)).replace("\n", " ")[:LONGEST_MESSAGE]

    def formatException(self, ei: ExceptionInfo) -> str:
        kind, error, trace = ei
        if kind is None or error is None:
            return ""
        error = innermost(error)
        frames = traceback.extract_tb(error.__traceback__ or trace)[-FRAMES:]
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        said = clean(str(error)).replace("\n", " ")[:LONGEST_MESSAGE]
        return "\n".join([f"  {type(error).__name__}: {said}", *places])


def log_briefly() -> None:
    """Set up standard error and the root logger; before the SDK, which would print boxed tracebacks."""
    never_wait_for_errors()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BriefFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
