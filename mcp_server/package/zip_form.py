"""Checks that a zip archive can be read in only one way.

Zip readers differ. `zipfile` looks for the directory right before its end record; miniz, with which torch
loads packages, looks at the offset that the record names. If these differ, a checker sees other members than
the loader extracts. Here all records must agree, with nothing before, between or after them. Records:
PKWARE's APPNOTE 6.3.10, sections 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zipfile import ZipInfo

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_DESCRIBED = 0x8  # flag: the sizes are in a record after the data
_DESCRIPTORS = (12, 16, 20, 24)  # bytes of this record: with or without a signature, sizes of 32 or 64 bits
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the 64-bit record"


class AmbiguousError(ValueError):
    """Two readers may see different members; the text says where."""


@dataclass(frozen=True)
class Directory:
    """Where the directory of the archive is, and how many members it has."""

    offset: int
    size: int
    members: int


def end_of(path: Path) -> int | None:
    """Return the offset of the last end record; None if no reader finds one."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _END.size - _LONGEST_COMMENT)
        file.seek(start)
        at = file.read().rfind(b"PK\5\6")
    return start + at if at >= 0 else None


def read_directory(file: BinaryIO, end_at: int) -> Directory:
    """Return the directory that all end records name. Raise `AmbiguousError` if they do not agree."""
    size = file.seek(0, 2)
    file.seek(end_at)
    end = file.read(_END.size)
    if len(end) < _END.size:
        raise AmbiguousError("its end record is cut")
    _, disk, first_disk, here, total, length, offset, comment = _END.unpack(end)
    if end_at + _END.size + comment != size:
        raise AmbiguousError("bytes follow its end record")
    if disk or first_disk or here != total:
        raise AmbiguousError("it claims to be one part of several")
    found, directory_end = Directory(offset, length, total), end_at
    file.seek(max(0, end_at - _LOCATOR.size))
    locator = file.read(_LOCATOR.size)
    if len(locator) == _LOCATOR.size and locator.startswith(b"PK\6\7"):
        found, directory_end = _directory64(file, locator, end_at, found)
    elif _FULL32 in (offset, length) or total == _FULL16:
        raise AmbiguousError("its end record names a 64-bit record that is not there")
    if found.offset + found.size != directory_end:
        raise AmbiguousError("its directory is not where its end record says")
    return found


def _directory64(file: BinaryIO, locator: bytes, end_at: int, short: Directory) -> tuple[Directory, int]:
    """Read the directory from the 64-bit end record. Return it and the offset of this record."""
    _, _, at, _ = _LOCATOR.unpack(locator)
    if at + _END64.size > end_at:
        raise AmbiguousError("its 64-bit end record is not in the file")
    file.seek(at)
    magic, rest, _, _, disk, first_disk, here, total, length, offset = _END64.unpack(file.read(_END64.size))
    if magic != b"PK\6\6" or at + 12 + rest + _LOCATOR.size != end_at:
        raise AmbiguousError("its 64-bit end record is not where the locator says")
    pairs = ((short.offset, offset, _FULL32), (short.size, length, _FULL32), (short.members, total, _FULL16))
    if disk or first_disk or here != total or any(a not in (b, full) for a, b, full in pairs):
        raise AmbiguousError("its two end records do not agree")
    return Directory(offset, length, total), at


def check_members(file: BinaryIO, infos: list[ZipInfo], directory: Directory) -> None:
    """Raise `AmbiguousError` unless local headers match the directory, without gap or overlap."""
    if len(infos) != directory.members:
        raise AmbiguousError(f"its end names {directory.members} members, and its directory has {len(infos)}")
    expected = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset != expected:
            raise AmbiguousError(
                f"bytes that belong to no member lie before {info.filename!r}, or it overlaps"
            )
        file.seek(info.header_offset)
        raw = file.read(_LOCAL.size)
        if len(raw) < _LOCAL.size or not raw.startswith(b"PK\3\4"):
            raise AmbiguousError(f"{info.filename!r} has no local header")
        _, _, flags, method, _, _, _, packed, size, name_length, extra = _LOCAL.unpack(raw)
        name = file.read(name_length)
        described = bool(flags & _DESCRIBED)
        sizes = all(a in (b, _FULL32) for a, b in ((packed, info.compress_size), (size, info.file_size)))
        agree = name == info.orig_filename.encode("utf-8" if flags & 0x800 else "cp437", "replace")
        if not agree or method != info.compress_type or not (sizes or described):
            raise AmbiguousError(f"the local header of {info.filename!r} differs from the directory")
        expected = file.tell() + extra + info.compress_size
        if described:
            expected = _after_descriptor(file, expected, info)
    if expected != directory.offset:
        raise AmbiguousError("bytes that belong to no member lie before its directory")


def _after_descriptor(file: BinaryIO, at: int, info: ZipInfo) -> int:
    """Return the end of the record after the data, in the shortest form that matches checksum and sizes."""
    file.seek(at)
    raw = file.read(max(_DESCRIPTORS))
    for form, magic in (("<4sLLL", True), ("<4sLQQ", True), ("<LLL", False), ("<LQQ", False)):
        layout = struct.Struct(form)
        if len(raw) >= layout.size:
            values = layout.unpack_from(raw)
            if magic and values[0] != b"PK\7\10":
                continue
            if values[-3:] == (info.CRC, info.compress_size, info.file_size):
                return at + layout.size
    raise AmbiguousError(f"the sizes behind {info.filename!r} differ from the directory")
