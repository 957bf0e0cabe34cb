"""What debuggers and sanitizers say of a crash: cuda-gdb, the driver's log, AddressSanitizer, gdb.

What cuda-gdb says about a GPU core dump (`target cudacore FILE`, `info cuda kernels`, `bt`, `info line`).

The line is taken from `$errorpc`: frame #0 has usually moved on. After a device assert there is no
`$errorpc`, so the line of frame #0 is only near the fault, and `exact` is False.

The CUDA driver's core dump progress log: exception and kernel without a debugger.

`CUDA_COREDUMP_SHOW_PROGRESS=1` prints it. The layout is the one published for driver 570-580; the kernel's
name is printed as the symbol (mangled for C++, the plain name for Triton).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
            self._open = replace(self._open, frames=_native_with_frame(self._open.frames, frame))

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


def _native_with_frame(frames: tuple[NativeFrame, ...], frame: NativeFrame) -> tuple[NativeFrame, ...]:
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


Triple = tuple[int, int, int]

_FOCUS = re.compile(
    r"grid (?P<grid>\d+), block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\)), device (?P<device>\d+)"
)
_CUDA_GDB_EXCEPTION = re.compile(r"CUDA Exception: (?P<exception>.+)|^(?P<assert>Assertion failed\.)$")
_TRIGGERED = re.compile(
    r"The exception was triggered at PC (?P<pc>0x[0-9a-f]+)\s+(?P<kernel>\S.*?)\s*"
    r"(?:\((?P<file>[^()\s]+):(?P<line>\d+)\))?$"
)
_CUDA_GDB_FRAME = re.compile(
    r"#0 +(?:0x[0-9a-f]+ in )?(?P<kernel>.+?) ?<<<(?P<grid>\([\d,]+\)),(?P<block>\([\d,]+\))>>> ?"
    r"\(.*?\)(?: at (?P<file>.+):(?P<line>\d+))?$"
)
_LINE = re.compile(
    r'Line (?P<line>\d+) of "(?P<file>[^"]+)" (?:starts at|is at) address (?P<address>0x[0-9a-f]+)'
    r"(?: <(?P<kernel>.+?)\+(?P<offset>\d+)>)?"
)
_KERNEL_ROW = re.compile(
    r"^\*?\s+\d+\s+\S+\s+\d+\s+\d+\s+(?P<status>\w+)\s+\S+\s+(?P<grid>\([\d,]+\))\s+(?P<block>\([\d,]+\))\s+(?P<kernel>\S.*?)\s*$"
)
_SOURCE = re.compile(r"^(?P<line>\d+)\t(?P<code>.+)$")


@dataclass(frozen=True)
class CoreDump:
    """A fault as a core dump shows it.

    `offset` is the faulting instruction's, in bytes from the kernel's start;
    `grid_dim` and `block_dim` are the launch's dimensions, `block` and `thread` the place of the fault.
    """

    exception: str = ""
    kernel: str = ""
    file: str = ""
    line: int | None = None
    exact: bool = False
    offset: int | None = None
    code: str = ""
    grid_dim: Triple | None = None
    block_dim: Triple | None = None
    block: Triple | None = None
    thread: Triple | None = None
    device: int | None = None
    kernels: tuple[str, ...] = ()

    @property
    def is_assert(self) -> bool:
        return "ssert" in self.exception


def read_cuda_gdb(lines: Iterable[str]) -> CoreDump:
    """Read a batch session's output; fields that it does not give stay empty."""
    dump = CoreDump()
    for raw in lines:
        dump = _read_cuda_gdb(dump, raw.rstrip("\r\n")[:4_000])
    return dump


def _read_cuda_gdb(dump: CoreDump, line: str) -> CoreDump:
    if focus := _FOCUS.search(line):
        return _with_focus(dump, focus)
    if exception := _CUDA_GDB_EXCEPTION.search(line):
        return replace(dump, exception=(exception["exception"] or exception["assert"]).strip())
    if triggered := _TRIGGERED.search(line):
        return _with_trigger(dump, triggered)
    if exact := _LINE.search(line):
        return _with_line(dump, exact)
    if frame := _CUDA_GDB_FRAME.match(line):
        return _cuda_gdb_with_frame(dump, frame)
    if row := _KERNEL_ROW.match(line):
        return replace(dump, kernels=(*dump.kernels, _bare(row["kernel"]))[:50])
    source = _SOURCE.match(line)
    if source and dump.line == int(source["line"][:9]) and not dump.code:
        return replace(dump, code=source["code"].strip()[:200])
    return dump


