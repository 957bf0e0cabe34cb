"""Lists the active calls of a thread, using its libraries' call frame information (.eh_frame, x86-64).

Searching the stack for return addresses would also find calls that have ended, and so a wrong launch. For a
library that is not on this machine, the frame pointers are followed, which generated code keeps.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.callframe import CallFrameInfo, RegisterRule
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

from mcp_server.recorder.remains import Remains, Segments, ThreadState, address_of, segments_of

DEEPEST = 96  # frames that are followed
LARGEST = 64 << 20  # bytes of one library's frame information
MOST_LIBRARIES = 256
MOST_SECTIONS = 4096
LONGEST_ENTRY = 1 << 12  # bytes of the rules for one function; all but 2 of libtorch_cpu's have fewer
MOST_RULES = 1 << 20  # bytes of rules that are decoded in total
RBP, RSP, RIP = 6, 7, 16  # DWARF register numbers (System V ABI, AMD64)
_TABLE = 0x3B, 0x03, 0x1B  # the encodings that every linker writes: data-relative and pc-relative, 4 bytes
_CONTEXT, _SAVED = 40, {RBP: 10, RSP: 15, RIP: 16}  # in a signal frame: ucontext_t.uc_mcontext.gregs
_ARGS_SIZE = 0x2E  # DW_CFA_GNU_args_size: says nothing of the caller, and elftools 0.33 rejects it
_STRUCTS = DWARFStructs(little_endian=True, dwarf_format=32, address_size=8)
_EXPRESSIONS = DWARFExprParser(_STRUCTS)
# What elftools raises for rules that it cannot decode, and Python for contents that lie about their size.
_DAMAGED = (ELFError, DWARFError, AssertionError, struct.error, LookupError, ValueError, TypeError)
Registers = dict[int, int]


class UnknownFrameError(Exception):
    """The frame information does not say how to leave a function."""


@dataclass(frozen=True)
class _Information:
    """A library's frame information: the sorted table of its functions, their `rules`, and its segments."""

    header: bytes
    header_address: int
    rules: bytes
    frames: CallFrameInfo
    segments: Segments
    entries: dict[int, Any] = field(default_factory=dict)  # decoded rules, by place

    def place_of(self, pc: int) -> int:
        """Find the rules that may cover `pc` in the header's table. Raise `UnknownFrameError` if none may."""
        raw, at = self.header, self.header_address
        if len(raw) < 12 or (raw[3], raw[2], raw[1]) != _TABLE:
            raise UnknownFrameError
        (count,) = struct.unpack_from("<I", raw, 8)

        def begin(number: int) -> int:
            found: int = struct.unpack_from("<i", raw, 12 + 8 * number)[0] + at
            return found

        number = bisect_right(range(min(count, (len(raw) - 12) // 8)), pc, key=begin)
        if not number:
            raise UnknownFrameError
        found: int = struct.unpack_from("<i", raw, 8 + 8 * number)[0] + at - self.frames.address
        return found

    def size_of(self, place: int) -> int:
        """The bytes of the rules at `place` with those that they share. They may be damaged."""
        own, back = struct.unpack_from("<II", self.rules, place)
        (shared,) = struct.unpack_from("<I", self.rules, place + 4 - back)
        return int(own + shared)


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
            rules = frames.data()
            read = CallFrameInfo(BytesIO(rules), len(rules), frames["sh_addr"], _STRUCTS, for_eh_frame=True)
            return _Information(header.data(), header["sh_addr"], rules, read, segments_of(elf))
    except (ELFError, OSError, ValueError, KeyError, AttributeError):
        return None


@dataclass
class Unwinder:
    """Follows a thread's calls. `file_of` maps the path of a mapped file to the file to read."""

    remains: Remains
    file_of: Callable[[str], Path]
    _known: dict[Path, _Information | None] = field(default_factory=dict)
    _rules: int = 0  # bytes of rules decoded so far

    def addresses(self, thread: ThreadState) -> list[int]:
        """The thread's position, then its return addresses, until one cannot be found."""
        registers = {RSP: thread.sp, RIP: thread.pc}
        if thread.frame is not None:
            registers[RBP] = thread.frame
        found = [thread.pc]
        while len(found) < DEEPEST:
            try:
                caller = self._caller(registers, is_first=len(found) == 1)
            except (UnknownFrameError, *_DAMAGED):
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
        row, is_signal = self._row(information, address - (not is_first))
        if is_signal:
            base = registers[RSP] + _CONTEXT
            return {number: self._word(base + 8 * place) for number, place in _SAVED.items()}
        rule = row.pop("cfa")
        cfa = self._value(rule.expr, registers) if rule.expr else registers[rule.reg] + rule.offset
        caller = {**registers, RSP: cfa}
        for register, saved in row.items():
            if saved.type == RegisterRule.OFFSET:
                caller[register] = self._word(cfa + saved.arg)
            elif saved.type == RegisterRule.EXPRESSION:
                caller[register] = self._word(self._value(saved.arg, registers))
        if RIP not in row:
            raise UnknownFrameError
        return {**caller, RSP: cfa}

    def _row(self, information: _Information, pc: int) -> tuple[dict[Any, Any], bool]:
        """The rules at `pc` by register, with the CFA's, and whether signals return through it."""
        place = information.place_of(pc)
        if place not in information.entries:
            size = information.size_of(place)
            self._rules += size
            if size > LONGEST_ENTRY or self._rules > MOST_RULES:
                raise UnknownFrameError
            found = information.frames._parse_entry_at(place)
            found.instructions = [each for each in found.instructions if each.opcode != _ARGS_SIZE]
            information.entries[place] = found
        entry = information.entries[place]
        begin = entry["initial_location"]
        if not begin <= pc < begin + entry["address_range"]:
            raise UnknownFrameError
        *_, row = (each for each in entry.get_decoded().table if each["pc"] <= pc)
        return {name: rule for name, rule in row.items() if name != "pc"}, b"S" in entry.cie["augmentation"]

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

    def _value(self, expression: list[int], registers: Registers) -> int:
        """Evaluate DW_OP_breg and DW_OP_deref, which describe the CFA of functions that align their stack."""
        value = 0
        for operation in _EXPRESSIONS.parse_expr(expression):
            if operation.op_name.startswith("DW_OP_breg"):
                value = registers[int(operation.op_name.removeprefix("DW_OP_breg"))] + operation.args[0]
            elif operation.op_name == "DW_OP_deref":
                value = self._word(value)
            else:
                raise UnknownFrameError
        return value
