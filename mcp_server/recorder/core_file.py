"""Reads a Linux core file on x86-64, and takes its open calls as a recording.

Threads, mapped files and dumped pages come from the core file's notes and segments (`open_core`). Every size
and count in the file is checked against the possible range before it is used.

A host keeps the inputs of a call in a std::vector<at::Tensor> until the call returns, in their order. Words
on the stack of the calling thread lead to it (`MemoryReader`). A possible vector counts only if each element
has the virtual table of TensorImpl, and sizes that agree with its number of elements.
"""

from __future__ import annotations

import math
import os
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mcp_server.errors import ProblemError
from mcp_server.logs.journal import DEVICES, DTYPES
from mcp_server.package.archive import Package
from mcp_server.package.signature import CompiledInput
from mcp_server.package.terms.term import itemsize_of
from mcp_server.recorder.package import LoadedLibrary
from mcp_server.recorder.remains import (
    FUTEX,
    LARGEST_READ,
    LIBC,
    MOST_LOOKED_AT,
    NEXT,
    NO_ACCESS,
    WAITS,
    Mapping,
    Remains,
    ThreadState,
    is_worker,
    library_of,
)
from mcp_server.recorder.ring import (
    MOST_DIM,
    MOST_INPUTS,
    Bytes,
    Crash,
    RecordedCall,
    RecordedInput,
    RecordedModel,
    Recording,
)

MOST_SEGMENTS = 1 << 20
LARGEST_NOTES = 64 << 20  # bytes of all notes; a thread has about 12,000
MOST_NOTES = 1 << 18
MOST_FILES = 1 << 18  # four times what a process may map by default (vm.max_map_count)
LONGEST_PATH = 4096  # PATH_MAX
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_NOTE = struct.Struct("<III")  # Elf64_Nhdr
_FILES = struct.Struct("<QQ")  # fill_files_note, linux/fs/binfmt_elf.c
_FILE = struct.Struct("<QQQ")
_ACCESS = struct.Struct("<iii4xQ")  # siginfo_t: si_signo, si_errno, si_code, si_addr
_CORE, _X86_64, _LOAD, _NOTES, _MANY_SEGMENTS = 4, 62, 1, 4, 0xFFFF
_PRSTATUS, _FILE_NOTE, _SIGINFO = 1, 0x46494C45, 0x53494749
_NAMES = {_PRSTATUS: "NT_PRSTATUS", _FILE_NOTE: "NT_FILE", _SIGINFO: "NT_SIGINFO"}
_MACHINES = {3: "x86", 8: "MIPS", 21: "PowerPC", 22: "s390", 40: "ARM", 183: "AArch64", 243: "RISC-V"}
REGISTERS = struct.Struct("<27Q")  # user_regs_struct, sys/user.h
RBP, RDI, CALL, RIP, RSP = 4, 14, 15, 16, 19  # CALL: the number of the system call, or -1
_AT_SIGNAL, _AT_THREAD, _AT_REGISTERS = 12, 32, 112  # elf_prstatus, linux/elfcore.h
_ALLOWED = "a core file of a Linux process on x86-64 (ELF type ET_CORE)"


@dataclass
class _Core:
    """State of the reader."""

    path: Path
    file: BinaryIO
    size: int
    threads: list[ThreadState] = field(default_factory=list)
    maps: list[Mapping] = field(default_factory=list)
    pages: list[tuple[int, int, int]] = field(default_factory=list)  # address, bytes, offset in the file
    notes = note_bytes = 0
    is_cut = False
    address = NO_ACCESS

    def read(self, place: int, count: int, what: str) -> bytes:
        """Read `count` bytes at `place`. Raise `ProblemError` if the file ends before them."""
        if place + count > self.size:
            raise self.damaged(
                f"it is cut off: {what} end behind the file", f"byte {place + count}", f"{self.size} bytes"
            )
        self.file.seek(place)
        return self.file.read(count)

    def damaged(self, what: str, value: str, allowed: str) -> ProblemError:
        return ProblemError(
            f"the core file cannot be read: {what} ({value})",
            value=str(self.path),
            allowed=allowed,
            next_call=NEXT,
        )


def is_core(path: Path) -> bool:
    """Whether the path is a file that begins like a core file."""
    try:
        with path.open("rb") as file:
            return file.read(18)[16:] == b"\x04\0" and path.is_file()
    except OSError:
        return False


