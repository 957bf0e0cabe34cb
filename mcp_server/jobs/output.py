"""Stores the output of a child: `stdout.log`, `stderr.log` and, in order of arrival, `output.log`.

Memory and disk use are bounded. Each file keeps its beginning and its end; a line at the gap says how much is
missing. The files contain raw bytes; readers clean them with `clean`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio

from mcp_server.jobs.store import cause, storing

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, hyperlinks, device strings
    r"|\x1b[ -/]*[0-~]?"
)
_DROPPED = (
    (0x00, 0x08),  # control characters except tab and newline
    (0x0B, 0x1F),
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x61C, 0x61C),  # Arabic letter mark
    (0x200B, 0x200F),  # zero width, direction marks
    (0x2028, 0x202E),  # line separators, bidirectional overrides
    (0x2060, 0x206F),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),  # annotations
    (0xE0000, 0xE007F),  # tags: invisible ASCII
)
_CONTROLS = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _DROPPED) + "]")


def clean(text: str) -> str:
    """Remove terminal escapes, control characters, and characters that hide or reorder text."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)


MIB = 1 << 20
READ_BYTES = 1 << 18
OPEN_LINE_BYTES = 1 << 16
HEAD_BYTES = 16 * MIB  # how much of the beginning of each file is kept
TAIL_BYTES = 48 * MIB


class BoundedFile:
    """A file that keeps its first `head` and its last `tail` bytes.

    While it is written, the tail is a ring buffer after the head, so the file is never larger than both.
    `close` puts the buffer in order and writes the line at the gap. After a failed write (a full disk),
    `error` is set and further bytes are only counted, because how the child ends matters more.
    """

    def __init__(self, path: Path, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head, self._tail = head, tail
        self._file = path.open("w+b", buffering=0)
        self._total = self._refused = 0
        self.error = ""

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.error:
            offset, room = self._total, self._head - self._total
            if room <= 0:
                inside = -room % self._tail
                offset, room = self._head + inside, self._tail - inside
            try:
                written = os.pwrite(self._file.fileno(), view[:room], offset)
            except OSError as error:
                self.error = cause(error)
                break
            self._total += written
            view = view[written:]
        self._refused += len(view)

    def close(self) -> int:
        """Move the tail after the gap line, in order. Return the number of bytes left out."""
        head, tail, fd = self._head, self._tail, self._file.fileno()
        left_out = max(0, self._total - head - tail)
        with self._file:
            if left_out:
                try:
                    ring = os.pread(fd, tail, head)
                    start = (self._total - head) % tail
                    ordered = ring[start:] + ring[:start]
                    first_line = ordered.find(b"\n") + 1  # the tail begins with a whole line
                    left_out += first_line
                    gap = f"\n[{left_out} bytes left out here]\n".encode()
                    os.pwrite(fd, gap, head)
                    os.pwrite(fd, ordered[first_line:], head + len(gap))
                    self._file.truncate(head + len(gap) + tail - first_line)
                except OSError as error:
                    self.error = cause(error)
        return left_out + self._refused


class InOrder:
    """Merges two streams, keeping lines whole."""

    def __init__(self, target: BoundedFile) -> None:
        self._target = target
        self._open: dict[str, bytes] = {}
        self._at_line_start = True

    def feed(self, stream: str, data: bytes) -> None:
        data = self._open.pop(stream, b"") + data
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) > OPEN_LINE_BYTES else 0)
        self._put(data[:end])
        if end < len(data):
            self._open[stream] = data[end:]

    def finish(self) -> None:
        for data in self._open.values():
            self._put(data)
        self._open.clear()

    def _put(self, data: bytes) -> None:
        if data:
            self._target.write(data if self._at_line_start else b"\n" + data)
            self._at_line_start = data.endswith(b"\n")


class Capture:
    """The read ends of a child's output, and its files. Call `started` once the child has the write ends."""

    def __init__(self, directory: Path) -> None:
        self.paths = {name: directory / f"{name}.log" for name in ("stdout", "stderr", "output")}
        with storing(directory):
            self._files = {name: BoundedFile(path) for name, path in self.paths.items()}
        self._joined = InOrder(self._files["output"])
        out, self.stdout = os.pipe()
        err, self.stderr = os.pipe()
        self._sources = {"stdout": out, "stderr": err}
        for fd in self._sources.values():
            os.set_blocking(fd, False)
        self.error = ""
        self._scope = anyio.CancelScope(shield=True)

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.started()
        for fd in self._sources.values():
            os.close(fd)
        self._joined.finish()
        for file in self._files.values():
            file.close()
        self.error = next((file.error for file in self._files.values() if file.error), "")

    def started(self) -> None:
        """Close our copies of the child's write ends; otherwise reading never reaches end of file."""
        for fd in {self.stdout, self.stderr} - {-1}:
            os.close(fd)
        self.stdout = self.stderr = -1

    def end_within(self, seconds: float) -> None:
        """Stop reading after `seconds`, even if a process still has the write end open."""
        self._scope.deadline = min(self._scope.deadline, anyio.current_time() + seconds)

    async def pump(self) -> None:
        """Read until both streams end. Shielded from cancellation, so that no output is lost."""
        with self._scope:
            async with anyio.create_task_group() as tasks:
                for name, fd in self._sources.items():
                    tasks.start_soon(self._read, name, fd)

    async def _read(self, name: str, fd: int) -> None:
        data: bytes | None = None
        while data != b"":
            await anyio.wait_readable(fd)
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                continue
            self._files[name].write(data)
            self._joined.feed(name, data)
