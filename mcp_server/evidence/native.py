"""AddressSanitizer, UndefinedBehaviorSanitizer and native backtraces (gdb, glibc, c10), as typed records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

MAX_FRAMES = 64
MAX_ERRORS = 200

_ERROR = re.compile(r"ERROR: (?P<tool>\w+Sanitizer): (?P<kind>attempting [\w-]+|[\w-]+)(?P<rest>.*)")
_ACCESS = re.compile(r"(?P<direction>READ|WRITE) of size (?P<size>\d+)")
_SIGNAL = re.compile(r"The signal is caused by a (?P<direction>READ|WRITE) memory access")
_REGION = re.compile(
    r"(?P<address>0x[0-9a-f]+) is located (?P<distance>\d+) bytes (?P<side>before|after|to the left of|"
    r"to the right of|inside of?) (?P<size>\d+)-byte region"
)
_ADDRESS = re.compile(r"address (?P<address>0x[0-9a-f]+)")
_UNDEFINED = re.compile(
    r"(?<![^\s:])(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): runtime error: (?P<message>.+)"
)
_FRAMES = (
    re.compile(
        r"^\s*#(?P<depth>\d+)\s+(?P<pc>0x[0-9a-f]+) in (?P<function>.+?) "
        r"\((?P<module>[^()\s]+)\+0x[0-9a-f]+\)"
    ),
    re.compile(
        r"^\s*#(?P<depth>\d+)\s+(?:(?P<pc>0x[0-9a-f]+) in )?(?P<function>[\w:~<>,&* ?]+?) ?\([^/]*\)"
        r"(?: at (?P<file>\S+?):(?P<line>\d+)| from (?P<module>\S+))?\s*$"
    ),
    re.compile(
        r"^\s*#(?P<depth>\d+)\s+(?P<pc>0x[0-9a-f]+) in (?P<function>.+?)"
        r"(?: (?P<file>/\S+?|\S+\.(?:cpp|cc|c|h)):(?P<line>\d+)(?::\d+)?)?$"
    ),
    re.compile(
        r"^\s*frame #(?P<depth>\d+): (?P<function>.+?) \+ 0x[0-9a-f]+ "
        r"\((?P<pc>0x[0-9a-f]+) in (?P<module>\S+)\)"
    ),
)
_SIGNALLED = re.compile(r"Program (?:received|terminated with) signal (?P<signal>SIG\w+)")

Side = Literal["", "before", "after", "inside"]


@dataclass(frozen=True)
class NativeFrame:
    """One native frame, innermost first in a stack; what the tool did not print is empty."""

    function: str
    file: str = ""
    line: int | None = None
    module: str = ""

    @property
    def generated(self) -> bool:
        """Whether this is code of a package: its wrapper, or a kernel of it."""
        return ".wrapper." in f"{self.file}{self.module}" or self.file.endswith(".kernel.cpp")


@dataclass(frozen=True)
class NativeError:
    """One report of a sanitizer, or one native stack.

    `size` of the access and `distance` from the heap block are in bytes; `region` is that block's size.
    `allocated` is the stack that allocated the block.
    """

    tool: str
    kind: str
    direction: str = ""
    size: int | None = None
    address: int | None = None
    region: int | None = None
    distance: int | None = None
    side: Side = ""
    frames: tuple[NativeFrame, ...] = ()
    allocated: tuple[NativeFrame, ...] = ()
    count: int = 1

    @property
    def kernel(self) -> str:
        """The innermost function in generated code."""
        frame = next((frame for frame in self.frames if frame.generated), None)
        return frame.function if frame else ""


@dataclass(frozen=True)
class NativeReport:
    """All reports, equal ones counted; `backtrace` is a stack that belongs to none (gdb, c10)."""

    errors: tuple[NativeError, ...] = ()
    backtrace: tuple[NativeFrame, ...] = ()
    signal: str = ""
    dropped: int = 0


def read_native(lines: Iterable[str]) -> NativeReport:
    """Read sanitizer reports and backtraces, mixed with the program's output or not."""
    reader = _Reader()
    for raw in lines:
        reader.feed(raw.rstrip("\r\n")[:4_000])
    return reader.report()


