"""Takes the open calls of a core file as a recording, with the inputs that are still in memory (x86-64).

A host keeps the inputs of a call in a std::vector<at::Tensor> until the call returns, in their order. Words
on the stack of the calling thread lead to it. What looks like a vector of tensors is taken only if each
element has the virtual table of TensorImpl, and its sizes agree with its number of elements.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mcp_server.logs.journal import DEVICES, DTYPES
from mcp_server.package.archive import Package
from mcp_server.package.signature import CompiledInput
from mcp_server.package.terms.term import itemsize_of
from mcp_server.recorder.core_file import open_core
from mcp_server.recorder.package import LoadedLibrary
from mcp_server.recorder.remains import MOST_LOOKED_AT, Remains, ThreadState
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

MOST_CALLS = 8  # threads whose inputs are searched for, the one with the signal first
MODE = "core"
STACK = 256 << 10  # bytes of the stack to search
LARGEST_VECTOR = 64  # elements for which it has room, beyond the inputs
LARGEST_TENSOR = 1 << 40  # bytes
_PAGE = 4096
_INLINE = 5  # dimensions that are stored in the tensor itself

# c10::TensorImpl and c10::StorageImpl (torch 2.8-2.15): the place of each field, in bytes. The field before
# the sizes, PyObjectSlot, has 16 bytes up to 2.9 and 8 later: `_SIZES` has both places.
_STORAGE, _SIZES = 16, (56, 64)
_DATA, _BYTES = 16, 48  # in StorageImpl
_OFFSET, _NUMEL, _DTYPE, _DEVICE = 88, 96, 104, 106  # from the sizes
_TENSOR = 64 + _DEVICE + 8
_TABLES = {"tensor": "_ZTVN3c1010TensorImplE", "storage": "_ZTVN3c1011StorageImplE"}


def calls_of_core(path: Path, package: Package, library: Path) -> Recording:
    """Read the open calls of the package. Raise `ProblemError` if the core file cannot be read.

    `library` is the package's own. The recording has no call if no thread was in the package.
    """
    with open_core(path) as remains:
        loaded = LoadedLibrary(library, remains)
        build_id = next(iter(loaded.build_ids), "")
        reader = MemoryReader(path, remains)
        calls: list[RecordedCall] = []
        for thread in remains.threads[:MOST_LOOKED_AT]:
            stack = loaded.unwinder.addresses(thread) if len(calls) < MOST_CALLS else []
            if any(loaded.is_at(found.path) for at in stack if (found := remains.mapping(at)) is not None):
                calls.append(_call(thread, tuple(stack), package, reader))
    first = remains.threads[0]
    maps = "".join(f"{m.start:x}-{m.end:x} r-xp {m.offset:x} 00:00 0 {m.path}\n" for m in remains.maps)
    return Recording(
        path, first.number, 0, False, MODE, 0, (RecordedModel(library.name, build_id, 0),), tuple(calls),
        Crash(first.signal, 0, first.number) if first.signal else None, maps=maps,
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
        """Return the inputs of the thread's call, in their order; empty if they are not found."""
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

    @cached_property
    def _tables(self) -> dict[str, int]:
        """The addresses of the virtual tables; 0 if the libc10 of the process is not on this machine."""
        mapped = next((m for m in self.remains.maps if m.offset == 0 and m.path.endswith("/libc10.so")), None)
        found = _symbols(Path(mapped.path), _TABLES.values()) if mapped is not None else {}
        # The first two words of a table are not functions: objects point behind them.
        return {
            name: found[symbol] + mapped.start + 16 if mapped is not None and symbol in found else 0
            for name, symbol in _TABLES.items()
        }

    def _vectors(self, thread: ThreadState, count: int) -> Iterator[tuple[int, ...]]:
        """Yield the contents of what may be a vector of `count` tensors, from the top of the stack down."""
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
        """Read a tensor whose sizes are at `at`; None if its fields contradict each other."""
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
            "no" if kept is None else "at failure", kept,
        )  # fmt: skip

    def _layout(self, address: int, dim: int) -> tuple[int, ...]:
        """Read sizes and strides. Those that are stored in the tensor have room for five dimensions each."""
        between = (_INLINE if dim <= _INLINE else dim) * 8
        raw = [self.remains.read(address + skip, 8 * dim) for skip in (0, between)]
        if any(len(part) < 8 * dim for part in raw):
            return (-1,) * 2 * dim
        return tuple(number for part in raw for number in struct.unpack(f"<{dim}q", part))


def _is_vector(begin: int, end: int, limit: int, count: int) -> bool:
    """Whether the words may be a vector that has, or before it was cleared had, `count` pointers."""
    room = limit - begin
    is_full = end in (begin, begin + 8 * count)
    return begin > _PAGE and is_full and 8 * count <= room <= 8 * (count + LARGEST_VECTOR)


def _fit(found: Sequence[RecordedInput], signature: Sequence[CompiledInput]) -> int:
    """How many facts of the package's inputs the tensors agree with, plus one; 0 for none found."""
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
