"""Digests of packages, what a rebuilt library reuses of the original one, and writing the new package.

The new library links the old one, which stays next to it under a name that loaders ignore. So C++ kernels
keep their machine code, weights need not pass through a compiler, and dependencies are found as before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from elftools.elf.elffile import ELFFile

from mcp_server.package.defects import Library
from mcp_server.package.members import Container, DirectoryContainer

CHUNK = 1 << 20


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_file_cached(path: Path, directory: Path) -> str:
    """`digest_file`, cached in `directory` until the file's size, time or inode change.

    Packages can have gigabytes of weights, hashed at 1.4 GB/s; a cached rebuild takes 0.2 s in all.
    """
    facts = path.stat()
    known = directory / digest_values([str(path.resolve()), facts.st_size, facts.st_mtime_ns, facts.st_ino])
    if not known.exists():
        digest = digest_file(path)
        directory.mkdir(exist_ok=True)
        partial = known.with_suffix(f".{os.getpid()}")
        partial.write_text(digest)
        partial.replace(known)
    return known.read_text()


def digest_package(path: Path, directory: Path) -> str:
    """SHA-256 of a package: of the file, or of the names and contents of a directory."""
    if path.is_file() and path.suffix != ".so":
        return digest_file_cached(path, directory)
    root = path if path.is_dir() else path.parent
    members = DirectoryContainer(root).members
    return digest_values({m.name: digest_file(root / m.name) for m in members})


def digest_values(values: object) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


_MAPPED_HEADER = struct.Struct("<Q")
_MAP_ALIGNMENT = 0x4000  # model_base.h, _get_constants_start: the appended weights start at 16 KiB


def companion_name(library: Path) -> str:
    """A name by content for the old library: ld.so takes two libraries of one name for the same."""
    return f"aoti-debug-{digest_file(library)[:24]}.original"


def missing_symbols(library: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that the library does not export."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        exported = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"} if table else set()
    return tuple(name for name in names if name not in exported)


def append_mapped_weights(facts: Library, original: BinaryIO, rebuilt: Path) -> int:
    """Copy weights appended to the library (`force_mmap_weights`). Returns the number of bytes.

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
    """Assembly that embeds the constants under the symbols that model_base.h declares."""
    return (
        '.section .lrodata,"a",@progbits\n.balign 64\n'
        ".globl _binary_constants_bin_start\n_binary_constants_bin_start:\n"
        f'.incbin "{blob.name}"\n'
        ".globl _binary_constants_bin_end\n_binary_constants_bin_end:\n"
        '.section .note.GNU-stack,"",@progbits\n'
    )


def dump_constants(facts: Library, original: BinaryIO, target: Path) -> bool:
    """Write the constants' section to `target`. Returns False if its location is unknown."""
    if facts.constants_offset is None or facts.constants_bytes is None:
        return False
    original.seek(facts.constants_offset)
    left = facts.constants_bytes
    with target.open("wb") as file:
        while left > 0 and (chunk := original.read(min(left, 1 << 22))):
            file.write(chunk)
            left -= len(chunk)
    return left == 0


STEM = "package"
# What torch.export.pt2_archive looks for in an archive (torch 2.8-2.15).
_MARKS = {"archive_format": "pt2", "archive_version": "0", "byteorder": "little", ".data/version": "6\n"}


def write_package(
    container: Container, replaced: Mapping[str, Path], added: Mapping[str, Path], target: Path
) -> None:
    """Copy every member of `container` to the zip `target`, with files from elsewhere for some.

    Keys of `replaced` and `added` are member names of `container`. A directory becomes a proper archive.
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for member in container.members:
            if member.name not in replaced:
                _copy_member(archive, container, member.name)
        for name, path in {**replaced, **added}.items():
            archive.write(path, archive_name(container, name))
        for name, text in _missing_marks(container):
            archive.writestr(name, text)


def _copy_member(archive: zipfile.ZipFile, container: Container, name: str) -> None:
    info = zipfile.ZipInfo(archive_name(container, name))
    with container.open(name) as source, archive.open(info, "w", force_zip64=True) as target:
        shutil.copyfileobj(source, target, 1 << 20)


def archive_name(container: Container, name: str) -> str:
    """The name of a member in the new archive."""
    if not isinstance(container, DirectoryContainer):
        return name
    if "data/aotinductor/" in name or "/" in name or name in _MARKS:
        return f"{STEM}/{name}"
    return f"{STEM}/data/aotinductor/model/{name}"


def _missing_marks(container: Container) -> Iterator[tuple[str, str]]:
    if isinstance(container, DirectoryContainer):
        present = {member.name for member in container.members}
        yield from ((f"{STEM}/{name}", text) for name, text in _MARKS.items() if name not in present)