class _Reader:
    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], NativeError] = {}
        self._open: NativeError | None = None
        self._in_allocation = False
        self._stack: list[NativeFrame] = []
        self._backtrace: tuple[NativeFrame, ...] = ()
        self._signal = ""
        self._dropped = 0

    def feed(self, line: str) -> None:
        frame = read_frame(line)
        if frame is not None:
            self._add_frame(frame, first="#0" in line[:14])
        elif error := _ERROR.search(line):
            self._begin(NativeError(error["tool"], error["kind"].strip(), address=_address(error["rest"])))
        elif undefined := _UNDEFINED.search(line):
            self._begin_undefined(undefined)
        elif self._open is not None:
            self._body(self._open, line)
        elif signal := _SIGNALLED.search(line):
            self._signal = signal["signal"]

    def _begin(self, error: NativeError) -> None:
        self._end()
        self._open, self._in_allocation = error, False

    def _begin_undefined(self, found: re.Match[str]) -> None:
        place = NativeFrame("", found["file"], int(found["line"][:9]))
        self._begin(NativeError("UndefinedBehaviorSanitizer", found["message"][:300], frames=(place,)))

    def _body(self, error: NativeError, line: str) -> None:
        if access := _ACCESS.search(line):
            self._open = replace(error, direction=access["direction"].lower(), size=int(access["size"][:18]))
        elif signal := _SIGNAL.search(line):
            self._open = replace(error, direction=signal["direction"].lower())
        elif region := _REGION.search(line):
            self._open = _with_region(error, region)
        elif "allocated by thread" in line:
            self._in_allocation = True
        elif line.startswith("SUMMARY: "):
            self._end()

    def _add_frame(self, frame: NativeFrame, *, first: bool) -> None:
        if self._open is None:
            if first and not self._backtrace:
                self._backtrace = tuple(self._stack)
                self._stack = []
            if len(self._stack) < MAX_FRAMES:
                self._stack.append(frame)
            return
        if self._in_allocation:
            self._open = replace(self._open, allocated=(*self._open.allocated, frame)[:MAX_FRAMES])
        else:
            self._open = replace(self._open, frames=_with_frame(self._open.frames, frame))

    def _end(self) -> None:
        error, self._open = self._open, None
        if error is None:
            return
        key = (error.tool, error.kind, error.direction, error.size, error.frames[:1])
        known = self._errors.get(key)
        if known is not None:
            self._errors[key] = replace(known, count=known.count + 1)
        elif len(self._errors) < MAX_ERRORS:
            self._errors[key] = error
        else:
            self._dropped += 1

    def report(self) -> NativeReport:
        self._end()
        backtrace = self._backtrace or tuple(self._stack)
        return NativeReport(tuple(self._errors.values()), backtrace, self._signal, self._dropped)


def _with_frame(frames: tuple[NativeFrame, ...], frame: NativeFrame) -> tuple[NativeFrame, ...]:
    """One more frame; the first one after a `runtime error` line is the function of that line's place."""
    if len(frames) == 1 and not frames[0].function:
        return (replace(frames[0], function=frame.function),)
    return (*frames, frame)[:MAX_FRAMES]


def read_frame(line: str) -> NativeFrame | None:
    """One frame of a sanitizer, gdb or c10 backtrace; None for other lines."""
    if "#" not in line:
        return None
    for pattern in _FRAMES:
        found = pattern.match(line)
        if found:
            fields = found.groupdict()
            number = fields.get("line")
            return NativeFrame(
                function=fields["function"].strip()[:500],
                file=fields.get("file") or "",
                line=int(number[:9]) if number else None,
                module=fields.get("module") or "",
            )
    return None


def _with_region(error: NativeError, found: re.Match[str]) -> NativeError:
    sides: dict[str, Side] = {"before": "before", "to the left of": "before", "after": "after"}
    side: Side = sides.get(found["side"], "after" if "right" in found["side"] else "inside")
    return replace(error, region=int(found["size"][:18]), distance=int(found["distance"][:18]), side=side)


def _address(text: str) -> int | None:
    found = _ADDRESS.search(text)
    return int(found["address"], 16) if found else None
