"""Members of a package in a zip archive or directory, and the model to which each belongs.

Archives and directories are not trusted, and nothing is extracted. A stored zip member is read in place, so
reading a few bytes of a library with gigabytes of weights is cheap.

Layouts: `<stem>/data/aotinductor/<model>/<hash>.wrapper.{cpp,so}` (torch 2.7-2.15), the same without
`.wrapper` (torch 2.6), and a flat directory as `aot_compile` or the Inductor cache leaves it.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from mcp_server.package.problems import AmbiguousError, PackageError, check_members, end_of, read_directory

MAX_MEMBERS = 50_000
MAX_TEXT_BYTES = 512 << 20
"""Limit for one text member. The wrapper of 10,000 launches has 30 MB."""
MAX_RATIO = 200
"""Compression limit against zip bombs (up to 1032:1). A repacked wrapper.cpp stays under 20:1."""
RATIO_FREE_BYTES = 16 << 20
MAX_TOTAL_RATIO = 20
TOTAL_FREE_BYTES = 256 << 20
"""The limits for all members together; torch stores members uncompressed."""

UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    NotImplementedError,
)
"""Exceptions of `zipfile` (Python 3.10 to 3.14) for damaged archives. ValueError: a name is not UTF-8."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
ROOM_BYTES = 64 << 20  # kept free on the disk where the loader unpacks
_DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True)
class Member:
    """A file of the package: `name` with forward slashes, uncompressed `size` in bytes."""

    name: str
    size: int


class ByteRange(io.RawIOBase):
    """A read-only window of `size` bytes at `start` of an open file. Closing it closes the file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._file.seek(self._start + self._at)
        data = self._file.read(min(len(buffer), max(0, self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def read_text(container: Container, name: str) -> str:
    """Read the text of a member. Bytes that are not UTF-8 are replaced."""
    return read_bytes(container, name).decode("utf-8", "replace")


def read_bytes(container: Container, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Read the bytes of a member. Raise `PackageError("too_large")` beyond `limit` bytes."""
    with container.open(name) as stream:
        data = _read_member(stream, name, limit + 1)
    if len(data) > limit:
        raise PackageError("too_large", f"{name} exceeds the limit for one text file", value=len(data))
    return data


def _read_member(stream: BinaryIO, name: str, count: int) -> bytes:
    try:
        return stream.read(count)
    except UNREADABLE as error:
        raise PackageError("damaged_member", f"{name} cannot be read: {error}") from error