@contextmanager
def open_core(path: Path) -> Iterator[Remains]:
    """Open a core file. Raise `ProblemError` if it is another kind of file, damaged or cut off."""
    if not path.is_file():
        raise ProblemError("no such core file", value=str(path), allowed=_ALLOWED, next_call=NEXT)
    try:
        file = path.open("rb")
    except OSError as error:
        what = f"the core file cannot be read ({error.strerror})"
        raise ProblemError(what, value=str(path), allowed="a file that this user may read") from error
    with file:
        yield _remains(_Core(path, file, os.fstat(file.fileno()).st_size))


def _remains(core: _Core) -> Remains:
    for kind, place, address, count in _segments(core):
        if kind == _LOAD:
            there = max(0, min(count, core.size - place))
            core.is_cut |= there < count
            core.pages.append((address, there, place))
        elif kind == _NOTES:
            core.note_bytes += count
            if core.note_bytes > LARGEST_NOTES:
                raise core.damaged("it has too many notes", f"{core.note_bytes} bytes", f"{LARGEST_NOTES}")
            _read_notes(core, core.read(place, count, "its notes"), place)
    if not core.threads:
        raise core.damaged("it has no thread", f"{core.notes} notes", "a note NT_PRSTATUS for each thread")
    core.pages.sort()
    return Remains(
        tuple(core.threads),
        tuple(core.maps),
        lambda at, count: _dumped(core, at, count),
        is_cut=core.is_cut,
        address=core.address,
        said=_last_words(core),
        place=lambda at, count: _place(core, at, count),
    )


def _segments(core: _Core) -> Iterator[tuple[int, int, int, int]]:
    """Yield type, file offset, address and size of each segment."""
    _, _, _, _, _, place, sections, _, _, each, count, *_ = _header(core)
    if count == _MANY_SEGMENTS:  # too many for the header: sh_info of the first section has the number
        (count,) = struct.unpack("<I", core.read(sections + 44, 4, "its sections"))
    if count > MOST_SEGMENTS or each != _SEGMENT.size:
        raise core.damaged(
            "it is damaged: its segments", f"{count} of {each} bytes", f"{MOST_SEGMENTS} of {_SEGMENT.size}"
        )
    raw = core.read(place, count * each, "its segments")
    for kind, _, at, address, _, size, _, _ in _SEGMENT.iter_unpack(raw):
        yield kind, at, address, size


def _header(core: _Core) -> tuple[int, ...]:
    start = core.file.read(_HEADER.size)
    if start[:4] != b"\x7fELF":
        raise core.damaged("it is not an ELF file", f"first bytes {start[:4]!r}", _ALLOWED)
    if len(start) < _HEADER.size:
        raise core.damaged("it is cut off", f"{len(start)} bytes", _ALLOWED)
    header = _HEADER.unpack(start)
    machine = "x86-64" if header[2] == _X86_64 else _MACHINES.get(header[2], f"machine {header[2]}")
    found = f"ELF type {header[1]} of {machine}"
    if wide := start[4:6] != b"\2\1":
        found = f"{'64' if start[4] == 2 else '32'} bits, {'little' if start[5] == 1 else 'big'} endian"
    if wide or header[1:3] != (_CORE, _X86_64):
        raise ProblemError("this is not an x86-64 core file", value=f"{core.path}: {found}", allowed=_ALLOWED)
    return header