def _with_focus(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    if dump.block is not None:
        return dump
    return replace(
        dump, block=_triple(found["block"]), thread=_triple(found["thread"]), device=int(found["device"][:9])
    )


def _with_trigger(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    line = int(found["line"][:9]) if found["line"] else None
    return replace(
        dump, kernel=_bare(found["kernel"]), file=found["file"] or "", line=line, exact=line is not None
    )


def _with_line(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    return replace(
        dump,
        file=found["file"],
        line=int(found["line"][:9]),
        exact=True,
        kernel=dump.kernel or _bare(found["kernel"] or ""),
        offset=int(found["offset"][:18]) if found["offset"] else dump.offset,
    )


def _cuda_gdb_with_frame(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    dump = replace(
        dump,
        kernel=dump.kernel or _bare(found["kernel"]),
        grid_dim=_triple(found["grid"]),
        block_dim=_triple(found["block"]),
    )
    if dump.exact or not found["file"]:
        if found["file"] and found["file"].endswith(dump.file):
            return replace(dump, file=found["file"])
        return dump
    return replace(dump, file=found["file"], line=int(found["line"][:9]))


def _triple(text: str) -> Triple | None:
    numbers = [int(part[:9]) for part in text.strip("()").split(",") if part.isdecimal()]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _bare(kernel: str) -> str:
    return kernel.strip().removesuffix("()")[:500]


_PROGRESS_LOG_EXCEPTION = re.compile(
    r"coredump: Detected an exception of type (?P<name>CUDBG_EXCEPTION_\w+) \((?P<code>\d+)\)"
)
_PC = re.compile(r"coredump:\s+- (?:error)?PC (?P<pc>0x[0-9a-fA-F]+)", re.IGNORECASE)
_PROGRESS_LOG_FRAME = re.compile(
    r"coredump:\s+#(?P<depth>\d+)\s+(?P<address>0x[0-9a-fA-F]+)\s+(?P<kernel>\S.*)$"
)
_FILE = re.compile(r"coredump: (?:Writing|Wrote|Generating|Opening).*?(?P<path>/\S+)")

MAX_EXCEPTIONS = 100


@dataclass
class LoggedException:
    """One exception: CUDBG name and code, faulting PC, symbols of its frames, innermost first."""

    name: str
    code: int
    pc: int | None = None
    frames: list[str] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        return self.frames[-1] if self.frames else ""


@dataclass(frozen=True)
class ProgressLog:
    """What the log said, equal exceptions counted once with their number."""

    exceptions: tuple[LoggedException, ...] = ()
    counts: tuple[int, ...] = ()
    lines: int = 0
    core_file: str = ""

    @property
    def first(self) -> LoggedException | None:
        return self.exceptions[0] if self.exceptions else None


def read_progress_log(lines: Iterable[str]) -> ProgressLog:
    """Read a log, mixed with the program's output or not."""
    found: list[LoggedException] = []
    count, core_file = 0, ""
    for line in lines:
        if "coredump:" not in line:
            continue
        count += 1
        core_file = core_file or _path(line)
        _read_progress_log(found, line.rstrip("\r\n")[:4_000])
    unique: dict[tuple[str, int | None, str], tuple[LoggedException, int]] = {}
    for exception in found:
        key = (exception.name, exception.pc, exception.kernel)
        unique[key] = (unique.get(key, (exception, 0))[0], unique.get(key, (exception, 0))[1] + 1)
    return ProgressLog(
        tuple(exception for exception, _ in unique.values()),
        tuple(number for _, number in unique.values()),
        count,
        core_file,
    )


def _read_progress_log(found: list[LoggedException], line: str) -> None:
    if exception := _PROGRESS_LOG_EXCEPTION.search(line):
        if len(found) < MAX_EXCEPTIONS:
            found.append(LoggedException(exception["name"], int(exception["code"][:9])))
    elif found and (pc := _PC.search(line)):
        found[-1].pc = found[-1].pc or int(pc["pc"], 16)
    elif found and (frame := _PROGRESS_LOG_FRAME.search(line)) and len(found[-1].frames) < 50:
        found[-1].frames.append(frame["kernel"].strip()[:500])


def _path(line: str) -> str:
    match = _FILE.search(line)
    return match["path"] if match else ""
