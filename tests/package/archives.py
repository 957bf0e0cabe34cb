"""Makes packages from real ones by changing members, and archives that torch would not write."""

import zipfile
from collections.abc import Callable
from pathlib import Path

Members = dict[str, bytes]


def members_of(package: Path) -> Members:
    with zipfile.ZipFile(package) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write(target: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def changed(package: Path, target: Path, change: Callable[[Members], object]) -> Path:
    """Write a copy of `package` with its members changed by `change`."""
    members = members_of(package)
    change(members)
    return write(target, members)


def name_ending(members: Members, suffix: str) -> str:
    return next(name for name in members if name.endswith(suffix))


def without(suffix: str) -> Callable[[Members], object]:
    """A change that drops the member with this suffix."""
    return lambda members: members.pop(name_ending(members, suffix))


def unweighted(members: Members) -> None:
    """Make the wrapper say that the package has no weights."""
    name = name_ending(members, ".wrapper.cpp")
    text = members[name].replace(b"std::move(cubin_dir),\n                           true)", b"x, false)")
    assert b"x, false)" in text
    members[name] = text


def added(below_aotinductor: str, data: bytes) -> Callable[[Members], object]:
    """A change that adds a member, whose name is relative to `<stem>/data/aotinductor/`."""

    def add(members: Members) -> None:
        folder = name_ending(members, ".wrapper.cpp").partition("aotinductor/")[0]
        name = f"{folder}aotinductor/{below_aotinductor}".replace("aotinductor/../", "")
        members[name] = data

    return add


def declared(name: str, size: int, offset: int) -> zipfile.ZipInfo:
    """A directory entry for `size` stored bytes whose local header is at `offset`."""
    info = zipfile.ZipInfo(name)
    info.file_size = info.compress_size = size
    info.header_offset, info.CRC = offset, 0
    return info


def climbing(package: Path, target: Path, name: str = "climbed") -> tuple[Path, Path]:
    """Copy `package` with a member outside itself. Return the copy, and the file that extraction would make.

    The loader extracts below a temporary directory. More steps up than it has parents lead to the root, and
    from there the name leads to the folder of `target`.
    """
    made = target.resolve().with_name(name)
    up = "/".join([".."] * 12)

    def climb(members: Members) -> None:
        folder = name_ending(members, ".wrapper.cpp").rpartition("/")[0]
        members[f"{folder}/{up}{made}"] = b"written outside"

    return changed(package, target, climb), made


def twice(members: Members) -> None:
    """Add the model again, under the name `coast`."""
    again = {name.replace("/model/", "/coast/"): data for name, data in members.items()}
    members.update(again)
