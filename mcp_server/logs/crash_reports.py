"""What sanitizers and debuggers report about a crash: AddressSanitizer, gdb, cuda-gdb, the CUDA driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

MAX_FRAMES = 64
MAX_ERRORS = 200
MAX_LINE = 4_000

Triple = tuple[int, int, int]

_ERROR = re.compile(r"ERROR: (?P<tool>\w+Sanitizer): (?P<kind>attempting [\w-]+|[\w-]+)(?P<rest>.*)")
_ACCESS = re.compile(r"(?P<direction>READ|WRITE) of size (?P<size>\d+)")
_SIGNAL = re.compile(r"The signal is caused by a (?P<direction>READ|WRITE) memory access")
_ADDRESS = re.compile(r"address (?P<address>0x[0-9a-f]+)")
_UNDEFINED = re.compile(r"(?<![^\s:])(?P<file>[^\s:]+):(?P<line>\d+):\d+: runtime error: (?P<message>.+)")
_FRAMES = (
    re.compile(r"^\s*#\d+\s+0x[0-9a-f]+ in (?P<function>.+?) \((?P<module>[^()\s]+)\+0x[0-9a-f]+\)"),
    re.compile(
        r"^\s*#\d+\s+(?:0x[0-9a-f]+ in )?(?P<function>[\w:~<>,&* ?]+?) ?\([^/]*\)"
        r"(?: at (?P<file>\S+?):(?P<line>\d+)| from (?P<module>\S+))?\s*$"
    ),
    re.compile(
        r"^\s*#\d+\s+0x[0-9a-f]+ in (?P<function>.+?)"
        r"(?: (?P<file>/\S+?|\S+\.(?:cpp|cc|c|h)):(?P<line>\d+)(?::\d+)?)?$"
    ),
    re.compile(
        r"^\s*frame #\d+: (?P<function>.+?) \+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in (?P<module>\S+)\)"  # of c10
    ),
)
_SIGNALLED = re.compile(r"Program (?:received|terminated with) signal (?P<signal>SIG\w+)")


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
    """One report of AddressSanitizer or UndefinedBehaviorSanitizer. `size` of the access is in bytes."""

    tool: str
    kind: str
    direction: str = ""
    size: int | None = None
    address: int | None = None
    frames: tuple[NativeFrame, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class NativeReport:
    """All reports, equal ones counted; `backtrace` is a stack that belongs to none (gdb, c10)."""

    errors: tuple[NativeError, ...] = ()
    backtrace: tuple[NativeFrame, ...] = ()
    signal: str = ""


def read_native(lines: Iterable[str]) -> NativeReport:
    """Read sanitizer reports and backtraces, mixed with the program's output or not."""
    reader = _NativeReader()
    for raw in lines:
        reader.feed(raw.rstrip("\r\n")[:MAX_LINE])
    return reader.report()


class _NativeReader:
    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], NativeError] = {}
        self._open: NativeError | None = None
        self._in_allocation = False
        self._stack: list[NativeFrame] = []
        self._backtrace: tuple[NativeFrame, ...] = ()
        self._signal = ""

    def feed(self, line: str) -> None:
        frame = read_frame(line)
        if frame is not None and self._open is not None:
            if not self._in_allocation:  # else it is of the stack that allocated the block
                self._open = replace(self._open, frames=_with_frame(self._open.frames, frame))
        elif frame is not None:
            if "#0" in line[:14] and not self._backtrace:
                self._backtrace, self._stack = tuple(self._stack), []
            if len(self._stack) < MAX_FRAMES:
                self._stack.append(frame)
        elif error := _ERROR.search(line):
            address = _ADDRESS.search(error["rest"])
            number = int(address["address"], 16) if address else None
            self._begin(NativeError(error["tool"], error["kind"].strip(), address=number))
        elif undefined := _UNDEFINED.search(line):
            place = NativeFrame("", undefined["file"], int(undefined["line"][:9]))
            message = undefined["message"][:300]
            self._begin(NativeError("UndefinedBehaviorSanitizer", message, frames=(place,)))
        elif self._open is None:
            if signal := _SIGNALLED.search(line):
                self._signal = signal["signal"]
        elif access := _ACCESS.search(line):
            size = int(access["size"][:18])
            self._open = replace(self._open, direction=access["direction"].lower(), size=size)
        elif by_signal := _SIGNAL.search(line):
            self._open = replace(self._open, direction=by_signal["direction"].lower())
        elif "allocated by thread" in line:
            self._in_allocation = True
        elif line.startswith("SUMMARY: "):
            self._end()

    def _begin(self, error: NativeError) -> None:
        self._end()
        self._open, self._in_allocation = error, False

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

    def report(self) -> NativeReport:
        self._end()
        return NativeReport(tuple(self._errors.values()), self._backtrace or tuple(self._stack), self._signal)


def _with_frame(frames: tuple[NativeFrame, ...], frame: NativeFrame) -> tuple[NativeFrame, ...]:
    """One more frame; the first one after a `runtime error` line is the function of that line's place."""
    if len(frames) == 1 and not frames[0].function:
        return (replace(frames[0], function=frame.function),)
    return (*frames, frame)[:MAX_FRAMES]


