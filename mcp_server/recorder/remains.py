"""Examines a dead or hanging process from outside: its threads, mapped files and memory (x86-64).

Its addresses become functions and source lines, using the symbols and debug information of its files.
"""

import re
import signal
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Mapping as Map
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

_MAP = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ (?P<offset>[0-9a-f]+) \S+ \S+ +(?P<path>/.*)$",
    re.MULTILINE,
)
# Files that are not of the host itself: torch, the system, Python, the recorder, the package.
FOREIGN = re.compile(
    r"/(?:lib(?:torch|c10|gomp|iomp|stdc\+\+|c\.so|c-|pthread|gcc_s|python)[^/]*|librecorder\.so|[^/]*\.wrapper\.so(?:\.orig)?"
    r"|ld-linux[^/]*|python[\d.]*|_C\.[^/]*|_ctypes\.[^/]*)$"
)
MOST_LOOKED_AT = 256  # threads of a process, the one with the signal first
LARGEST = 1 << 30  # bytes of a file with debug information
NEAR = 400  # rows of a line table to search for a line from another file
SYSTEM = re.compile(r"^/usr/(?:include|lib)/|/include/(?:ATen|c10|torch)/")
SOURCES = (".cpp", ".cc", ".cxx", ".c", ".cu")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file in the memory of the process."""

    start: int
    end: int
    offset: int
    path: str


Segments = tuple[tuple[int, int, int], ...]  # loaded segments: offset in the file, bytes, address


def segments_of(elf: ELFFile) -> Segments:
    loaded = [each for each in elf.iter_segments() if each["p_type"] == "PT_LOAD"]
    return tuple((each["p_offset"], each["p_filesz"], each["p_vaddr"]) for each in loaded)


def address_of(place: int, segments: Segments) -> int | None:
    """Convert an offset in a library's file into its virtual address. None if no segment contains it."""
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


def mapping_at(address: int, maps: Sequence[Mapping]) -> Mapping | None:
    """The mapped file with an address. None if no file is mapped there."""
    return next((each for each in maps if each.start <= address < each.end), None)


def host_lines(stack: Sequence[int], maps: Sequence[Mapping]) -> Iterator[SourceLine]:
    """Yield the host's source lines on the way to the package, innermost first. Needs debug information."""
    for address in stack:
        place = mapping_at(address, maps)
        if place is None or FOREIGN.search(place.path) or place.path.endswith(" (deleted)"):
            continue
        offset = address - place.start + place.offset - 1  # inside the call, not after it
        found = line_at(Path(place.path), offset)
        if found is not None and SYSTEM.search(found.file):  # inlined from a system header
            found = line_at(Path(place.path), offset, SOURCES)
        if found is not None:
            yield found


def line_at(binary: Path, offset: int, suffixes: tuple[str, ...] = ("",)) -> SourceLine | None:
    """The source line of the code at `offset` in a file. None if unknown.

    With `suffixes`, return the nearest line above it from a file with such a suffix: skips inlined headers.
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
    """List offset, size and name of a file's functions, sorted by offset. Empty if the file is unreadable."""
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
    """The function that contains `offset` in a file. Empty if no symbol covers it."""
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


Death = Literal["stack", "file", "null", "abort", "thrown", "exit", "deleted", "updated", "other"]
OF_MEMORY = ("stack", "file")  # a call is not to blame for these, even if the thread died in it
NEAR_STACK = 1 << 16  # largest distance from the stack pointer of an access that missed the stack
NULL_PAGE = 4096
_NAMES_INSIDE = re.compile(r"_Z+N?[KL]*(?=\d)")
NO_ACCESS = (1 << 64) - 1  # the address if the signal was sent, and not caused by an access


