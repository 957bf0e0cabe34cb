"""Libraries made by the real compiler, and damaged ones."""

from __future__ import annotations

import io
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.defects import Library, LibraryError, read_library
from tests.conftest import ZooPackage
from tests.package.archives import changed, name_ending

# The constants as Inductor assembles them (codecache.py, torch 2.13), here the header of mapped weights.
SOURCE = r"""#include <stdexcept>
extern "C" int missing_symbol();
int use() { throw std::runtime_error(missing_symbol() ? "a" : "b"); }
asm("\t.section .lrodata, \"a\"\n\t.balign 64\n"
    "\t.globl _binary_constants_bin_start\n_binary_constants_bin_start:\n\t.quad 4096 + 8\n\t.quad 42\n"
    "\t.globl _binary_constants_bin_end\n_binary_constants_bin_end:\n\t.text\n");
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("elf")


def build(directory: Path, *flags: str) -> Path:
    """A library whose constants are what `force_mmap_weights` leaves: (size + 8, magic)."""
    library = directory / f"lib{'_'.join(flags)}.so"
    (directory / "source.cpp").write_text(SOURCE)
    argv = ["g++", "-shared", "-fPIC", str(directory / "source.cpp"), "-o", str(library), *flags]
    subprocess.run(argv, check=True, capture_output=True)
    return library


def read(path: Path) -> Library:
    with path.open("rb") as stream:
        return read_library(stream)


def test_a_shared_and_a_static_cxx_runtime_are_told_apart(directory: Path) -> None:
    """What `readelf -d` lists decides: libstdc++.so.6, or none of it."""
    shared, static = read(build(directory)), read(build(directory, "-static-libstdc++"))
    assert shared.cxx_runtime == "libstdc++.so.6" and static.cxx_runtime is None
    assert shared.machine == static.machine


def test_weights_behind_the_image(directory: Path) -> None:
    """Weights appended for mmap are found by the header in the blob; their bytes are not read."""
    library = build(directory)
    assert read(library).mapped_weights_bytes is None and read(library).constants_bytes == 16
    appended = directory / "appended.so"
    appended.write_bytes(library.read_bytes() + bytes(4096) + struct.pack("<q", 42))
    found = read(appended)
    assert found.mapped_weights_bytes == 4096


def test_the_blob_is_where_the_symbols_say(zoo: ZooPackage) -> None:
    """The bytes at the offset are the weights: the first parameter of a seeded model."""
    package = open_package(zoo("ranker"))
    assert package.library is not None and package.library.constants_offset is not None
    assert package.files.library is not None
    with package.container.open(package.files.library.name) as stream:
        stream.seek(package.library.constants_offset)
        values = struct.unpack("<512f", stream.read(2048))
    assert all(abs(value) < 6 for value in values) and 0.8 < sum(v * v for v in values) / 512 < 1.2


def test_appended_weights_are_located(zoo: ZooPackage, directory: Path) -> None:
    """A library with mapped weights makes the place `appended`, whatever the constructor says."""
    data = build(directory).read_bytes() + bytes(4096) + struct.pack("<q", 42)
    package = changed(
        zoo("ranker"),
        directory / "appended.pt2",
        lambda members: members.update({name_ending(members, ".wrapper.so"): data}),
    )
    weights = open_package(package).weights
    assert (weights.place, weights.bytes) == ("appended", 4096)


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=8))
def test_a_damaged_library_never_crashes(directory: Path, at: float, flips: list[tuple[int, int]]) -> None:
    """A cut library, or one with damaged headers: facts or a LibraryError."""
    library = directory / "lib.so"
    data = bytearray((library if library.exists() else build(directory)).read_bytes())
    for place, mask in flips:
        data[place] ^= mask
    try:
        found = read_library(io.BytesIO(bytes(data[: int(at * len(data))] if at < 0.8 else data)))
        assert isinstance(found, Library)
    except LibraryError as error:
        assert str(error)
