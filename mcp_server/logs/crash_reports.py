"""Reads crash reports of sanitizers and debuggers: AddressSanitizer, gdb, cuda-gdb, the CUDA driver."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

MAX_FRAMES = 64
MAX_ERRORS = 200
MAX_LINE = 4_000

Triple = tuple[int, int, int]
SanitizerTool = Literal["memcheck", "initcheck", "racecheck", "synccheck"]
# A report of compute-sanitizer does not name the tool that it was run with.
Tool = Literal[SanitizerTool, "compute-sanitizer", "core_dump", "sync", "asan", "ubsan", "native", "assert"]

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
        r"^\s*frame #\d+: (?P<function>.+?) \+ 0x[0-9a-f]+ \(0x[0-9a-f]+ in (?P<module>\S+)\)"  # c10
    ),
)
# What follows the name of a function: its parameters, or a suffix of a part that the compiler split off.
_OUTLINED = re.compile(r"\s*(?:\(.*|\[clone .*\]|\._omp_fn\.\d+.*)$")
# Functions in a package's library that are not kernels: C++ runtime code, the model class, our probes.
_NO_KERNEL = ("std::", "__gnu_cxx::", "torch::aot_inductor::", "aoti_debug::")
_SHADOW = 0x7FFF8000  # the shadow address of address 0 on x86-64 (compiler-rt, asan_mapping.h)
_TOP = 1 << 47  # the end of the user address space
_SIGNALLED = re.compile(r"Program (?:received|terminated with) signal (?P<signal>SIG\w+)")


@dataclass(frozen=True)
class NativeFrame:
    """One native frame; stacks list the innermost first. Fields that the tool did not print are empty."""

    function: str
    file: str = ""
    line: int | None = None
    module: str = ""

    @property
    def generated(self) -> bool:
        """Whether this frame is in the package's generated code: its wrapper or one of its kernels."""
        return ".wrapper." in f"{self.file}{self.module}" or self.file.endswith(".kernel.cpp")


class Nearest(NamedTuple):
    """The allocation nearest to a bad address, `distance` bytes away. The access may have meant another."""

    address: int
    size: int
    distance: int
    side: str  # before, after or inside


@dataclass(frozen=True)
class Access:
    """A fault as reported by a tool. Fields that the tool did not report are empty.

    `kernel` is the device symbol or the C++ function. `line` is 1-based in the generated file. `size` is in
    bytes. `problem` says what is wrong with the address. `launch_offset` locates the launch in the library of
    the package. `condition` is what a failed index assertion required. `frames` is the native stack.
    """

    tool: Tool
    kind: str
    text: str
    kernel: str = ""
    file: str = ""
    line: int | None = None
    direction: str = ""
    size: int | None = None
    address: int | None = None
    problem: str = ""
    thread: Triple | None = None
    block: Triple | None = None
    count: int = 1
    nearest: Nearest | None = None
    launch_offset: int | None = None
    condition: str = ""
    frames: tuple[NativeFrame, ...] = ()


@dataclass(frozen=True)
class NativeReport:
    """All reports of AddressSanitizer and UndefinedBehaviorSanitizer, with equal reports merged and counted.

    `backtrace` is a stack outside these reports, as gdb or c10 print it.
    """

    errors: tuple[Access, ...] = ()
    backtrace: tuple[NativeFrame, ...] = ()
    signal: str = ""

    @property
    def crash(self) -> Access | None:
        """The crash that `backtrace` shows. None if no frame belongs to a package."""
        frame = _generated_frame(self.backtrace)
        if frame is None:
            return None
        in_kernel = not frame.function.startswith(_NO_KERNEL)
        return Access(
            tool="native",
            kind="invalid_access" if self.signal in ("SIGSEGV", "SIGBUS") else "signal",
            text=self.signal or "a native stack",
            kernel=_bare_function(frame.function) if in_kernel else "",
            file=frame.file,
            line=frame.line,
        )