@dataclass(frozen=True)
class CrashSite:
    """How a process died, and where: the host's lines, innermost first, and its innermost own function.

    `memory` says what was at the address of the access; `said` is the last message of libc. `inside` is the
    thread whose open call this death concerns, or 0.
    """

    signal: str
    thread: int
    death: Death
    memory: str
    function: str
    lines: tuple[SourceLine, ...]
    said: str = ""
    inside: int = 0

    @property
    def words(self) -> str:
        """How the thread died, as a sentence without full stop and place."""
        said = f" ({self.said})" if self.said else ""
        return f"thread {self.thread} died of {self.signal}{said}" + (
            f": {self.memory}" if self.memory else ""
        )

    @property
    def place(self) -> str:
        """The host's line and function; empty if neither is known."""
        at = f"{PurePosixPath(self.lines[0].file).name}:{self.lines[0].line}" if self.lines else ""
        return ", ".join(filter(None, (at, self.function)))


def crash_site(
    number: int, thread: int, address: int, sp: int, stack: Sequence[int], maps: Sequence[Mapping], said: str
) -> CrashSite:
    """Describe how a thread died of signal `number`, from its stack and the mapped files."""
    death, memory = _death(number, address, sp, maps)
    if death == "abort" and _throws(stack, maps):
        death, memory = "thrown", "nothing caught the exception that it threw"
    return CrashSite(
        signal_name(number), thread, death, memory, _own_function(stack, maps),
        tuple(islice(host_lines(stack, maps), 2)), said,
    )  # fmt: skip


def _death(number: int, address: int, sp: int, maps: Sequence[Mapping]) -> tuple[Death, str]:
    place = mapping_at(address, maps)
    if number in (signal.SIGSEGV, signal.SIGBUS) and address < NULL_PAGE:
        return "null", f"it used a null pointer (address {address:#x})"
    if number == signal.SIGSEGV and sp and abs(address - sp) < NEAR_STACK:
        return "stack", "its stack is used up"
    if number == signal.SIGBUS and place is not None:
        at, path = address - place.start + place.offset, Path(place.path.removesuffix(" (deleted)"))
        now = f", which has {path.stat().st_size} bytes now" if path.is_file() else ""
        return "file", f"it read byte {at} of {path}{now}: the file was cut while it was mapped"
    if number in (signal.SIGSEGV, signal.SIGBUS) and address != NO_ACCESS:
        return "other", f"it used address {address:#x}"
    return ("abort" if number == signal.SIGABRT else "other"), ""


_OF_CXX = re.compile(r"^lib(?:stdc\+\+|c\+\+abi)")
_STANDARD = re.compile(r"_Z+N?[KVRO]*(?:S[tabsiod]|9__gnu_cxx)")  # symbols of the standard library


def _throws(stack: Sequence[int], maps: Sequence[Mapping]) -> bool:
    """Whether a C++ exception ended the process before anything caught it."""
    return any(name in ("__cxa_throw", "__cxa_rethrow") for name, _ in _functions(stack, maps, _OF_CXX.match))


def _own_function(stack: Sequence[int], maps: Sequence[Mapping]) -> str:
    """The innermost function outside torch, the system and the standard library, with its library."""
    own = list(_functions(stack, maps, lambda name: not FOREIGN.search(f"/{name}")))
    name, library = next((each for each in own if not _STANDARD.match(each[0])), (own or [("", "")])[0])
    return f"{_readable(name)} of {library}" if name else ""


def _functions(
    stack: Sequence[int], maps: Sequence[Mapping], wanted: Callable[[str], object]
) -> Iterator[tuple[str, str]]:
    """Yield function and library of the active calls in the wanted libraries, if symbols cover them."""
    for address in stack:
        place = mapping_at(address, maps)
        if place is not None and wanted(library_of(place.path)):
            name = function_at(Path(place.path), address - place.start + place.offset - 1)
            yield from [(name, library_of(place.path))] if name else []


