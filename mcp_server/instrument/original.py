"""What a rebuilt library takes over from the original: C++ kernels and constants.

The new library is linked against the old one, kept beside it under a name that no loader takes for a model.
Kernels stay the very same machine code, weights are not copied through a compiler, and whatever libraries the
original needed come along.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from elftools.elf.elffile import ELFFile

from mcp_server.instrument.digest import digest_file
from mcp_server.package.elf import Library

_MAPPED_HEADER = struct.Struct("<Q")
_MAP_ALIGNMENT = 0x4000  # model_base.h, _get_constants_start: the appended weights start at 16 KiB


def companion_name(library: Path) -> str:
    """A name for the old library, equal only for equal content: ld.so takes two of one name for the same."""
    return f"aoti-debug-{digest_file(library)[:24]}.original"


def missing_symbols(library: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that the library does not export."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        exported = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"} if table else set()
    return tuple(name for name in names if name not in exported)


def append_mapped_weights(facts: Library, original: BinaryIO, rebuilt: Path) -> int:
    """Copy weights that a model maps from behind its own image (`force_mmap_weights`); bytes copied.

    The size is the first word of the constants' section, which the rebuilt library reads from the original.
    """
    if facts.mapped_weights_bytes is None or facts.constants_offset is None:
        return 0
    original.seek(facts.constants_offset)
    (size,) = _MAPPED_HEADER.unpack(original.read(_MAPPED_HEADER.size))
    end = original.seek(0, 2)
    original.seek(end - size)
    with rebuilt.open("ab") as target:
        target.write(b"\0" * (-target.tell() % _MAP_ALIGNMENT))
        while chunk := original.read(1 << 22):
            target.write(chunk)
    return int(size)


def constants_assembly(blob: Path) -> str:
    """Assembly that brings the constants back under the names that model_base.h declares."""
    return (
        '.section .lrodata,"a",@progbits\n.balign 64\n'
        ".globl _binary_constants_bin_start\n_binary_constants_bin_start:\n"
        f'.incbin "{blob.name}"\n'
        ".globl _binary_constants_bin_end\n_binary_constants_bin_end:\n"
        '.section .note.GNU-stack,"",@progbits\n'
    )


def dump_constants(facts: Library, original: BinaryIO, target: Path) -> bool:
    """Write the constants' section to `target`; False when the library does not say where it lies."""
    if facts.constants_offset is None or facts.constants_bytes is None:
        return False
    original.seek(facts.constants_offset)
    left = facts.constants_bytes
    with target.open("wb") as file:
        while left > 0 and (chunk := original.read(min(left, 1 << 22))):
            file.write(chunk)
            left -= len(chunk)
    return left == 0
