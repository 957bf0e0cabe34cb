"""Reads a log from a file: of a large one the beginning and the end, of a growing one what is there now.

A workload's log begins with what was run and ends with its failure: of gigabytes the middle is only counted.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.evidence.facts import LogFacts
from mcp_server.evidence.log import read_parts

MIB = 1 << 20
HEAD_BYTES = 64 * MIB
TAIL_BYTES = 128 * MIB
LONGEST_LINE = 1 << 16
CHUNK = 4 * MIB
ALLOWED = "a text file that has an end, such as what a run printed"

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


@dataclass(frozen=True)
class Limits:
    """Bytes that are read of the beginning and of the end."""

    head: int = HEAD_BYTES
    tail: int = TAIL_BYTES


def read_log_file(path: Path, limits: Limits | None = None) -> LogFacts:
    """Read a log file of any size; a line longer than 64 KiB counts as several.

    `truncated` says what was not read. Raises ProblemError for what is no regular file, or a file of the
    kernel, which may have no end.
    """
    limits = limits or Limits()
    with open_log(path) as file:
        size = os.fstat(file.fileno()).st_size
        left_out = size - limits.head - limits.tail
        if left_out <= 0:
            facts = read_parts([(1, _lines(file, 0, size))])
        else:
            facts = read_parts(_ends(file, size, limits))
        grown = os.fstat(file.fileno()).st_size - size
    notes = [facts.truncated] if facts.truncated else []
    if left_out > 0:
        notes.append(
            f"of {size} bytes the first {limits.head} and the last {limits.tail} were read, "
            f"the {left_out} between them not"
        )
    if grown > 0:
        notes.append("the file grew while it was read: what came later was not read")
    return replace(facts, truncated="; ".join(notes))


def open_log(path: Path) -> io.BufferedReader:
    """The file, open to be read; it never waits for a writer. Raises ProblemError for what is no log."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise ProblemError(
            f"cannot read the log: {error.strerror}", value=str(path), allowed=ALLOWED
        ) from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
        raise ProblemError(f"the log is {what}, not a file", value=str(path), allowed=ALLOWED)
    if found.st_dev in _kernel_devices():
        os.close(fd)
        raise ProblemError("the log is a file of the kernel", value=str(path), allowed=ALLOWED)
    return os.fdopen(fd, "rb")


def _kernel_devices() -> set[int]:
    """The file systems whose files are made while they are read: size and end say nothing."""
    return {place.stat().st_dev for place in (Path("/proc"), Path("/sys")) if place.exists()}


def _ends(file: io.BufferedReader, size: int, limits: Limits) -> Iterator[tuple[int, Iterator[str]]]:
    """Beginning and end, with the number of the first line of each."""
    yield 1, _lines(file, 0, limits.head)
    tail = _next_line(file, size - limits.tail)
    yield 1 + _count_lines(file, 0, tail), _lines(file, tail, size)


def _next_line(file: io.BufferedReader, place: int) -> int:
    """Where the next line begins behind `place`; `place` itself within a line of more than 64 KiB."""
    file.seek(place)
    found = file.read(LONGEST_LINE).find(b"\n")
    return place + found + 1


def _count_lines(file: io.BufferedReader, begin: int, end: int) -> int:
    file.seek(begin)
    count = 0
    while begin < end and (chunk := file.read(min(CHUNK, end - begin))):
        begin += len(chunk)
        count += chunk.count(b"\n")
        if b"\r" in chunk:  # ends a line, too, when no newline follows it
            count += chunk.count(b"\r") - chunk.count(b"\r\n")
    return count


class _Part(io.RawIOBase):
    """The bytes of `file` from `begin` to `end`."""

    def __init__(self, file: io.BufferedReader, begin: int, end: int) -> None:
        super().__init__()
        self._file = file
        self._left = end - begin
        file.seek(begin)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._file.read(min(len(buffer), self._left))
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)


def _lines(file: io.BufferedReader, begin: int, end: int) -> Iterator[str]:
    text = io.TextIOWrapper(io.BufferedReader(_Part(file, begin, end), MIB), "utf-8", "replace")
    yield from iter(lambda: text.readline(LONGEST_LINE), "")
