"""Source lines of return addresses: where the host calls the package, as its debug information says."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

_MAP = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ (?P<offset>[0-9a-f]+) \S+ \S+ +(?P<path>/.*)$",
    re.MULTILINE,
)
# Libraries that lie between a host and its package.
FOREIGN = re.compile(
    r"/(?:lib(?:torch|c10|gomp|iomp|stdc\+\+|c\.so|c-|pthread|gcc_s|python)[^/]*|librecorder\.so|[^/]*\.wrapper\.so(?:\.orig)?"
    r"|ld-linux[^/]*|_C\.[^/]*)$"
)
LARGEST = 1 << 30  # bytes of a file whose debug information is read
NEAR = 400  # rows of a line table that are searched for a line of another file
SYSTEM = ("/usr/include/", "/usr/lib/")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A part of a file in the memory of the process."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True)
class SourceLine:
    file: str
    line: int
    binary: Path


def read_maps(text: str) -> tuple[Mapping, ...]:
    """The mapped files in the text of /proc/PID/maps."""
    return tuple(
        Mapping(int(m["start"], 16), int(m["end"], 16), int(m["offset"], 16), m["path"])
        for m in _MAP.finditer(text)
    )


def host_lines(stack: Sequence[int], maps: Sequence[Mapping]) -> Iterator[SourceLine]:
    """The lines of the host on the way to the package, innermost first; none without debug information."""
    for address in stack:
        place = next((each for each in maps if each.start <= address < each.end), None)
        if place is None or FOREIGN.search(place.path) or place.path.endswith(" (deleted)"):
            continue
        found = line_at(
            Path(place.path), address - place.start + place.offset - 1
        )  # of the call, not after it
        if found is not None and not found.file.startswith(SYSTEM):
            yield found


def line_at(binary: Path, offset: int, suffixes: tuple[str, ...] = ("",)) -> SourceLine | None:
    """The line of the code at `offset` bytes of a file; None where nothing says it.

    Of files with one of the `suffixes`: the nearest such line before, for code inlined from a header.
    """
    try:
        if not binary.is_file() or binary.stat().st_size > LARGEST:
            return None
        table = _lines(binary, binary.stat().st_mtime_ns)
    except (ELFError, DWARFError, OSError, ValueError, KeyError, AttributeError, IndexError):
        return None
    address = next(
        (offset - at + start for at, size, start in table.segments if at <= offset < at + size), None
    )
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
    """Place in the file, size and name of the functions, in order; empty where it cannot be read."""
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
    """The function whose code holds `offset` bytes of a file; empty where no symbol says it."""
    known = functions_of(binary)
    number = bisect_right(known, (offset, 1 << 62, "")) - 1
    if number < 0 or offset >= known[number][0] + known[number][1]:
        return ""
    return known[number][2]


@dataclass(frozen=True)
class _Table:
    segments: list[tuple[int, int, int]]  # offset, size, address
    addresses: list[int]
    rows: list[tuple[str, int] | None]  # None: the end of a sequence


@lru_cache(maxsize=8)
def _lines(binary: Path, _changed: int) -> _Table:
    with binary.open("rb") as file:
        elf = ELFFile(file)
        segments = [
            (s["p_offset"], s["p_filesz"], s["p_vaddr"])
            for s in elf.iter_segments()
            if s["p_type"] == "PT_LOAD"
        ]
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
