"""What a compiled library says of itself: needed libraries, symbols, the place of its constants."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_PPC64": "ppc64le", "EM_386": "i386"}
_CXX_RUNTIMES = ("libstdc++.so", "libc++.so")
_MMAP_HEADER = struct.Struct("<qq")


class LibraryError(ValueError):
    """The bytes are not an ELF library that can be read."""


@dataclass(frozen=True)
class Library:
    """Facts of a shared library. Offsets and sizes in bytes.

    `constants_offset` and `constants_bytes` place the blob between `_binary_constants_bin_start` and `_end`;
    `trailing_bytes` is what follows the ELF image (weights appended for mmap).
    """

    machine: str
    bits: int
    needed: tuple[str, ...]
    run_path: str | None
    needed_versions: Mapping[str, tuple[str, ...]]
    undefined: tuple[str, ...]
    constants_offset: int | None
    constants_bytes: int | None
    trailing_bytes: int
    mapped_weights_bytes: int | None

    @property
    def cxx_runtime(self) -> str | None:
        """The C++ runtime that it links dynamically; None means one linked statically into it."""
        return next((name for name in self.needed if name.startswith(_CXX_RUNTIMES)), None)


# First bytes of shared libraries of other systems.
_FOREIGN = (
    (b"\x7fELF\x01", "a library for 32-bit processors"),
    (b"\xcf\xfa\xed\xfe", "a macOS library (Mach-O)"),
    (b"\xca\xfe\xba\xbe", "a macOS library (Mach-O, universal)"),
    (b"MZ", "a Windows library (PE)"),
)


def foreign_kind(head: bytes) -> str:
    """What a library that begins like this was built for, when not for 64-bit Linux; else empty."""
    return next((kind for magic, kind in _FOREIGN if head.startswith(magic)), "")


def read_library(stream: BinaryIO) -> Library:
    """Read a seekable stream of an ELF file; its sections only, never the weights. Raises `LibraryError`."""
    try:
        return _library(stream)
    except (
        ELFError,
        ArithmeticError,
        LookupError,
        AttributeError,
        ValueError,
        TypeError,
        AssertionError,
    ) as error:
        # pyelftools trusts offsets and names; a damaged file surfaces as any of these.
        raise LibraryError(f"not a readable ELF library: {error or type(error).__name__}") from error


def _library(stream: BinaryIO) -> Library:
    size = stream.seek(0, 2)
    stream.seek(0)
    elf = ELFFile(stream)
    tags = list(_dynamic_tags(elf))
    start, end = _address(elf, "_binary_constants_bin_start"), _address(elf, "_binary_constants_bin_end")
    offset = _file_offset(elf, start)
    length = end - start if start is not None and end is not None else None
    trailing = max(0, size - _image_end(elf))
    return Library(
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        bits=int(elf.elfclass),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        run_path=next(
            (_run_path(tag) for tag in tags if tag.entry.d_tag in ("DT_RUNPATH", "DT_RPATH")), None
        ),
        needed_versions=_needed_versions(elf),
        undefined=tuple(_undefined(elf)),
        constants_offset=offset,
        constants_bytes=length,
        trailing_bytes=trailing,
        mapped_weights_bytes=_mapped_weights(stream, offset, length, trailing),
    )


def _dynamic_tags(elf: Any) -> Iterator[Any]:
    section = elf.get_section_by_name(".dynamic")
    return iter(section.iter_tags()) if section is not None else iter(())


def _run_path(tag: Any) -> str:
    return str(getattr(tag, "runpath", None) or getattr(tag, "rpath", ""))


def _needed_versions(elf: Any) -> dict[str, tuple[str, ...]]:
    """Symbol versions by library: `{"libstdc++.so.6": ("GLIBCXX_3.4.21", ...)}`."""
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return {}
    return {need.name: tuple(sorted(aux.name for aux in auxes)) for need, auxes in section.iter_versions()}


def _undefined(elf: Any) -> Iterator[str]:
    symbols = elf.get_section_by_name(".dynsym")
    for symbol in symbols.iter_symbols() if symbols is not None else ():
        if symbol.entry.st_shndx == "SHN_UNDEF" and symbol.name:
            yield symbol.name


def _address(elf: Any, name: str) -> int | None:
    """The address of a symbol; the hash table first, since a symbol table may have 100,000 rows."""
    table = elf.get_section_by_name(".gnu.hash")
    symbol = table.get_symbol(name) if table is not None else None
    if symbol is None:
        static = elf.get_section_by_name(".symtab")
        symbol = next(iter(static.get_symbol_by_name(name) or ()), None) if static is not None else None
    if symbol is None or symbol.entry.st_shndx == "SHN_UNDEF":
        return None
    return int(symbol.entry.st_value)


def _file_offset(elf: Any, address: int | None) -> int | None:
    if address is None:
        return None
    return next((int(offset) for offset in elf.address_offsets(address)), None)


def _image_end(elf: Any) -> int:
    """Where the ELF image ends: after its last section or its section table."""
    table = elf["e_shoff"] + elf["e_shnum"] * elf["e_shentsize"]
    ends = (s["sh_offset"] + s["sh_size"] for s in elf.iter_sections() if s["sh_type"] != "SHT_NOBITS")
    return int(max((table, *ends)))


def _mapped_weights(stream: BinaryIO, offset: int | None, length: int | None, trailing: int) -> int | None:
    """Bytes of weights behind the image: the blob of `force_mmap_weights` is (size + 8, magic)."""
    if offset is None or length != _MMAP_HEADER.size or not trailing:
        return None
    stream.seek(offset)
    size, _magic = _MMAP_HEADER.unpack(stream.read(_MMAP_HEADER.size))
    return size - 8 if 8 < size <= trailing else None