def _readable(symbol: str) -> str:
    """The name in a mangled C++ symbol, without its arguments: `Decoder::decode`."""
    start = _NAMES_INSIDE.match(symbol)
    at, names = start.end() if start is not None else 0, []
    while at and (digits := re.match(r"\d+", symbol[at:])):
        end = at + digits.end() + int(digits[0])
        names.append(symbol[at + digits.end() : end])
        at = end
    return "::".join(names) or symbol


LARGEST_READ = 1 << 20  # bytes of memory at a time
NEXT = (
    "`gcore PID` writes the core file of a running process; after `ulimit -c unlimited`, a crash writes one"
)
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
FUTEX = "202"  # the system call that waits for a lock word


@dataclass(frozen=True)
class ThreadState:
    """A thread's position. `signal` ended the process, or is 0. `frame` is register rbp, if known.

    `waits` says in words what its system call waits for. `lock` is the address of the lock word if it waits
    for a futex, `forever` is True if it has no time limit. A thread that `computes` is outside any system
    call.
    """

    number: int
    pc: int
    sp: int
    frame: int | None = None
    signal: int = 0
    waits: str = ""
    lock: int = 0
    forever: bool = False
    computes: bool = False


@dataclass(frozen=True)
class Remains:
    """The threads, starting with the one that got the signal. `read` returns fewer bytes at memory gaps.

    `unknown` are threads of a live process that compute and could not be stopped to read their position.
    `address` is the memory address whose access killed the first thread, `said` the last message of libc.
    `is_cut` is True if the core file ends before its last page. `place` returns the offset of memory in the
    core file. None for a live process, and for memory that is not in the file.
    """

    threads: tuple[ThreadState, ...]
    maps: tuple[Mapping, ...]
    read: Callable[[int, int], bytes]
    unknown: tuple[int, ...] = ()
    is_cut: bool = False
    address: int = NO_ACCESS
    said: str = ""
    place: Callable[[int, int], int | None] = lambda _address, _count: None

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


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else ""


Awaited = Literal["instance", "gil", "mutex", "weights", "rwlock", "device", "openmp", "condition"]
OPENMP = re.compile(r"^lib(?:gomp|iomp5|omp)\b")
LIBC = re.compile(r"^lib(?:c|pthread)[-.]")
NAMED = re.compile(r"^(?:lib(?:gomp|iomp5|omp|c|pthread|cuda|cudart)\b|libstdc\+\+|(?:lib)?python)")
"""Libraries whose functions show what a thread waits for. Reading all others' symbols takes too long."""


@dataclass(frozen=True)
class Frame:
    """One active call: the name of its library, and the function, empty if no symbol covers it.

    `place` is its offset in the library's file if this is the package's own.
    """

    library: str
    function: str
    place: int | None = None


_ROWS: tuple[tuple[Awaited, re.Pattern[str], str], ...] = (
    ("instance", re.compile("reclaim_finished_models|get_available_model"), "a free instance of the model"),
    ("gil", re.compile("take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyGILState_Ensure"), "the GIL"),
    ("device", re.compile("^cu(?:da)?(?:Stream|Event|Device|Ctx)Synchronize"), "the device"),
    ("weights", re.compile("pthread_rwlock_"), "the lock of the weights"),
    ("mutex", re.compile("pthread_mutex_(?:lock|timedlock)|__lll_lock_wait"), "a mutex"),
)
"""What is awaited, by the innermost function that tells (model_container.h 2.8-2.15, CPython 3.10-3.14, CUDA
12-13, glibc 2.31-2.41)."""
_OTHER_LOCK: tuple[Awaited, str] = ("rwlock", "a read-write lock")  # a lock outside of the package
CONDITION: tuple[Awaited, str] = ("condition", "a condition variable that no thread is left to notify")
FUTURE: tuple[Awaited, str] = ("condition", "a result (std::future) that no thread is left to give")


