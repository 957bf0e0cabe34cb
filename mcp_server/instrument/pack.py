"""Writes a package again with some members replaced, in the form that torch's loader wants."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from mcp_server.package.members import Container, DirectoryContainer

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
