"""Checks that a file can be read as a package, and in only one way. Errors name the kind of file."""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipInfo

from mcp_server.errors import ProblemError


class PackageError(ProblemError):
    """The file is not a readable AOTInductor package. `slug` is a stable identifier of the reason."""

    def __init__(self, slug: str, what: str, **more: Any) -> None:
        super().__init__(what, **{"allowed": COMPILED, "next_call": AGAIN, **more})
        self.slug = slug


@dataclass(frozen=True)
class Defect:
    """A missing or inconsistent part of a readable package.

    If it is `fatal`, loading or running fails (seen in torch 2.8-2.15). Otherwise it is a note.
    """

    slug: str
    what: str
    fatal: bool
    fix: str = ""


_ZIP_MAGIC = b"PK"
_PICKLE_PROTOCOLS = tuple(b"\x80" + bytes([n]) for n in range(2, 6))
_LEGACY_TORCH_MAGIC = bytes.fromhex("6cfc9c46f9206aa850")
_ELF_MAGIC = b"\x7fELF"
_STARTS = (
    (rb".{7}\0\{\"", "a safetensors file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file: run `git lfs pull`"),
    (b"\x1f\x8b", "a gzip file"),
    (b"GGUF", "a GGUF model file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<", "a web page or XML, perhaps the error page of a download"),
    (b"\x08", "a protocol buffer, perhaps an ONNX model"),
)
"""First bytes of files that are often mistaken for a package, and the names of their formats."""


@dataclass(frozen=True)
class _Archive:
    """An archive that is not a package. Each pattern must match the name of at least one member.

    With `below_top`, names are compared without the top folder that torch adds.
    """

    slug: str
    patterns: tuple[str, ...]
    what: str
    next_call: str
    below_top: bool = False


COMPILED = "a .pt2 of torch._inductor.aoti_compile_and_package"
_COMPILE = "aoti-debug compile-with-flags program.pt2"
AGAIN = "copy the package again; if the original is damaged too, compile it again"
_GIVE = f"pass the compiled package, or compile the exported program: {_COMPILE}"
_ARCHIVES = (
    _Archive(
        "other_zip",
        (r".+\.pt2$",),
        "is an archive around a .pt2, which the loader does not look into (was it zipped once more?)",
        "unpack it, and load the .pt2 that is in it",
    ),
    _Archive(
        "torch_export_archive",
        (r"models/|serialized_exported_program\.json$",),
        "holds an exported program (torch.export.save), which is not compiled yet",
        f"compile it: {_COMPILE}",
        below_top=True,
    ),
    _Archive(
        "torchscript_file",
        (r"constants\.pkl$", r"code/"),
        "is a TorchScript archive (torch.jit.save)",
        f"export the model with torch.export.export and torch.export.save, then compile it: {_COMPILE}",
        below_top=True,
    ),
    _Archive(
        "torch_save_file",
        (r"data\.pkl$",),
        "is a torch.save file (tensors or a state dict); it was not unpickled",
        "pass it as the inputs, and the compiled .pt2 as the package",
        below_top=True,
    ),
    _Archive("other_zip", (r"[^/]+\.dist-info/",), "is a Python wheel, no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"[^/]+\.npy$",), "is a NumPy archive (.npz), no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"MAR-INF/",), "is a TorchServe archive (.mar), no AOTInductor package", _GIVE),
    _Archive("other_zip", (r"META-INF/MANIFEST\.MF$",), "is a Java archive, no AOTInductor package", _GIVE),
    _Archive(
        "outdated_layout",
        (r".*\.so$",),
        "holds a shared library outside data/aotinductor/: a layout from before torch 2.6",
        f"compile the program again with the torch that loads it: {_COMPILE}",
    ),
)


def check_is_zip(path: Path) -> None:
    """Unless `path` is a zip archive, raise a `PackageError` that names the kind of file."""
    try:
        if path.exists() and not path.is_file():
            raise PackageError("unreadable_file", f"{path} is not a regular file (a pipe or a device)")
        with path.open("rb") as file:
            head = file.read(64)
    except FileNotFoundError as error:
        fix = "give the path of a package that is there, or compile it there first"
        raise PackageError("missing_file", f"{path} does not exist", next_call=fix) from error
    except OSError as error:
        raise PackageError("unreadable_file", f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise PackageError("empty_file", f"{path} is empty (0 bytes)")
    if head.startswith(_ZIP_MAGIC):
        return
    if head.startswith(_PICKLE_PROTOCOLS):
        legacy = _LEGACY_TORCH_MAGIC in head
        raise PackageError(
            "torch_save_file" if legacy else "pickle_file",
            f"{path} is {'an old torch.save file' if legacy else 'a pickle'}, not an AOTInductor package; "
            "it was not unpickled",
            next_call=_GIVE,
        )
    if head.startswith(_ELF_MAGIC):
        what = f"{path} is a shared library with no wrapper.cpp next to it"
        raise PackageError("shared_library_without_wrapper", what, next_call=_GIVE)
    found = next((what for start, what in _STARTS if re.match(start, head, re.S)), None)
    kind = f"it is {found}" if found else "it does not start like a zip archive"
    raise PackageError("not_a_zip", f"{path} is not a .pt2: {kind}", value=head[:8], next_call=_GIVE)


def no_model(path: Path, names: Iterable[str]) -> PackageError:
    """Create the error for a file or directory without a model."""
    names = list(names)
    # torch adds a top folder named after the file's stem.
    relative = {name.partition("/")[2] or name for name in names}
    for known in _ARCHIVES:
        compared = relative if known.below_top else names
        if all(any(re.match(pattern, name) for name in compared) for pattern in known.patterns):
            listed = [name for name in sorted(names) if name.endswith(".pt2")][:3]
            what = f"{path} {known.what}"
            return PackageError(known.slug, what, value=listed or None, next_call=known.next_call)
    what = f"{path} holds no AOTInductor model (no data/aotinductor/<model>/ in it)"
    return PackageError("no_model", what, value=sorted(relative)[:5], next_call=_GIVE)


# Zip readers differ. `zipfile` looks for the directory right before the end record. miniz, with which torch
# loads packages, looks at the offset in the end record. In an archive with two directories, `zipfile` would
# check other members than miniz extracts. Therefore all records must agree, without other bytes between
# them. Records: PKWARE's APPNOTE 6.3.10, sections 4.3.7 to 4.3.16.
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_DESCRIBED = 0x8  # flag: the sizes are in a record after the data
_DESCRIPTORS = (12, 16, 20, 24)  # bytes of this record: with or without a signature, sizes of 32 or 64 bits
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # in a field: the 64-bit record has the value


class AmbiguousError(ValueError):
    """Two readers may see different members. The text says where they differ."""


@dataclass(frozen=True)
class Directory:
    """Where the directory of the archive is, and how many members it has."""

    offset: int
    size: int
    members: int


def end_of(path: Path) -> int | None:
    """The offset of an archive's last end record, or None."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _END.size - _LONGEST_COMMENT)
        file.seek(start)
        at = file.read().rfind(b"PK\5\6")
    return start + at if at >= 0 else None


def read_directory(file: BinaryIO, end_at: int) -> Directory:
    """The directory that all end records name. Raises `AmbiguousError` if they do not agree."""
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
    """The end of the record after the data, in the first form that matches checksum and sizes."""
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