def _generated_frame(frames: tuple[NativeFrame, ...]) -> NativeFrame | None:
    """The innermost frame in the package's kernel.cpp, or in its wrapper.cpp. None if there is neither."""
    kernel = next((frame for frame in frames if frame.file.endswith(".kernel.cpp")), None)
    return kernel or next((frame for frame in frames if frame.generated), None)


def _bare_function(function: str) -> str:
    """Reduce `cpp_fused_add_0._omp_fn.0` or `cpp_fused_add_0(float*, long)` to `cpp_fused_add_0`."""
    return _OUTLINED.sub("", function.split("(", 1)[0]).strip()


def read_native(lines: Iterable[str]) -> NativeReport:
    """Read sanitizer reports and backtraces, which may be mixed with the program's output."""
    reader = _NativeReader()
    for raw in lines:
        reader.feed(raw.rstrip("\r\n")[:MAX_LINE])
    reader.end()
    stack = reader.backtrace or tuple(reader.stack)
    return NativeReport(tuple(reader.errors.values()), stack, reader.signal)


def _with_frame(access: Access, frame: NativeFrame) -> Access:
    first = access.frames[:1]
    if len(access.frames) == 1 and not first[0].function:  # the location of a `runtime error` line
        return replace(access, frames=(replace(first[0], function=frame.function),))
    return replace(access, frames=(*access.frames, frame)[:MAX_FRAMES])


def _access(error: re.Match[str]) -> Access:
    """The access that the first line of a sanitizer's report names."""
    reported = _ADDRESS.search(error["rest"])
    address = int(reported["address"], 16) if reported else None
    # An address beyond the end of the address space has no shadow. Looking up the shadow then causes
    # a SEGV, and its address is reported. No memory of a process lies there, so it can be converted.
    if address is not None and _TOP <= (beyond := (address - _SHADOW) << 3) < 2 * _TOP:
        address = beyond
    text = error["kind"].strip()
    if error["tool"] != "AddressSanitizer":
        return Access(tool="ubsan", kind="undefined", text=text, address=address)
    # AddressSanitizer also reports signals that are not memory accesses: FPE is a division by zero.
    return Access("asan", "signal" if text == "FPE" else "invalid_access", text, address=address)


class _NativeReader:
    def __init__(self) -> None:
        self.errors: dict[tuple[object, ...], Access] = {}
        self._open: Access | None = None
        self._in_allocation = False
        self.stack: list[NativeFrame] = []
        self.backtrace: tuple[NativeFrame, ...] = ()
        self.signal = ""

    def feed(self, line: str) -> None:
        frame = _read_frame(line)
        if frame is not None and self._open is not None:
            if not self._in_allocation:  # otherwise the frame belongs to the stack of the allocation
                self._open = _with_frame(self._open, frame)
        elif frame is not None:
            if "#0" in line[:14] and not self.backtrace:
                self.backtrace, self.stack = tuple(self.stack), []
            if len(self.stack) < MAX_FRAMES:
                self.stack.append(frame)
        elif error := _ERROR.search(line):
            self.end()
            self._open = _access(error)
        elif undefined := _UNDEFINED.search(line):
            self.end()
            place = NativeFrame("", undefined["file"], int(undefined["line"][:9]))
            self._open = Access("ubsan", "undefined", undefined["message"][:300], frames=(place,))
        elif self._open is None:
            if signal := _SIGNALLED.search(line):
                self.signal = signal["signal"]
        elif access := _ACCESS.search(line):
            size = int(access["size"][:18])
            self._open = replace(self._open, direction=access["direction"].lower(), size=size)
        elif by_signal := _SIGNAL.search(line):
            self._open = replace(self._open, direction=by_signal["direction"].lower())
        elif "allocated by thread" in line:
            self._in_allocation = True
        elif line.startswith("SUMMARY: "):
            self.end()

    def end(self) -> None:
        """Store the open report, or count it if an equal one is already stored."""
        error, self._open, self._in_allocation = self._open, None, False
        if error is None:
            return
        key = (error.tool, error.text, error.direction, error.size, error.frames[:1])
        known = self.errors.get(key)
        if known is not None:
            self.errors[key] = replace(known, count=known.count + 1)
        elif len(self.errors) < MAX_ERRORS:
            frame = _generated_frame(error.frames) or NativeFrame("")
            kernel = _bare_function(frame.function)
            self.errors[key] = replace(error, kernel=kernel, file=frame.file, line=frame.line)


