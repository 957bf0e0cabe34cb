"""Stores the output of a child: `stdout.log`, `stderr.log` and, in order of arrival, `output.log`.

Memory and disk are bounded. Each file keeps its beginning and its end, with a line at the gap that says how
much is missing. The files contain raw bytes; readers clean them with `clean`.
"""

from __future__ import annotations

import os
import re
import tty
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import anyio

from mcp_server.jobs.private import cause, storing

LINE_LIMIT = 2_000  # characters

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
    """Drop terminal escapes, control characters, and characters that hide or reorder text."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", text)


class LineReader:
    """Splits a stream of bytes into cleaned lines of at most LINE_LIMIT characters, in bounded memory.

    Longer lines are cut. A carriage return ends a line, since progress bars use it.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._open = b""

    def feed(self, data: bytes) -> None:
        *whole, rest = data.replace(b"\r", b"\n").split(b"\n")
        if not whole:
            self._open = (self._open + rest)[: LINE_LIMIT * 4]
            return
        whole[0] = self._open + whole[0]
        self._open = rest[: LINE_LIMIT * 4]
        for line in whole:
            self._emit(line)

    def finish(self) -> None:
        """Emit a last line without a newline."""
        line, self._open = self._open, b""
        self._emit(line)

    def _emit(self, line: bytes) -> None:
        text = clean(line[: LINE_LIMIT * 4].decode("utf-8", "replace")).rstrip()
        if text:
            self._on_line(text[:LINE_LIMIT])


MIB = 1 << 20
READ_BYTES = 1 << 18
OPEN_LINE_BYTES = 1 << 16


@dataclass(frozen=True)
class Caps:
    """Bytes to keep at the beginning and at the end of each file."""

    head: int = 16 * MIB
    tail: int = 48 * MIB


class BoundedFile:
    """A file that keeps its first `head` and its last `tail` bytes.

    During writing the tail is a ring buffer after the head, so that the file never exceeds both. `close`
    unrolls it and writes the line at the gap. After a failed write (a full disk) the rest is only counted and
    `error` is set: how the child ends matters more than its last output.
    """

    def __init__(self, path: Path, caps: Caps) -> None:
        self.path = path
        self._caps = caps
        self._file = path.open("w+b", buffering=0)
        self._total = 0
        self._refused = 0
        self.error = ""

    @property
    def dropped(self) -> int:
        """Bytes lost in the gap so far."""
        return max(0, self._total - self._caps.head - self._caps.tail)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.error:
            view = view[self._write_some(view) :]
        self._refused += len(view)

    def _write_some(self, view: memoryview) -> int:
        offset, room = self._next_span()
        try:
            written = os.pwrite(self._file.fileno(), view[:room], offset)
        except OSError as error:
            self.error = cause(error)
            return 0
        self._total += written
        return written

    def _next_span(self) -> tuple[int, int]:
        """Offset of the next byte in the file, and how many bytes fit there contiguously."""
        head, tail = self._caps.head, self._caps.tail
        if self._total < head:
            return self._total, head - self._total
        inside = (self._total - head) % tail
        return head + inside, tail - inside

    def close(self) -> int:
        """Unroll the ring buffer. Returns the number of bytes left out."""
        with self._file:
            try:
                joined = self._join() if self.dropped else 0
            except OSError as error:
                self.error = cause(error)
                joined = self.dropped
        return joined + self._refused

    def _join(self) -> int:
        head, tail = self._caps.head, self._caps.tail
        fd = self._file.fileno()
        ring = os.pread(fd, tail, head)
        start = (self._total - head) % tail
        ordered = ring[start:] + ring[:start]
        first_line = ordered.find(b"\n") + 1
        left_out = self.dropped + first_line
        gap = f"\n[{left_out} bytes left out here]\n".encode()
        os.pwrite(fd, gap, head)
        os.pwrite(fd, ordered[first_line:], head + len(gap))
        self._file.truncate(head + len(gap) + tail - first_line)
        return left_out


class InOrder:
    """Interleaves two streams by whole lines."""

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
        if not data:
            return
        if not self._at_line_start:
            self._target.write(b"\n")
        self._target.write(data)
        self._at_line_start = data.endswith(b"\n")


class Capture:
    """The read ends of a child's output, and the files that it goes to.

    `stdout` and `stderr` are the descriptors for the child. Call `started` once the child has them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        terminal: bool = False,
        on_line: Callable[[str], None] | None = None,
        caps: Caps | None = None,
    ) -> None:
        caps = caps or Caps()
        self.paths = {name: directory / f"{name}.log" for name in ("stdout", "stderr", "output")}
        with storing(directory):
            self._files = {name: BoundedFile(path, caps) for name, path in self.paths.items()}
        self._joined = InOrder(self._files["output"])
        self._lines = {name: LineReader(on_line) for name in ("stdout", "stderr")} if on_line else {}
        out, self.stdout = raw_terminal() if terminal else os.pipe()
        err, self.stderr = os.pipe()
        self._sources = {"stdout": out, "stderr": err}
        for fd in self._sources.values():
            os.set_blocking(fd, False)
        self.dropped = 0
        self.note = ""
        self._scope = anyio.CancelScope(shield=True)

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.started()
        for fd in self._sources.values():
            os.close(fd)
        self._finish()

    def started(self) -> None:
        """Close our copies of the child's write ends; without that, reading never reaches end of file."""
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
        while True:
            await anyio.wait_readable(fd)
            data = read_some(fd)
            if data == b"":
                return
            if data:
                self._keep(name, data)

    def _keep(self, name: str, data: bytes) -> None:
        self._files[name].write(data)
        self._joined.feed(name, data)
        if name in self._lines:
            self._lines[name].feed(data)

    def _finish(self) -> None:
        self._joined.finish()
        for reader in self._lines.values():
            reader.finish()
        left_out = {name: file.close() for name, file in self._files.items()}
        self.dropped = left_out["output"]
        error = next((file.error for file in self._files.values() if file.error), "")
        self.note = f"the output is incomplete: {error}" if error else ""


def read_some(fd: int) -> bytes | None:
    """The available bytes; b'' at end of file, None if there are none."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""  # a terminal returns EIO after its last writer closed it


def raw_terminal() -> tuple[int, int]:
    """A pseudo-terminal that changes no bytes. It makes C programs flush each line."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    return ours, theirs