def read_frame(line: str) -> NativeFrame | None:
    """One frame of a sanitizer, gdb or c10 backtrace; None for other lines."""
    matches = (pattern.match(line) for pattern in _FRAMES) if "#" in line else ()
    found = next((match for match in matches if match), None)
    if found is None:
        return None
    fields = found.groupdict()
    number = fields.get("line")
    return NativeFrame(
        function=fields["function"].strip()[:500],
        file=fields.get("file") or "",
        line=int(number[:9]) if number else None,
        module=fields.get("module") or "",
    )


_FOCUS = re.compile(r"grid \d+, block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\)), device \d+")
_CUDA_GDB_EXCEPTION = re.compile(r"CUDA Exception: (?P<exception>.+)|^(?P<assert>Assertion failed\.)$")
_TRIGGERED = re.compile(
    r"The exception was triggered at PC 0x[0-9a-f]+\s+(?P<kernel>\S.*?)\s*"
    r"(?:\((?P<file>[^()\s]+):(?P<line>\d+)\))?$"
)
_CUDA_GDB_FRAME = re.compile(
    r"#0 +(?:0x[0-9a-f]+ in )?(?P<kernel>.+?) ?<<<\([\d,]+\),\([\d,]+\)>>> ?"
    r"\(.*?\)(?: at (?P<file>.+):(?P<line>\d+))?$"
)
_LINE = re.compile(
    r'Line (?P<line>\d+) of "(?P<file>[^"]+)" (?:starts at|is at) address 0x[0-9a-f]+'
    r"(?: <(?P<kernel>.+?)\+\d+>)?"
)


@dataclass(frozen=True)
class CoreDump:
    """A fault of the GPU as cuda-gdb shows it; `block` and `thread` are the place of the fault.

    The line is that of `$errorpc`: frame #0 has usually moved on. After a device assert there is no
    `$errorpc`, so the line of frame #0 is only near the fault, and `exact` is False.
    """

    exception: str = ""
    kernel: str = ""
    file: str = ""
    line: int | None = None
    exact: bool = False
    block: Triple | None = None
    thread: Triple | None = None

    @property
    def is_assert(self) -> bool:
        return "ssert" in self.exception


def read_cuda_gdb(lines: Iterable[str]) -> CoreDump:
    """Read a batch session: `target cudacore FILE`, `info cuda kernels`, `bt` and `info line *$errorpc`.

    Fields that cuda-gdb does not name stay empty.
    """
    dump = CoreDump()
    for raw in lines:
        line = raw.rstrip("\r\n")[:MAX_LINE]
        if focus := _FOCUS.search(line):
            if dump.block is None:
                dump = replace(dump, block=_triple(focus["block"]), thread=_triple(focus["thread"]))
        elif exception := _CUDA_GDB_EXCEPTION.search(line):
            dump = replace(dump, exception=(exception["exception"] or exception["assert"]).strip())
        elif triggered := _TRIGGERED.search(line):
            number = int(triggered["line"][:9]) if triggered["line"] else None
            file, kernel = triggered["file"] or "", _bare(triggered["kernel"])
            dump = replace(dump, kernel=kernel, file=file, line=number, exact=number is not None)
        elif at := _LINE.search(line):
            kernel = dump.kernel or _bare(at["kernel"] or "")
            dump = replace(dump, file=at["file"], line=int(at["line"][:9]), exact=True, kernel=kernel)
        elif frame := _CUDA_GDB_FRAME.match(line):
            dump = replace(dump, kernel=dump.kernel or _bare(frame["kernel"]))
            if frame["file"] and not dump.exact:
                dump = replace(dump, file=frame["file"], line=int(frame["line"][:9]))
            elif frame["file"] and frame["file"].endswith(dump.file):
                dump = replace(dump, file=frame["file"])  # the whole path
    return dump


def _triple(text: str) -> Triple | None:
    numbers = [int(part[:9]) for part in text.strip("()").split(",") if part.isdecimal()]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _bare(kernel: str) -> str:
    return kernel.strip().removesuffix("()")[:500]


_PROGRESS_EXCEPTION = re.compile(
    r"coredump: Detected an exception of type (?P<name>CUDBG_EXCEPTION_\w+) \(\d+\)"
)
_PROGRESS_FRAME = re.compile(r"coredump:\s+#\d+\s+0x[0-9a-fA-F]+\s+(?P<kernel>\S.*)$")


@dataclass
class LoggedException:
    """An exception in the driver's log: its CUDBG name, and the symbols of its frames, innermost first."""

    name: str
    frames: list[str] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        """The symbol: mangled for C++, the plain name for Triton."""
        return self.frames[-1] if self.frames else ""


def read_progress_log(lines: Iterable[str]) -> LoggedException | None:
    """The first exception that the CUDA driver logged with `CUDA_COREDUMP_SHOW_PROGRESS=1`; None without one.

    It needs no debugger. The layout is the one published for driver 570-580. The log may be mixed with the
    program's output.
    """
    first: LoggedException | None = None
    for raw in lines:
        line = raw.rstrip("\r\n")[:MAX_LINE]
        if exception := _PROGRESS_EXCEPTION.search(line):
            if first is not None:
                break
            first = LoggedException(exception["name"])
        elif first is not None and (frame := _PROGRESS_FRAME.search(line)) and len(first.frames) < MAX_FRAMES:
            first.frames.append(frame["kernel"].strip()[:500])
    return first