def _read_notes(core: _Core, raw: bytes, place: int) -> None:
    """Read the threads and mapped files from a segment of notes."""
    at = 0
    while at < len(raw):
        core.notes += 1
        left = len(raw) - at - _NOTE.size
        if core.notes > MOST_NOTES:
            raise core.damaged("it has too many notes", f"note {core.notes}", f"{MOST_NOTES} notes")
        if left < 0:
            raise core.damaged(
                "it ends in the middle of a note", f"note {core.notes} at byte {place + at}", "12 bytes"
            )
        named, size, kind = _NOTE.unpack_from(raw, at)
        name = f"note {core.notes} ({_NAMES.get(kind, f'type {kind:#x}')}) at byte {place + at}"
        if named > left or -(-named // 4) * 4 + size > left:
            raise core.damaged(
                f"a note is larger than its segment: {name}",
                f"n_namesz {named}, n_descsz {size}",
                f"{left} bytes together, as many as its segment still has",
            )
        start = at + _NOTE.size
        begin = start + -(-named // 4) * 4
        if raw[start : start + named].rstrip(b"\0") == b"CORE":
            _keep(core, kind, raw[begin : begin + size], name)
        at = begin + -(-size // 4) * 4


def _keep(core: _Core, kind: int, raw: bytes, name: str) -> None:
    if kind == _PRSTATUS:
        if len(raw) < _AT_REGISTERS + REGISTERS.size:
            raise core.damaged(
                f"a thread has no registers: {name}",
                f"n_descsz {len(raw)}",
                f"{_AT_REGISTERS + REGISTERS.size} bytes or more",
            )
        core.threads.append(_thread(raw))
    elif kind == _FILE_NOTE:
        core.maps += _files(core, raw, name)
    elif kind == _SIGINFO and len(raw) >= _ACCESS.size:
        *_, code, core.address = _ACCESS.unpack_from(raw)
        core.address = core.address if code > 0 else NO_ACCESS


def _thread(raw: bytes) -> ThreadState:
    registers = REGISTERS.unpack_from(raw, _AT_REGISTERS)
    (number,) = struct.unpack_from("<i", raw, _AT_THREAD)
    (received,) = struct.unpack_from("<h", raw, _AT_SIGNAL)
    call = str(registers[CALL])
    return ThreadState(
        number,
        registers[RIP],
        registers[RSP],
        registers[RBP],
        received,
        WAITS.get(call, ""),
        registers[RDI] if call == FUTEX else 0,
    )


def _files(core: _Core, raw: bytes, name: str) -> list[Mapping]:
    count, unit = _FILES.unpack_from(raw) if len(raw) >= _FILES.size else (1, 1)
    # Each file has three numbers, and a name of at least one byte, its terminator.
    most = max(0, min((len(raw) - _FILES.size) // (_FILE.size + 1), MOST_FILES - len(core.maps)))
    if count > most:
        raise core.damaged(
            f"a note says that more files were mapped than it can hold: {name}", f"{count} files", f"{most}"
        )
    end = _FILES.size + count * _FILE.size
    names = raw[end:].split(b"\0", count)[:-1]
    if len(names) < count:
        raise core.damaged(
            f"a note of the mapped files has too few names: {name}", f"{len(names)} of {count} names", "all"
        )
    entries = _FILE.iter_unpack(raw[_FILES.size : end])
    return [
        Mapping(start, stop, pages * unit, path[:LONGEST_PATH].decode("utf-8", "replace"))
        for (start, stop, pages), path in zip(entries, names, strict=True)
    ]


def _place(core: _Core, address: int, count: int) -> int | None:
    """The offset of memory in the file. None if the file does not have all of it in one piece."""
    number = bisect_right(core.pages, (address, 1 << 64, 0)) - 1
    if number < 0:
        return None
    start, there, offset = core.pages[number]
    return offset + address - start if address + count <= start + there else None


def _dumped(core: _Core, address: int, count: int) -> bytes:
    number = bisect_right(core.pages, (address, 1 << 64, 0)) - 1
    left = min(count, LARGEST_READ, sum(core.pages[number][:2]) - address) if number >= 0 else 0
    offset = _place(core, address, left) if left > 0 else None
    if offset is None:
        return b""
    try:
        core.file.seek(offset)
        return core.file.read(left)
    except OSError:
        return b""


LONGEST_SAID = 200


def _last_words(core: _Core) -> str:
    """The message of an abort, which glibc keeps in memory. Empty if there is none."""
    mapped = next((m for m in core.maps if m.offset == 0 and LIBC.match(library_of(m.path))), None)
    found = _symbols(Path(mapped.path), [_MESSAGE]) if mapped is not None else {}
    if mapped is None or not found:
        return ""
    pointer = _dumped(core, mapped.start + found[_MESSAGE], 8)
    text = _dumped(core, int.from_bytes(pointer, "little") + 4, LONGEST_SAID) if any(pointer) else b""
    return text.partition(b"\0")[0].decode("utf-8", "replace").strip()


_MESSAGE = "__abort_msg"  # struct abort_msg_s: its size, then the text (glibc 2.31-2.41)


MOST_CALLS = 8  # threads whose inputs are searched for, the one with the signal first
MODE = "core"
STACK = 256 << 10  # bytes of the stack to search
LARGEST_VECTOR = 64  # unused elements that a vector may have room for
LARGEST_TENSOR = 1 << 40  # bytes
_PAGE = 4096
_INLINE = 5  # dimensions that are stored in the tensor itself

# c10::TensorImpl and c10::StorageImpl (torch 2.8-2.15): the place of each field, in bytes. The field before
# the sizes, PyObjectSlot, has 16 bytes up to 2.9 and 8 later: `_SIZES` has both places.
_STORAGE, _SIZES = 16, (56, 64)
_DATA, _BYTES = 16, 48  # in StorageImpl
_OFFSET, _NUMEL, _DTYPE, _DEVICE = 88, 96, 104, 106  # bytes from the sizes
_TENSOR = 64 + _DEVICE + 8
_TABLES = {"tensor": "_ZTVN3c1010TensorImplE", "storage": "_ZTVN3c1011StorageImplE"}


def calls_of_core(path: Path, package: Package, library: Path) -> Recording:
    """Read the open calls of the package. Raise `ProblemError` if the core file cannot be read.

    `library` is its original library. The recording has no call if no thread was in the package.
    """
    with open_core(path) as remains:
        loaded = LoadedLibrary(library, remains)
        loaded.check_loaded()
        build_id = next(iter(loaded.build_ids), "")
        reader = MemoryReader(path, remains)
        calls: list[RecordedCall] = []
        first = remains.threads[0]
        died = tuple(loaded.unwinder.addresses(first)) if first.signal else ()
        for thread in remains.threads[:MOST_LOOKED_AT]:
            stack = loaded.unwinder.addresses(thread) if len(calls) < MOST_CALLS else []
            paths = [m.path for at in stack if (m := remains.mapping(at)) is not None]
            inside = any(map(loaded.is_at, paths)) and not is_worker([library_of(each) for each in paths])
            if inside or reader.ended_with_inputs(thread, package.inputs):
                calls.append(_call(thread, tuple(stack), package, reader))
    maps = "".join(f"{m.start:x}-{m.end:x} r-xp {m.offset:x} 00:00 0 {m.path}\n" for m in remains.maps)
    return Recording(
        path, first.number, 0, False, MODE, 0, (RecordedModel(library.name, build_id, 0),), tuple(calls),
        Crash(first.signal, remains.address, first.number, first.sp, died, remains.said)
        if first.signal
        else None,
        maps=maps,
    )  # fmt: skip


def _call(
    thread: ThreadState, stack: tuple[int, ...], package: Package, reader: MemoryReader
) -> RecordedCall:
    inputs = reader.inputs_of(thread, package.inputs)
    return RecordedCall(
        0, 0, thread.number, 0, 0, None, None, 0, None,
        any(each.device.startswith("cuda") for each in inputs), len(package.inputs), tuple(inputs), stack,
    )  # fmt: skip


@dataclass(frozen=True)
class MemoryReader:
    """Reads tensors from the memory in a core file."""

    core: Path
    remains: Remains

    def inputs_of(self, thread: ThreadState, signature: Sequence[CompiledInput]) -> list[RecordedInput]:
        """The inputs of the thread's call, in their order. Empty if they are not found."""
        count = len(signature)
        if not 0 < count <= MOST_INPUTS or not all(self._tables.values()):
            return []
        best: list[RecordedInput] = []
        for vector in self._vectors(thread, count):
            tensors = [self._tensor(address) for address in vector]
            found = [each for each in tensors if each is not None]
            if len(found) == count and _fit(found, signature) > _fit(best, signature):
                best = found
        return best

    def ended_with_inputs(self, thread: ThreadState, signature: Sequence[CompiledInput]) -> bool:
        """Whether a thread got the signal, and tensors like the package's inputs are in its memory.

        At least half of their dtypes and ranks must fit. After an uncaught exception, the frames of a call in
        the package are gone, but its inputs are still there.
        """
        found = self.inputs_of(thread, signature) if thread.signal else []
        return bool(found) and _fit(found, signature) > len(signature)

    @cached_property
    def _tables(self) -> dict[str, int]:
        """The addresses of the virtual tables. 0 if the libc10 of the process is not on this machine."""
        mapped = next((m for m in self.remains.maps if m.offset == 0 and m.path.endswith("/libc10.so")), None)
        found = _symbols(Path(mapped.path), _TABLES.values()) if mapped is not None else {}
        # An object points to the third word of its virtual table; the first two are not functions.
        return {
            name: found[symbol] + mapped.start + 16 if mapped is not None and symbol in found else 0
            for name, symbol in _TABLES.items()
        }

    def _vectors(self, thread: ThreadState, count: int) -> Iterator[tuple[int, ...]]:
        """Yield the contents of possible vectors of `count` tensors, from the stack pointer on."""
        raw = b""
        while len(raw) < STACK and (part := self.remains.read(thread.sp + len(raw), _PAGE)):
            raw += part
        words = struct.unpack_from(f"<{len(raw) // 8}Q", raw)
        seen: set[int] = set()
        for at, word in enumerate(words[:-2]):
            for begin, end, limit in (words[at : at + 3], self._words(word, 3)):
                if begin in seen or not _is_vector(begin, end, limit, count):
                    continue
                seen.add(begin)
                found = self._words(begin, count)
                if self._words(found[0], 1)[0] == self._tables["tensor"]:
                    yield found

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        """Read words; zeros if the memory is not there."""
        raw = self.remains.read(address, 8 * count) if address % 8 == 0 and address > _PAGE else b""
        return struct.unpack(f"<{count}Q", raw) if len(raw) == 8 * count else (0,) * count

    def _tensor(self, address: int) -> RecordedInput | None:
        raw = self.remains.read(address, _TENSOR)
        if len(raw) < _TENSOR or struct.unpack_from("<Q", raw)[0] != self._tables["tensor"]:
            return None
        (storage,) = struct.unpack_from("<Q", raw, _STORAGE)
        return next(filter(None, (self._laid_out(raw, at, address, storage) for at in _SIZES)), None)

    def _laid_out(self, raw: bytes, at: int, address: int, storage: int) -> RecordedInput | None:
        """Read a tensor whose sizes are at `at`. None if its fields contradict each other."""
        dim, far = struct.unpack_from("<QQ", raw, at)
        offset, numel = struct.unpack_from("<qq", raw, at + _OFFSET)
        dtype, device, index = struct.unpack_from("<Hbb", raw, at + _DTYPE)
        if dim > MOST_DIM or dtype not in DTYPES or device not in DEVICES:
            return None
        layout = self._layout(address + at + 8 if dim <= _INLINE else far, dim)
        sizes, strides = layout[:dim], layout[dim:]
        if any(size < 0 for size in sizes) or math.prod(sizes) != numel:
            return None
        table, data, size = (self._words(storage + place, 1)[0] for place in (0, _DATA, _BYTES))
        item = itemsize_of(DTYPES[dtype])
        span = (1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))) * item if numel else 0
        if table != self._tables["storage"] or not 0 <= span <= min(size - offset * item, LARGEST_TENSOR):
            return None
        name = DEVICES[device]
        place = self.remains.place(data + offset * item, span) if span and name == "cpu" else None
        kept = Bytes(self.core, place, span) if place is not None else None
        return RecordedInput(
            DTYPES[dtype], f"{name}:{index}" if name == "cuda" else name, sizes, strides, span,
            "no" if kept is None else "at failure", kept, address=data + offset * item,
        )  # fmt: skip

    def _layout(self, address: int, dim: int) -> tuple[int, ...]:
        """Read sizes and strides. If stored in the tensor, each has room for five dimensions."""
        between = (_INLINE if dim <= _INLINE else dim) * 8
        raw = [self.remains.read(address + skip, 8 * dim) for skip in (0, between)]
        if any(len(part) < 8 * dim for part in raw):
            return (-1,) * 2 * dim
        return tuple(number for part in raw for number in struct.unpack(f"<{dim}q", part))


def _is_vector(begin: int, end: int, limit: int, count: int) -> bool:
    """Whether the words may be a vector with `count` pointers, or one that had them before it was cleared."""
    room = limit - begin
    is_full = end in (begin, begin + 8 * count)
    return begin > _PAGE and is_full and 8 * count <= room <= 8 * (count + LARGEST_VECTOR)


def _fit(found: Sequence[RecordedInput], signature: Sequence[CompiledInput]) -> int:
    """One plus the number of dtypes and ranks that match the package. 0 if `found` is empty."""
    if not found:
        return 0
    agree = 1
    for given, wanted in zip(found, signature, strict=True):
        agree += wanted.dtype is not None and wanted.dtype.rpartition(".")[2] == given.dtype
        agree += len(wanted.dims) == len(given.sizes)
    return agree


def _symbols(library: Path, names: Iterable[str]) -> dict[str, int]:
    try:
        with library.open("rb") as file:
            table = ELFFile(file).get_section_by_name(".dynsym")
            found = {name: table.get_symbol_by_name(name) for name in names} if table is not None else {}
            return {name: symbols[0]["st_value"] for name, symbols in found.items() if symbols}
    except (ELFError, OSError, ValueError, KeyError, AttributeError):
        return {}
