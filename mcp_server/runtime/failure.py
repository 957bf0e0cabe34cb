"""Reads the logs of users and of children, and the failure that a child's output shows.

A large log is read in a separate process: the event loop goes on, and the server can exit. Cancelling
the read kills that process.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio.to_process
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Ending, Finished
from mcp_server.logs.facts import LogFacts
from mcp_server.logs.log import open_log, read_log, read_log_file
from mcp_server.model import Category, Record

SMALL_BYTES = 1 << 20
"""Read within a tenth of a second, which is less than a process needs to start."""
KEPT = 16  # logs whose facts are cached

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Source = TypeVar("Source")
_Key = tuple[str, int, int]  # path, bytes, time of the last change in ns
_known: OrderedDict[_Key, LogFacts] = OrderedDict()


async def read_users_log(path: Path) -> LogFacts:
    """Facts of a user's log file. Raises ProblemError if it cannot be read or is no log."""

    def size() -> int:
        with open_log(path) as file:
            return os.fstat(file.fileno()).st_size

    bytes_ = await anyio.to_thread.run_sync(size, abandon_on_cancel=True)
    return await _read_apart(read_log_file, path, bytes_)


async def read_text(text: str) -> LogFacts:
    """Facts of a text, with the line numbers that the same text has in a file."""
    return await _read_apart(read_log, io.StringIO(text, newline=None).readlines(), len(text))


async def look_ahead(path: Path) -> None:
    """Cache the facts of a large output, so that `read_output` does not block on it."""
    key = _key(path)
    if key is None or key[1] <= SMALL_BYTES or key in _known:
        return
    _known[key] = await _read_apart(_read_output, path, key[1])
    if len(_known) > KEPT:
        _known.popitem(last=False)


def read_output(path: Path, process: str = "") -> LogFacts:
    """Facts of an output file, or of one process in it; empty if there is no file."""
    key = None if process else _key(path)
    found = _known.get(key) if key else None
    return found or _read_output(path, process)


async def _read_apart(read: Callable[[Source], LogFacts], source: Source, size: int) -> LogFacts:
    """`read(source)` in a thread, or in a process if it is large."""
    if size <= SMALL_BYTES:
        return await anyio.to_thread.run_sync(read, source, abandon_on_cancel=True)
    try:
        return await anyio.to_process.run_sync(_in_child, os.getpid(), read, source, cancellable=True)
    except anyio.BrokenWorkerProcess as error:
        raise ProblemError("the process that read the log was killed", value=str(source)[:200]) from error


def _in_child(parent: int, read: Callable[[Source], LogFacts], source: Source) -> LogFacts:
    """Runs in the child, which must not outlive a killed server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    return read(source)


def _key(path: Path) -> _Key | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns


def _read_output(path: Path, process: str = "") -> LogFacts:
    if not path.exists():
        return read_log((), process)
    with path.open(encoding="utf-8", errors="replace") as file:
        return read_log(file, process)


class Failure(Record):
    """A child that did not end well. `family` and `text` are empty when no known error was in its output.

    `line` counts from 1 in `log`, the child's stdout and stderr together.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    family: str = ""
    meaning: str = ""
    candidates: list[Category] = Field(default_factory=list)
    text: str = ""
    line: int = 0
    guide: str = ""
    log: Path


def read_failure(finished: Finished) -> Failure | None:
    """The failure of a child, with the root error of its whole output; None when it succeeded."""
    if finished.ok:
        return None
    facts = read_output(finished.output)
    root = facts.root
    line, text = (facts.best_lines[-1:] or facts.tail[-1:] or [(0, "")])[0]
    return Failure(
        ending=finished.ending,
        returncode=finished.returncode,
        signal=finished.signal,
        family=root.family.id if root else "",
        meaning=root.family.meaning if root else "",
        candidates=list(root.candidates) if root else [],
        text=root.text if root else text,
        line=root.line if root else line,
        guide=root.family.guide if root else "",
        log=finished.output,
    )
