"""Lists the active calls of a thread, using its libraries' call frame information (.eh_frame, x86-64).

Searching the stack for return addresses would also find calls that have ended, and so a wrong launch. For a
library that is not on this machine, the frame pointers are followed, which generated code keeps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mcp_server.recorder.remains import Remains, Segments, ThreadState, address_of, segments_of

DEEPEST = 96  # frames that are followed
LARGEST = 64 << 20  # bytes of one library's frame information
MOST_LIBRARIES = 256
MOST_SECTIONS = 4096
LONGEST_ENTRY = 1 << 16  # bytes of the rules for one function
MOST_STEPS = 4_000_000  # instructions followed in total, a few seconds
MOST_KEPT = 64  # rows that a program saves
MOST_REGISTERS = 128
LONGEST_NUMBER = 70  # bits
RBP, RSP, RIP = 6, 7, 16  # DWARF register numbers (System V ABI, AMD64)
_TABLE = 0x3B, 0x03, 0x1B  # the encodings that every linker writes: data-relative and pc-relative, 4 bytes
_CONTEXT, _SAVED = 40, {RBP: 10, RSP: 15, RIP: 16}  # in a signal frame: ucontext_t.uc_mcontext.gregs
Registers = dict[int, int]


class UnknownFrameError(Exception):
    """The frame information does not say how to leave a function."""


@dataclass
class _Row:
    """How to find the caller's registers. The CFA is a register and offset, or an expression."""

    register: int = RSP
    offset: int = 8
    expression: bytes = b""
    saved: dict[int, int | bytes] = field(default_factory=dict)  # offset from the CFA, or an expression

    def copy(self) -> _Row:
        return _Row(self.register, self.offset, self.expression, dict(self.saved))


