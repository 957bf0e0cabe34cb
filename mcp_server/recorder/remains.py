"""Examines a dead or hanging process from outside: its threads, mapped files and memory (x86-64).

Its addresses become functions and source lines, using the symbols and debug information of its files.
"""

from __future__ import annotations

import os
import re
import signal
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

from mcp_server.errors import ProblemError

_MAP = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ (?P<offset>[0-9a-f]+) \S+ \S+ +(?P<path>/.*)$",
    re.MULTILINE,
)
# Libraries between a host and its package.
FOREIGN = re.compile(
    r"/(?:lib(?:torch|c10|gomp|iomp|stdc\+\+|c\.so|c-|pthread|gcc_s|python)[^/]*|librecorder\.so|[^/]*\.wrapper\.so(?:\.orig)?"
    r"|ld-linux[^/]*|_C\.[^/]*)$"
)
LARGEST = 1 << 30  # bytes of a file whose debug information is read
NEAR = 400  # rows of a line table to search for a line from another file
SYSTEM = ("/usr/include/", "/usr/lib/")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file in the memory of the process."""

    start: int
    end: int
    offset: int
    path: str


Segments = tuple[tuple[int, int, int], ...]  # the loaded ones: offset in the file, bytes, address


def segments_of(elf: ELFFile) -> Segments:
    loaded = [each for each in elf.iter_segments() if each["p_type"] == "PT_LOAD"]
    return tuple((each["p_offset"], each["p_filesz"], each["p_vaddr"]) for each in loaded)


def address_of(place: int, segments: Segments) -> int | None:
    """Convert an offset in a library's file into its virtual address; None if no segment contains it."""
    return next((place - at + start for at, size, start in segments if at <= place < at + size), None)


@dataclass(frozen=True)
class SourceLine:
    file: str
    line: int
    binary: Path


def read_maps(text: str) -> tuple[Mapping, ...]:
    """Parse the mapped files in the text of /proc/PID/maps."""
    return tuple(
        Mapping(int(m["start"], 16), int(m["end"], 16), int(m["offset"], 16), m["path"])
        for m in _MAP.finditer(text)
    )


def host_lines(stack: Sequence[int], maps: Sequence[Mapping]) -> Iterator[SourceLine]:
    """Yield the host's source lines on the way to the package, innermost first. Needs debug information."""
    for address in stack:
        place = next((each for each in maps if each.start <= address < each.end), None)
        if place is None or FOREIGN.search(place.path) or place.path.endswith(" (deleted)"):
            continue
        found = line_at(
            Path(place.path), address - place.start + place.offset - 1
        )  # of the call, not of the instruction after it
        if found is not None and not found.file.startswith(SYSTEM):
            yield found


def line_at(binary: Path, offset: int, suffixes: tuple[str, ...] = ("",)) -> SourceLine | None:
    """Return the source line of the code at `offset` in a file; None if unknown.

    Of the files with one of the `suffixes`, take the nearest line before it: for inlined header code.
    """
    try:
        if not binary.is_file() or binary.stat().st_size > LARGEST:
            return None
        table = _lines(binary, binary.stat().st_mtime_ns)
    except (ELFError, DWARFError, OSError, ValueError, KeyError, AttributeError, IndexError):
        return None
    address = address_of(offset, table.segments)
    if address is None:
        return None
    row = bisect_right(table.addresses, address) - 1
    for place in table.rows[max(0, row - NEAR) : row + 1][::-1] if row >= 0 else ():
        if place is None:
            return None
        if place[0].endswith(suffixes):
            return SourceLine(*place, binary)
    return None


@lru_cache(maxsize=8)
def functions_of(binary: Path) -> tuple[tuple[int, int, str], ...]:
    """List offset, size and name of a file's functions, sorted by offset; empty if the file is unreadable."""
    found = []
    try:
        with binary.open("rb") as file:
            elf = ELFFile(file)
            table = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
            for symbol in table.iter_symbols() if table is not None else ():
                if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_size"]:
                    place = next(iter(elf.address_offsets(symbol["st_value"])), None)
                    if place is not None:
                        found.append((place, symbol["st_size"], symbol.name))
    except (ELFError, OSError, ValueError, KeyError, AttributeError):
        return ()
    return tuple(sorted(found))


def function_at(binary: Path, offset: int) -> str:
    """Return the function that contains `offset` in a file; empty if no symbol covers it."""
    known = functions_of(binary)
    number = bisect_right(known, (offset, 1 << 62, "")) - 1
    if number < 0 or offset >= known[number][0] + known[number][1]:
        return ""
    return known[number][2]


@dataclass(frozen=True)
class _Table:
    segments: Segments
    addresses: list[int]
    rows: list[tuple[str, int] | None]  # None: the end of a sequence


@lru_cache(maxsize=8)
def _lines(binary: Path, _changed: int) -> _Table:
    with binary.open("rb") as file:
        elf = ELFFile(file)
        segments = segments_of(elf)
        found = (
            sorted(_rows(elf.get_dwarf_info()), key=lambda row: (row[0], row[1] is not None))
            if elf.has_dwarf_info()
            else []
        )
    return _Table(segments, [address for address, _ in found], [row for _, row in found])


