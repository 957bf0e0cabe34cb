"""Archives that were built to harm, and archives that were damaged."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.members import ByteRange, ZipContainer, read_bytes, refuse_unsafe
from mcp_server.package.problems import PackageError
from tests.conftest import ZooPackage
from tests.package.archives import declared, write

GOOD = "m/data/aotinductor/model/a.wrapper.cpp"


def slug_of(path: Path) -> str:
    """Why the package cannot be opened; what is unsafe to open is kept from torch's loader, too."""
    with pytest.raises(PackageError) as caught:
        open_package(path)
    if caught.value.slug == "unsafe_archive":
        with pytest.raises(PackageError):
            refuse_unsafe(path)
    return caught.value.slug


@pytest.mark.parametrize(
    "name",
    [
        "../evil.so",
        "/etc/evil",
        "a/../../b",
        "C:/evil.so",
        "a\\..\\b",
        "\x1b[31mred",
        "m/data/aotinductor/model/../../x.so",
    ],
)
def test_names_that_leave_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    """Zip-slip and absolute names: a loader would write them where it must not."""
    assert slug_of(write(tmp_path / "slip.pt2", {GOOD: b"", name: b"x"})) == "unsafe_archive"


def test_packing_that_torch_does_not_read_is_refused(tmp_path: Path) -> None:
    """Members packed with LZMA: torch stores and deflates."""
    assert slug_of(write(tmp_path / "lzma.pt2", {GOOD: b"a"}, zipfile.ZIP_LZMA)) == "unsafe_archive"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    """Two members of one name: two readers would see two different packages."""
    path = write(tmp_path / "twice.pt2", {GOOD: b"a"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(GOOD, b"b")
    assert slug_of(path) == "unsafe_archive"


def test_links_are_refused(tmp_path: Path) -> None:
    """A symbolic link inside the archive, and one that leaves an unpacked directory."""
    path = write(tmp_path / "link.pt2", {GOOD: b""})
    link = zipfile.ZipInfo("m/data/aotinductor/model/b.so")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert slug_of(path) == "unsafe_archive"
    unpacked = tmp_path / "dir" / "data" / "aotinductor" / "model"
    unpacked.mkdir(parents=True)
    (unpacked / "a.wrapper.cpp").symlink_to("/etc/passwd")
    assert slug_of(tmp_path / "dir") == "unsafe_archive"


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    """The encryption flag in the directory is enough."""
    path = write(tmp_path / "secret.pt2", {GOOD: b"abc"})
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert slug_of(path) == "unsafe_archive"


def test_a_bomb_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    """64 MiB of zeros in 64 KiB: refused by the declared ratio, in little memory."""
    path = write(tmp_path / "bomb.pt2", {GOOD: bytes(64 << 20)}, zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    assert slug_of(path) == "unsafe_archive"
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_lie_about_the_size_is_found(tmp_path: Path) -> None:
    """A member that declares fewer bytes than it unpacks to is damaged, and never unpacked beyond them."""
    path = write(tmp_path / "lie.pt2", {GOOD: bytes(8 << 20)}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, 100)
    path.write_bytes(data)
    assert slug_of(path) == "damaged_member"


def test_overlapping_members_are_refused(tmp_path: Path) -> None:
    """Many names for the same bytes: together they are larger than the file."""
    path = write(tmp_path / "overlap.pt2", {GOOD: bytes(4096)})
    with zipfile.ZipFile(path, "a") as archive:
        archive._didModify = True  # type: ignore[attr-defined]
        for index in range(40):
            archive.filelist.append(declared(f"m/copy{index}", 4096, 0))
    assert slug_of(path) == "unsafe_archive"


def test_a_flipped_byte_is_found(zoo: ZooPackage, tmp_path: Path) -> None:
    """The checksum of a stored member shows damage that its size does not."""
    data = bytearray(zoo("ranker").read_bytes())
    path = tmp_path / "flipped.pt2"
    path.write_bytes(data)
    assert open_package(path).defects == ()
    data[data.index(b"\x7fELF") + 5000] ^= 0xFF
    path.write_bytes(data)
    (defect,) = open_package(path).defects
    assert defect.slug == "damaged_member" and "wrapper.so is damaged" in defect.what and defect.fatal


def test_too_long_a_text_is_not_read(tmp_path: Path) -> None:
    """The limit of one text member holds for what is read, not for what is declared."""
    container = ZipContainer(write(tmp_path / "long.pt2", {GOOD: b"x" * 100}))
    assert read_bytes(container, GOOD, limit=100) == b"x" * 100
    with pytest.raises(PackageError) as caught:
        read_bytes(container, GOOD, limit=99)
    assert caught.value.slug == "too_large"


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=200),
    start=st.integers(0, 50),
    size=st.integers(0, 250),
    seeks=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40))),
)
def test_a_byte_range_reads_like_the_slice(
    data: bytes, start: int, size: int, seeks: list[tuple[int, int]]
) -> None:
    """Any seek and read in a window of a file gives what the bytes object gives."""
    window, reference = ByteRange(io.BytesIO(data), start, size), io.BytesIO(data[start : start + size])
    for offset, count in seeks:
        window.seek(offset)
        reference.seek(offset)
        assert window.read(count) == reference.read(count)


@settings(max_examples=40, deadline=None)
@given(at=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=6))
def test_cut_or_flipped_archives_never_crash(
    tmp_path_factory: pytest.TempPathFactory, at: float, flips: list[tuple[float, int]]
) -> None:
    """A mangled archive is a PackageError or a package whose texts can be asked for."""
    path = tmp_path_factory.mktemp("mangled") / "m.pt2"
    text = b'inputs_info_[0].name = "arg0_1";\n' * 20
    write(path, {GOOD: text, "m/data/aotinductor/model/a.wrapper_metadata.json": b"{}"}, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    for place, mask in flips:
        data[int(place * (len(data) - 1))] ^= mask
    path.write_bytes(data[: max(1, int(at * len(data)))] if at < 0.9 else data)
    try:
        package = open_package(path)
        assert isinstance(package.signature.problems, tuple) and isinstance(package.defects, tuple)
    except PackageError as error:
        assert error.slug and error.what