def _read_frame(line: str) -> NativeFrame | None:
    """Parse one frame of a sanitizer, gdb or c10 backtrace. None for other lines."""
    matches = (pattern.match(line) for pattern in _FRAMES) if "#" in line else ()
    found = next((match.groupdict("") for match in matches if match), None)
    if found is None:
        return None
    number, function = found.get("line"), found["function"].strip()[:500]
    return NativeFrame(
        function, found.get("file", ""), int(number[:9]) if number else None, found.get("module", "")
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


def read_cuda_gdb(lines: Iterable[str]) -> Access | None:
    """Read the fault from a batch session: `target cudacore FILE`, `info cuda kernels`, `bt`, `info line
    *$errorpc`.

    A core dump has no address; `block` and `thread` are those of the fault. The line is that of `$errorpc`,
    because frame #0 is usually past the faulty instruction. After a device assert there is no `$errorpc`, and
    so no line. None if cuda-gdb names neither an exception nor a kernel.
    """
    exception = kernel = file = ""
    number: int | None = None
    block: Triple | None = None
    thread: Triple | None = None
    for raw in lines:
        line = raw.rstrip("\r\n")[:MAX_LINE]
        if focus := _FOCUS.search(line):
            if block is None:
                block, thread = _triple(focus["block"]), _triple(focus["thread"])
        elif raised := _CUDA_GDB_EXCEPTION.search(line):
            exception = (raised["exception"] or raised["assert"]).strip()
        elif triggered := _TRIGGERED.search(line):
            kernel, file = triggered["kernel"], triggered["file"] or ""
            number = int(triggered["line"][:9]) if triggered["line"] else None
        elif at := _LINE.search(line):
            kernel = kernel or at["kernel"] or ""
            file, number = at["file"], int(at["line"][:9])
        elif frame := _CUDA_GDB_FRAME.match(line):
            kernel = kernel or frame["kernel"]
            # The frame has the full path of the file, but not the exact line.
            if frame["file"] and (number is None or frame["file"].endswith(file)):
                file = frame["file"]
    if not exception and not kernel:
        return None
    kernel = kernel.strip().removesuffix("()")[:500]
    text = exception + (" (the line is near, not exact)" if number is None else "")
    kind = _device_kind(exception)
    return Access("core_dump", kind, text, kernel, file, number, thread=thread, block=block)


def _triple(text: str) -> Triple | None:
    numbers = [int(part[:9]) for part in text.strip("()").split(",") if part.isdecimal()]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _device_kind(exception: str) -> str:
    """The kind of an exception such as `Warp Misaligned Address` or `CUDBG_EXCEPTION_WARP_ASSERT`."""
    name = exception.lower()
    return "assert" if "assert" in name else "misaligned" if "misaligned" in name else "invalid_access"


_PROGRESS_EXCEPTION = re.compile(
    r"coredump: Detected an exception of type (?P<name>CUDBG_EXCEPTION_\w+) \(\d+\)"
)
_PROGRESS_FRAME = re.compile(r"coredump:\s+#\d+\s+0x[0-9a-fA-F]+\s+(?P<kernel>\S.*)$")


def read_progress_log(lines: Iterable[str]) -> Access | None:
    """Read the first exception that the CUDA driver logged with `CUDA_COREDUMP_SHOW_PROGRESS=1`; else None.

    The log names only the exception and the kernel: the symbol of the outermost frame, mangled for C++ and
    plain for Triton. The layout is the one published for driver 570-580. The log may be mixed with the
    program's output.
    """
    name = kernel = ""
    for line in lines:
        if exception := _PROGRESS_EXCEPTION.search(line[:MAX_LINE]):
            if name:
                break
            name = exception["name"]
        elif name and (frame := _PROGRESS_FRAME.search(line[:MAX_LINE].rstrip())):
            kernel = frame["kernel"][:500]
    return Access("core_dump", _device_kind(name), name, kernel) if name else None