class _Bytes:
    """A cursor over frame information."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self, form: str) -> int:
        found: int = struct.unpack_from(f"<{form}", self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return found

    def leb(self, *, signed: bool = False) -> int:
        value = shift = 0
        byte = 0x80
        while byte & 0x80:
            if shift > LONGEST_NUMBER:
                raise UnknownFrameError
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
        return value - (1 << shift) if signed and byte & 0x40 else value

    def block(self) -> bytes:
        size = self.leb()
        self.at += size
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found = self.data[self.at : end].decode("ascii", "replace")
        self.at = end + 1
        return found


@dataclass(frozen=True)
class _Information:
    """A library's frame information with its addresses, and the library's loaded segments."""

    header: bytes
    header_address: int
    frames: bytes
    frames_address: int
    segments: Segments


def _information(library: Path) -> _Information | None:
    try:
        # A path from a core file may be a device or a pipe on this machine; files of /proc have no size.
        if not library.is_file() or not library.stat().st_size:
            return None
        with library.open("rb") as file:
            elf = ELFFile(file)
            if elf.num_sections() > MOST_SECTIONS:
                return None
            header, frames = elf.get_section_by_name(".eh_frame_hdr"), elf.get_section_by_name(".eh_frame")
            if header is None or frames is None or header["sh_size"] + frames["sh_size"] > LARGEST:
                return None
            return _Information(
                header.data(),
                header["sh_addr"],
                frames.data(),
                frames["sh_addr"],
                segments_of(elf),
            )
    except (ELFError, OSError, ValueError, KeyError, AttributeError):
        return None


def _entry(information: _Information, pc: int) -> int | None:
    """Find the entry that may cover `pc` in the header's sorted table; return its offset, or None."""
    raw, at = information.header, information.header_address
    if len(raw) < 12 or (raw[3], raw[2], raw[1]) != _TABLE:
        return None
    (count,) = struct.unpack_from("<I", raw, 8)
    low, high = 0, min(count, (len(raw) - 12) // 8)
    while low < high:
        middle = (low + high) // 2
        if struct.unpack_from("<i", raw, 12 + 8 * middle)[0] + at <= pc:
            low = middle + 1
        else:
            high = middle
    if not low:
        return None
    found: int = struct.unpack_from("<i", raw, 12 + 8 * low - 4)[0] + at - information.frames_address
    return found


def _row_of(information: _Information, pc: int, steps: Iterator[int]) -> tuple[_Row, bool]:
    """Return the rules at `pc`, and whether signals return through the function."""
    place = _entry(information, pc)
    if place is None:
        raise UnknownFrameError
    entry = _Bytes(information.frames, place)
    end = entry.number("I") + entry.at
    common = entry.at - entry.number("I")
    begin = information.frames_address + entry.at
    begin += entry.number("i")
    if not begin <= pc < begin + entry.number("I"):
        raise UnknownFrameError
    head = _Bytes(information.frames, common)
    head_end = head.number("I") + head.at
    head.at += 4
    head.number("B")
    augmentation = head.text()
    code, data = head.leb(), head.leb(signed=True)
    head.leb()
    if augmentation.startswith("z"):
        head.block()
        entry.block()
    if end - place > LONGEST_ENTRY or head_end - common > LONGEST_ENTRY:
        raise UnknownFrameError
    program = _Program(code, data, pc - begin, steps)
    program.run(_Bytes(information.frames[: min(head_end, len(information.frames))], head.at))
    program.first = program.row.copy()
    program.run(_Bytes(information.frames[: min(end, len(information.frames))], entry.at))
    return program.row, "S" in augmentation


class _Program:
    """Runs call frame instructions (DWARF 5, 6.4.2) up to a position in the function."""

    def __init__(self, code: int, data: int, wanted: int, steps: Iterator[int]) -> None:
        self.code, self.data, self.wanted, self.steps = code, data, wanted, steps
        self.here, self.row, self.first = 0, _Row(), _Row()
        self.kept: list[_Row] = []

    def run(self, program: _Bytes) -> None:
        while program.at < len(program.data):
            if next(self.steps, None) is None or len(self.row.saved) > MOST_REGISTERS:
                raise UnknownFrameError
            if not self._step(program):
                return

    def _step(self, program: _Bytes) -> bool:
        byte = program.number("B")
        kind, low = byte & 0xC0, byte & 0x3F
        if kind == 0x40:
            return self._advance(low)
        if kind == 0x80:
            self.row.saved[low] = program.leb() * self.data
        elif kind == 0xC0:
            self._restore(low)
        else:
            return self._other(low, program)
        return True

    def _advance(self, steps: int) -> bool:
        self.here += steps * self.code
        return self.here <= self.wanted

    def _restore(self, register: int) -> None:
        self.row.saved.pop(register, None)
        if register in self.first.saved:
            self.row.saved[register] = self.first.saved[register]

    def _other(self, low: int, program: _Bytes) -> bool:
        row = self.row
        match low:
            case 0x00:
                pass
            case 0x02 | 0x03 | 0x04:
                return self._advance(program.number({2: "B", 3: "H", 4: "I"}[low]))
            case 0x05:
                register = program.leb()
                row.saved[register] = program.leb() * self.data
            case 0x06:
                self._restore(program.leb())
            case 0x07 | 0x08:
                row.saved.pop(program.leb(), None)
            case 0x0A if len(self.kept) < MOST_KEPT:
                self.kept.append(row.copy())
            case 0x0B if self.kept:
                self.row = self.kept.pop()
            case 0x0C:
                row.register, row.offset, row.expression = program.leb(), program.leb(), b""
            case 0x0D:
                row.register, row.expression = program.leb(), b""
            case 0x0E:
                row.offset = program.leb()
            case 0x0F:
                row.expression = program.block()
            case 0x10:
                register = program.leb()
                row.saved[register] = program.block()
            case 0x2E:
                program.leb()
            case _:
                raise UnknownFrameError
        return True


@dataclass(frozen=True)
class Unwinder:
    """Follows a thread's calls. `file_of` maps the path of a mapped file to the file to read."""

    remains: Remains
    file_of: Callable[[str], Path]
    _known: dict[Path, _Information | None] = field(default_factory=dict)
    _steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))

    def addresses(self, thread: ThreadState) -> list[int]:
        """Return the thread's position, then its return addresses, until one cannot be found."""
        registers = {RSP: thread.sp, RIP: thread.pc}
        if thread.frame is not None:
            registers[RBP] = thread.frame
        found = [thread.pc]
        while len(found) < DEEPEST:
            try:
                caller = self._caller(registers, is_first=len(found) == 1)
            except (UnknownFrameError, struct.error, IndexError, ValueError, KeyError):
                caller = self._by_frame_pointer(registers)
            if not caller.get(RIP) or caller[RSP] <= registers[RSP]:
                break
            registers = caller
            found.append(registers[RIP])
        return found

    def _caller(self, registers: Registers, *, is_first: bool) -> Registers:
        pc = registers[RIP]
        mapping = self.remains.mapping(pc)
        information = self._information(mapping.path) if mapping is not None else None
        if mapping is None or information is None:
            raise UnknownFrameError
        # Look up the call and not the return address: the call may be the function's last instruction.
        address = address_of(pc - mapping.start + mapping.offset, information.segments)
        if address is None:
            raise UnknownFrameError
        row, is_signal = _row_of(information, address - (not is_first), self._steps)
        if is_signal:
            base = registers[RSP] + _CONTEXT
            return {number: self._word(base + 8 * place) for number, place in _SAVED.items()}
        cfa = (
            self._value(row.expression, registers) if row.expression else registers[row.register] + row.offset
        )
        caller = dict(registers)
        for register, where in row.saved.items():
            place = cfa + where if isinstance(where, int) else self._value(where, registers)
            caller[register] = self._word(place)
        caller[RSP] = cfa
        if RIP not in row.saved:
            raise UnknownFrameError
        return caller

    def _information(self, path: str) -> _Information | None:
        file = self.file_of(path)
        if file not in self._known:
            self._known[file] = _information(file) if len(self._known) < MOST_LIBRARIES else None
        return self._known[file]

    def _by_frame_pointer(self, registers: Registers) -> Registers:
        frame = registers.get(RBP, 0)
        raw = self.remains.read(frame, 16) if frame > registers[RSP] else b""
        if len(raw) < 16:
            return {}
        outer, address = struct.unpack("<QQ", raw)
        return {RBP: outer, RSP: frame + 16, RIP: address}

    def _word(self, address: int) -> int:
        found: int = struct.unpack("<Q", self.remains.read(address, 8))[0]
        return found

    def _value(self, expression: bytes, registers: Registers) -> int:
        """Evaluate DW_OP_breg and DW_OP_deref, which describe the CFA of functions that align their stack."""
        cursor, value = _Bytes(expression), 0
        while cursor.at < len(expression):
            operation = cursor.number("B")
            if next(self._steps, None) is None:
                raise UnknownFrameError
            if 0x70 <= operation <= 0x80:
                value = registers[operation - 0x70] + cursor.leb(signed=True)
            elif operation == 0x06:
                value = self._word(value)
            else:
                raise UnknownFrameError
        return value