def awaited(frames: Sequence[Frame], thread: ThreadState) -> tuple[Awaited, str] | None:
    """The kind of thing that a thread waits for, and words for it. None if unknown or nothing."""
    first = next((frame for frame in frames if not LIBC.match(frame.library)), None)
    for frame in frames:
        for kind, functions, words in _ROWS:
            if functions.search(frame.function) and (kind in _SPINS or not thread.computes):
                own = kind != "weights" or (first is not None and ".wrapper.so" in first.library)
                return (kind, words) if own else _OTHER_LOCK
    if first is not None and OPENMP.match(first.library):
        return "openmp", "the other threads of its OpenMP team"
    if any("__atomic_futex_unsigned_base" in frame.function for frame in frames):
        return FUTURE
    return CONDITION if any(frame.function.startswith("pthread_cond_") for frame in frames) else None


_SPINS = {"device"}  # waits that may use a whole core


# Bytes from the word that a thread waits for to the holder's id: from __lock to __owner, and from
# __wrphase_futex, __writers_futex or __readers to __cur_writer.
_OWNERS: dict[Awaited, tuple[int, ...]] = {"mutex": (8,), "weights": (16, 12, 24), "rwlock": (16, 12, 24)}


def holder(kind: Awaited, thread: ThreadState, remains: Remains) -> int | None:
    """The thread that a lock names as its holder. None if it names none.

    The layouts are those of glibc (struct_mutex.h, struct_rwlock.h, x86-64).
    """
    known = {each.number for each in remains.threads} | set(remains.unknown)
    for place in _OWNERS.get(kind, ()):
        raw = remains.read(thread.lock + place, 4) if thread.lock else b""
        if len(raw) == 4 and (number := struct.unpack("<i", raw)[0]) in known:
            return int(number)
    return None


def is_worker(libraries: Sequence[str]) -> bool:
    """Whether a thread, by the libraries of its calls, is an OpenMP worker in a kernel of another's call."""
    within = [number for number, name in enumerate(libraries) if ".wrapper.so" in name]
    return any(OPENMP.match(libraries[number + 1]) for number in within[-1:] if libraries[number + 1 :])


TEAM_BYTES = 256  # from the start of libgomp's gomp_team to the words of its barrier (GCC 9-15)
_TLS_BYTES = 1 << 16  # before the thread's control block, where libgomp keeps a pointer to the team
_MOST_STACK, _TID = 1 << 20, 0x2D0  # bytes of stack in use; the place of `tid` in struct pthread (x86-64)


def in_team(thread: ThreadState, barrier: int, remains: Remains) -> bool:
    """Whether a thread's local storage points to the OpenMP team with this barrier word (libgomp, glibc)."""
    start = thread.sp & ~63
    raw, own = remains.read(start, _MOST_STACK), struct.pack("<i", thread.number)
    for at in range(0, len(raw) - _TID - len(own), 64):
        block = struct.pack("<Q", start + at)  # the control block holds its own address twice
        if raw[at : at + 8] == block == raw[at + 16 : at + 24] and raw[at + _TID :].startswith(own):
            words = memoryview(raw)[max(0, at - _TLS_BYTES) : at].cast("Q")
            return any(0 <= barrier - word < TEAM_BYTES for word in words)
    return False


def deadlocked(waits: Map[int, Collection[int]]) -> list[int]:
    """The threads that can never go on: each waits for threads that cannot go on either.

    `waits` maps each waiting thread to the holders of what it needs. A thread can go on if one of its holders
    can.
    """
    stuck = {thread for thread, holders in waits.items() if holders}
    while free := {thread for thread in stuck if not set(waits[thread]) <= stuck}:
        stuck -= free
    return sorted(stuck)


def library_of(path: str) -> str:
    """The name of a mapped file without its folder."""
    return PurePosixPath(path.removesuffix(" (deleted)")).name


def runs_python(frames: Iterable[Frame]) -> bool:
    """Whether Python code is among the active calls."""
    return any(frame.library.startswith(("python", "libpython")) for frame in frames)
