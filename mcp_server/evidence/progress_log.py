"""The CUDA driver's core dump progress log: exception and kernel without a debugger.

`CUDA_COREDUMP_SHOW_PROGRESS=1` prints it. The layout is the one published for driver 570-580; the kernel's
name is printed as the symbol (mangled for C++, the plain name for Triton).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_EXCEPTION = re.compile(
    r"coredump: Detected an exception of type (?P<name>CUDBG_EXCEPTION_\w+) \((?P<code>\d+)\)"
)
_PC = re.compile(r"coredump:\s+- (?:error)?PC (?P<pc>0x[0-9a-fA-F]+)", re.IGNORECASE)
_FRAME = re.compile(r"coredump:\s+#(?P<depth>\d+)\s+(?P<address>0x[0-9a-fA-F]+)\s+(?P<kernel>\S.*)$")
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
        _read(found, line.rstrip("\r\n")[:4_000])
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


def _read(found: list[LoggedException], line: str) -> None:
    if exception := _EXCEPTION.search(line):
        if len(found) < MAX_EXCEPTIONS:
            found.append(LoggedException(exception["name"], int(exception["code"][:9])))
    elif found and (pc := _PC.search(line)):
        found[-1].pc = found[-1].pc or int(pc["pc"], 16)
    elif found and (frame := _FRAME.search(line)) and len(found[-1].frames) < 50:
        found[-1].frames.append(frame["kernel"].strip()[:500])


def _path(line: str) -> str:
    match = _FILE.search(line)
    return match["path"] if match else ""