class ZipContainer:
    """A zip archive without unsafe names, duplicates, links, encryption or bombs; checked when opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open_zip(path) as archive:
            infos = archive.infolist()
        _check_archive(infos, path.stat().st_size)
        _check_form(path, infos)
        self._infos = {info.filename: info for info in infos if not info.is_dir()}
        self.members = tuple(Member(info.filename, info.file_size) for info in self._infos.values())

    def open(self, name: str) -> BinaryIO:
        info = self._infos[name]
        if info.compress_type == zipfile.ZIP_STORED:
            return self._stored(info)
        if info.file_size > MAX_TEXT_BYTES:
            raise PackageError("too_large", f"{name} is compressed and too large to unpack")
        with _open_zip(self.path) as archive:
            try:
                return io.BytesIO(archive.read(info))
            except UNREADABLE as error:
                raise PackageError("damaged_member", f"{name} cannot be unpacked: {error}") from error

    def _stored(self, info: zipfile.ZipInfo) -> BinaryIO:
        with ExitStack() as cleanup:
            file = cleanup.enter_context(self.path.open("rb"))
            file.seek(info.header_offset)
            header = file.read(_LOCAL_HEADER.size)
            if len(header) < _LOCAL_HEADER.size:
                raise PackageError("truncated_zip", f"the archive ends inside {info.filename}")
            signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
            if signature != b"PK\3\4":
                raise PackageError("damaged_member", f"{info.filename} has no local header")
            cleanup.pop_all()
        start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
        return io.BufferedReader(ByteRange(file, start, info.file_size))

    def checksum_holds(self, name: str) -> bool:
        """Whether a member is readable and matches its recorded CRC-32. Reads the whole member."""
        crc = 0
        try:
            with self.open(name) as stream:
                while chunk := _read_member(stream, name, 1 << 20):
                    crc = zlib.crc32(chunk, crc)
        except PackageError:
            return False
        return crc == self._infos[name].CRC


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except UNREADABLE as error:
        raise PackageError(
            "truncated_zip",
            f"{path} starts like a zip archive, but its end is missing or damaged: it was cut off, or is "
            "still being written",
        ) from error


def _check_archive(infos: list[zipfile.ZipInfo], archive_size: int) -> None:
    if len(infos) > MAX_MEMBERS:
        raise _unsafe(f"{len(infos)} members")
    for info in infos:
        name, packed, unpacked = info.orig_filename, info.compress_size, info.file_size
        stored = info.compress_type == zipfile.ZIP_STORED
        refused = (
            ("\\" in name or not name.isprintable(), "holds a backslash or control characters"),
            # These names would be extracted outside the loader's directory.
            (name.startswith("/") or _DRIVE.match(name), "is an absolute name"),
            (".." in PurePosixPath(name).parts, "climbs out of the archive"),
            (info.flag_bits & 0x1, "is encrypted"),
            (stat.S_ISLNK(info.external_attr >> 16), "is a symbolic link"),
            (unpacked > max(RATIO_FREE_BYTES, MAX_RATIO * packed), f"unpacks {packed} to {unpacked} bytes"),
            (stored and unpacked != packed, "is stored but its two sizes differ"),
            (
                not stored and info.compress_type != zipfile.ZIP_DEFLATED,
                "is packed in a way that torch does not read",
            ),
        )
        for bad, why in refused:
            if bad:
                raise _unsafe(f"{name!r} {why}")
        if info.header_offset < 0:
            raise PackageError("truncated_zip", f"{name!r} lies before the start of the archive")
    for name, count in Counter(info.filename for info in infos).most_common(1):
        if count > 1:
            raise _unsafe(f"{name!r} is there {count} times")
    if sum(info.compress_size for info in infos) > archive_size:
        raise _unsafe("members overlap: together they are larger than the file")
    unpacked = sum(info.file_size for info in infos)
    most = max(TOTAL_FREE_BYTES, MAX_TOTAL_RATIO * archive_size)
    if unpacked > most:
        raise _unsafe(f"its {archive_size} bytes unpack to {unpacked}, and at most {most} are taken")


def refuse_unsafe(path: Path) -> None:
    """Raise `PackageError("unsafe_archive")` for an archive that must not reach torch's loader.

    The loader extracts every member in the central directory (torch 2.8-2.15, `model_package_loader.cpp`). A
    file without this directory passes: the loader rejects it before it writes anything. A central directory
    that `zipfile` cannot read is refused: the loader's miniz may read it. `PackageError("no_room")` if the
    disk is too full.
    """
    if path.is_dir():
        DirectoryContainer(path)
        return
    if not path.is_file() or end_of(path) is None:
        return
    try:
        container = ZipContainer(path)
    except PackageError as error:
        refusal = _unsafe("its directory cannot be checked") if error.slug != "unsafe_archive" else error
        refusal.value = str(path)
        raise refusal from error
    unpacked, free = (
        sum(member.size for member in container.members),
        shutil.disk_usage(tempfile.gettempdir()).free,
    )
    if unpacked + ROOM_BYTES > free:
        raise PackageError(
            "no_room",
            f"unpacking needs {unpacked + ROOM_BYTES} bytes in {tempfile.gettempdir()}, {free} are free",
            allowed="a TMPDIR on a disk with room",
        )


def _check_form(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Raise `PackageError("unsafe_archive")` for an archive that another reader may read differently."""
    end_at = end_of(path)
    if end_at is None:
        raise _unsafe("its directory cannot be checked")
    try:
        with path.open("rb") as file:
            check_members(file, infos, read_directory(file, end_at))
    except AmbiguousError as error:
        raise _unsafe(f"{error}: another reader may see other members") from error


def _unsafe(what: str) -> PackageError:
    return PackageError(
        "unsafe_archive",
        f"refused: {what}",
        allowed="an archive as torch writes it",
        next_call="compile the package again, and don't load this one",
    )