def _rows(dwarf: DWARFInfo) -> Iterator[tuple[int, tuple[str, int] | None]]:
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        entries, version = program.header["file_entry"], program.header["version"]
        folders = [_text(name) for name in program.header["include_directory"]]
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            number = state.file if version >= 5 else state.file - 1
            if state.end_sequence or not 0 <= number < len(entries):
                yield state.address, None
                continue
            name, folder = _text(entries[number].name), entries[number].dir_index
            at = folder if version >= 5 else folder - 1
            path = name if name.startswith("/") or not 0 <= at < len(folders) else f"{folders[at]}/{name}"
            yield state.address, (path, state.line)


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw


LARGEST_READ = 1 << 20  # bytes of memory at a time
NEXT = "gcore PID for a core file of a process that runs; `ulimit -c unlimited` before it starts"
_GONE = (FileNotFoundError, ProcessLookupError)
WAITS = {
    "0": "reads a file or a pipe",
    "7": "waits for a descriptor",
    "23": "waits for a descriptor",
    "35": "sleeps",
    "61": "waits for a child",
    "202": "waits for another thread",
    "230": "sleeps",
    "232": "waits for a descriptor",
    "281": "waits for a descriptor",
}
"""What a thread does in a system call, by the call's number (x86-64, asm/unistd_64.h)."""


@dataclass(frozen=True)
class ThreadState:
    """A thread's position. `signal` is what ended the process, or 0. `frame` is register rbp, if known."""

    number: int
    pc: int
    sp: int
    frame: int | None = None
    signal: int = 0
    waits: str = ""


@dataclass(frozen=True)
class Remains:
    """The threads, starting with the one that got the signal. `read` returns fewer bytes at memory gaps.

    `running` are threads of a live process outside any system call; their position is unknown. `is_cut` is
    True if the core file ends before its last page.
    """

    threads: tuple[ThreadState, ...]
    maps: tuple[Mapping, ...]
    read: Callable[[int, int], bytes]
    running: tuple[int, ...] = ()
    is_cut: bool = False

    def mapping(self, address: int) -> Mapping | None:
        number = bisect_right(self._starts, address) - 1
        found = self._sorted[number] if number >= 0 else None
        return found if found is not None and address < found.end else None

    @cached_property
    def _sorted(self) -> list[Mapping]:
        return sorted(self.maps, key=lambda each: each.start)

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self._sorted]


@contextmanager
def open_process(pid: int) -> Iterator[Remains]:
    """Open a live process without stopping it. Raise `ProblemError` if access is denied or it ends."""
    root = Path("/proc", str(pid))
    memory = _memory(root, pid)
    try:
        yield _living(root, pid, memory)
        with suppress(*_GONE):
            if not _has_ended(root):
                return
        raise _ended(pid, "the process ended while it was looked at")
    finally:
        os.close(memory)


def _memory(root: Path, pid: int) -> int:
    try:
        if _has_ended(root):
            raise _ended(pid, "the process has ended, and its parent has not waited for it")
        return os.open(root / "mem", os.O_RDONLY)
    except _GONE as error:
        raise ProblemError("there is no such process", value=str(pid), next_call=NEXT) from error
    except OSError as error:
        raise _refused(pid) from error


def _living(root: Path, pid: int, memory: int) -> Remains:
    try:
        maps = read_maps((root / "maps").read_text(errors="replace"))
        tasks = sorted((root / "task").iterdir(), key=lambda each: int(each.name))
        states = [_state(task) for task in tasks]
    except PermissionError as error:
        raise _refused(pid) from error
    except _GONE as error:
        raise _ended(pid, "the process ended while it was looked at") from error
    known = tuple(each for each in states if isinstance(each, ThreadState))
    running = tuple(each for each in states if isinstance(each, int))
    return Remains(known, maps, lambda at, count: _mapped(memory, at, count), running)


def _has_ended(root: Path) -> bool:
    """Whether the process has ended, even if its parent still has an entry for it (Z, X: proc(5))."""
    state = (root / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return not state or state[0] in "ZX"


def _ended(pid: int, what: str) -> ProblemError:
    return ProblemError(what, value=str(pid), allowed="a process that runs", next_call=NEXT)


def _refused(pid: int) -> ProblemError:
    return ProblemError(
        "this process may not be looked at",
        value=str(pid),
        allowed="one of the same user, with kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE (docker: --cap-add)",
        next_call="post-mortem as the user of the process, or with a core file of it",
    )


def _state(task: Path) -> ThreadState | int | None:
    """Parse `202 0x7f.. 0x80 ... SP PC`. Return only the number of a running thread: its position is unknown.

    Return None for a thread that has ended.
    """
    try:
        words = (task / "syscall").read_text().split()
    except _GONE:
        return None
    number = int(task.name)
    if len(words) < 3:
        return number
    pc, sp = int(words[-1], 16), int(words[-2], 16)
    return ThreadState(number, pc, sp, waits=WAITS.get(words[0], "")) if pc else None


def _mapped(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, min(count, LARGEST_READ), address)
    except (OSError, OverflowError):
        return b""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else ""