class DirectoryContainer:
    """An unpacked package: files under `root`, named relative to it; `recursive` includes subfolders."""

    def __init__(self, root: Path, *, recursive: bool = True) -> None:
        self.path = root
        self.members = tuple(_walk(root, recursive))

    def open(self, name: str) -> BinaryIO:
        try:
            return (self.path / name).open("rb")
        except OSError as error:
            raise PackageError("unreadable_file", f"{name} cannot be opened: {error.strerror}") from error


Container = ZipContainer | DirectoryContainer
"""A readable collection of members. `open` raises `PackageError` for a member that cannot be read."""


def _walk(root: Path, recursive: bool) -> Iterator[Member]:
    """Yield regular files. A link out of `root` raises `PackageError` if `recursive`; else it is skipped."""
    top = root.resolve()
    paths = top.rglob("*") if recursive else top.iterdir()
    for count, path in enumerate(sorted(islice(paths, MAX_MEMBERS + 1))):
        if count == MAX_MEMBERS:
            raise _unsafe(f"more than {MAX_MEMBERS} files")
        if path.is_symlink() and not path.resolve().is_relative_to(top):
            if recursive:
                raise _unsafe(f"{path} is a link that leaves the directory")
            continue
        if path.is_file():
            yield Member(path.relative_to(top).as_posix(), path.stat().st_size)


_MODEL = re.compile(r"(?:^|/)data/aotinductor/([^/]+)/")
KERNEL_BINARIES = (".cubin", ".fatbin", ".hsaco", ".spv")
FLAT_MODEL = "model"


@dataclass(frozen=True)
class ModelFiles:
    """The members of one model."""

    name: str
    members: tuple[Member, ...]
    wrapper_source: Member | None = None
    kernel_source: Member | None = None
    library: Member | None = None
    metadata: Member | None = None
    proxy_nodes: Member | None = None
    kernel_information: Member | None = None
    kernel_binaries: tuple[Member, ...] = ()
    weights_blob: Member | None = None
    weights_config: Member | None = None
    built_at_load: bool = False
    """Whether this is a `package_cpp_only` package, whose sources the loader compiles."""

    def named(self, name: str) -> Member | None:
        return next((m for m in self.members if m.name == name), None)


def _model_files(name: str, members: tuple[Member, ...]) -> ModelFiles:
    def ending(suffix: str) -> Member | None:
        return next((m for m in members if m.name.endswith(suffix)), None)

    def only(suffix: str) -> Member | None:
        kernels = f".kernel{suffix}"
        found = [m for m in members if m.name.endswith(suffix) and not m.name.endswith(kernels)]
        return found[0] if len(found) == 1 else None

    library = ending(".wrapper.so") or only(".so")
    return ModelFiles(
        name,
        members,
        wrapper_source=ending(".wrapper.cpp") or only(".cpp"),
        kernel_source=ending(".kernel.cpp"),
        library=library,
        metadata=ending(".wrapper_metadata.json") or ending("_metadata.json"),
        proxy_nodes=ending(".wrapper.json"),
        kernel_information=ending("kernel_information.json"),
        kernel_binaries=tuple(m for m in members if m.name.endswith(KERNEL_BINARIES)),
        weights_blob=ending("_weights.blob"),
        weights_config=ending("weights_config.json"),
        built_at_load=library is None and ending("_compile_flags.json") is not None,
    )


def find_models(container: Container) -> dict[str, ModelFiles]:
    """Find the models of an archive or unpacked directory by name, in archive order."""
    groups: dict[str, list[Member]] = {}
    for member in container.members:
        if match := _MODEL.search(member.name):
            groups.setdefault(match[1], []).append(member)
    return {name: _model_files(name, tuple(members)) for name, members in groups.items()}


def flat_model(container: Container, stem: str | None = None) -> dict[str, ModelFiles]:
    """Find the model of a flat directory. `stem` selects the files of one of several libraries."""
    members = tuple(m for m in container.members if "/" not in m.name)
    if stem is not None and any(m.name == f"{stem}.cpp" for m in members):
        mine = (f"{stem}.", f"{stem}_", f"{stem.removesuffix('.wrapper')}.")
        kinds = (".so", ".wrapper.cpp", ".wrapper.json", "_metadata.json")  # each library has one of each
        members = tuple(m for m in members if m.name.startswith(mine) or not m.name.endswith(kinds))
    files = _model_files(FLAT_MODEL, members)
    return {FLAT_MODEL: files} if files.wrapper_source is not None else {}
