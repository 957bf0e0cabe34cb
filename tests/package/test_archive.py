"""Opening packages: every layout, incomplete ones, malicious archives, other files."""

import os
import pickle
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.members import ZipContainer, read_bytes, refuse_unsafe
from mcp_server.package.problems import PackageError
from tests.conftest import Zoo
from tests.package.archives import (
    Members,
    added,
    changed,
    declared,
    members_of,
    name_ending,
    twice,
    unweighted,
    without,
    write,
)
from tests.support.programs import recorded

# Real packages.


def test_a_real_package_is_described(zoo: Zoo) -> None:
    """Device, machine, constants, weights, outputs and provenance of a compiled model are read."""
    package = open_package(zoo("ranker"))
    assert (package.models, package.model_name, package.device_type) == (("model",), "model", "cpu")
    assert (package.metadata.machine, package.metadata.platform) == (os.uname().machine, "linux")
    # head.bias has only four elements, so it is part of the code.
    names = ["table.weight", "hidden.weight", "hidden.bias", "head.weight"]
    assert [constant.fqn for constant in package.constants] == names
    table = package.constants[0]
    assert (table.dtype, table.shape, table.stride) == ("float32", (32, 16), (16, 1))
    assert (table.kind, table.bytes, table.device_type, table.folded) == ("Parameter", 2048, "cpu", False)
    assert package.weights.place == "in_library"
    assert package.weights.bytes == sum(constant.bytes for constant in package.constants)
    assert len(package.wrapper.run.outputs) == 1 and package.defects == ()
    assert package.kernel_information and 'extern "C"' in package.kernel_text


def test_directories_and_libraries_read_like_the_archive(zoo: Zoo, tmp_path: Path) -> None:
    """An unpacked package, its folder of files, its .so, and a compressed copy read like the archive."""
    expected = open_package(zoo("ranker")).inputs
    with zipfile.ZipFile(zoo("ranker")) as archive:
        archive.extractall(tmp_path)
    flat = next(tmp_path.rglob("*.wrapper.so")).parent
    for path in (tmp_path, flat.parents[2], flat, next(flat.glob("*.wrapper.so"))):
        assert open_package(path).inputs == expected, path
    copy = write(tmp_path / "copy.pt2", members_of(zoo("ranker")), zipfile.ZIP_DEFLATED)
    package, original = open_package(copy), open_package(zoo("ranker"))
    assert package.signature == original.signature and package.library == original.library


def test_one_of_several_models_is_chosen(zoo: Zoo, tmp_path: Path) -> None:
    """Models are distinguished by folder. The error for an unknown name lists the known ones."""
    both = changed(zoo("ranker"), tmp_path / "both.pt2", twice)
    assert open_package(both).models == ("model", "coast")
    assert [open_package(both, name).model_name for name in (None, "coast")] == ["model", "coast"]
    with pytest.raises(PackageError) as caught:
        open_package(both, "nope")
    assert caught.value.slug == "unknown_model" and caught.value.allowed == "model, coast"


def sources_only(members: Members) -> None:
    library = name_ending(members, ".wrapper.so")
    del members[library]
    members[library.replace(".wrapper.so", ".wrapper_compile_flags.json")] = b"{}"


def load_a_cubin(members: Members) -> None:
    name = name_ending(members, ".wrapper.cpp")
    members[name] += b'kernels_.k = loadKernel("/build/ab/cd12.cubin", "k", 0, cubin_dir_);'


def stamp(members: Members) -> None:
    for name in [name for name in members if name.endswith("_metadata.json")]:
        members[name] = members[name].replace(b'"cpu"', b'"cuda"')


def sealed(place: int) -> Callable[[Members], object]:
    """A change that puts a member of another folder at this place."""

    def seal(members: Members) -> None:
        all_of_them = list(members.items())
        all_of_them.insert(place, ("MANIFEST.json", b"{}"))
        members.clear()
        members.update(all_of_them)

    return seal


@pytest.mark.parametrize(
    ("change", "slug", "fatal", "said"),
    [
        pytest.param(without(".wrapper.so"), "missing_library", True, "", id="no library"),
        pytest.param(without(".wrapper_metadata.json"), "missing_metadata", True, "", id="no metadata"),
        pytest.param(without(".kernel_metadata.json"), "missing_metadata", True, "", id="no kernel metadata"),
        pytest.param(without(".wrapper.json"), "missing_proxy_nodes", True, "", id="no proxy nodes"),
        pytest.param(without(".wrapper.cpp"), "missing_wrapper_source", False, "", id="no wrapper"),
        # package_cpp_only: compile flags in place of a .so.
        pytest.param(sources_only, "built_at_load", False, "", id="sources only"),
        # A cubin named by loadKernel must be in the package; its compile-time directory does not count.
        pytest.param(load_a_cubin, "missing_kernel_binary", True, "cd12.cubin", id="no cubin"),
        # Metadata with a device type that fits neither the library nor the wrapper.
        pytest.param(stamp, "contradicted_device", True, "library is for cpu", id="another device"),
        # torch 2.13 loads a package only if its first two members share their folder.
        pytest.param(sealed(0), "mixed_folders", True, "", id="another folder first"),
        pytest.param(sealed(1), "mixed_folders", True, "", id="another folder second"),
        pytest.param(sealed(2), None, True, "", id="another folder third"),
    ],
)
def test_what_a_package_lacks_or_contradicts(
    zoo: Zoo, tmp_path: Path, change: Callable[[Members], None], slug: str | None, fatal: bool, said: str
) -> None:
    """The package opens, with one defect."""
    package = open_package(changed(zoo("plugin"), tmp_path / "changed.pt2", change))
    found = {defect.slug: defect for defect in package.defects}
    assert (slug in found and found[slug].fatal is fatal) if slug else found == {}
    assert package.model_name == "model" and said in (found[slug].what if slug else "")
    if change is sources_only:
        assert package.library is None and package.weights.place == "unknown"
    if change is load_a_cubin:
        with_cubin = changed(package.path, package.path, added("model/cd12.cubin", b"x"))
        assert open_package(with_cubin).defects == () and len(found) == 1


def test_weights_outside_the_library(zoo: Zoo, tmp_path: Path) -> None:
    """Weight files are found by the config. A lost file is fatal, no weights at all is a warning."""
    config = b'{"table.weight": ["weight_0", [32, 16], [16, 1], 0], "head.bias": ["weight_1", [4], [1], 0]}'
    lost_path = changed(zoo("ranker"), tmp_path / "lost.pt2", added("model/weights_config.json", config))
    lost = open_package(changed(lost_path, lost_path, added("../weights/weight_0", b"12345678")))
    assert [d.slug for d in lost.defects] == ["missing_weights"] and lost.weights.bytes == 8

    path = changed(zoo("ranker"), tmp_path / "none.pt2", unweighted)
    without_weights = open_package(path)
    assert without_weights.weights.place == "absent"
    assert [d.slug for d in without_weights.defects] == ["weights_not_included"]
    blob = changed(path, path, added("model/x.wrapper_weights.blob", b"1234"))
    assert open_package(blob).weights.place == "blob" and open_package(blob).weights.bytes == 4


# Malicious and damaged archives.

GOOD = "m/data/aotinductor/model/a.wrapper.cpp"


def slug_of(path: Path) -> str:
    """Why the package cannot be opened. An unsafe one is not given to torch's loader either."""
    with pytest.raises(PackageError) as caught:
        open_package(path)
    if caught.value.slug == "unsafe_archive":
        with pytest.raises(PackageError):
            refuse_unsafe(path)
    return caught.value.slug


def named(name: str) -> Callable[[Path], object]:
    """Write an archive with a name outside its directory, where a loader must not write."""
    return lambda path: write(path, {GOOD: b"", name: b"x"})


def lzma(path: Path) -> None:
    write(path, {GOOD: b"a"}, zipfile.ZIP_LZMA)  # torch only stores and deflates


def doubled(path: Path) -> None:
    """Write two members with one name, of which two readers would see different ones."""
    with zipfile.ZipFile(write(path, {GOOD: b"a"}), "a") as archive:
        archive.writestr(GOOD, b"b")


def linked(path: Path) -> None:
    link = zipfile.ZipInfo("m/data/aotinductor/model/b.so")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(write(path, {GOOD: b""}), "a") as archive:
        archive.writestr(link, "/etc/passwd")


def unpacked_link(path: Path) -> None:
    model = path / "data" / "aotinductor" / "model"
    model.mkdir(parents=True)
    (model / "a.wrapper.cpp").symlink_to("/etc/passwd")


def encrypted(path: Path) -> None:
    data = bytearray(write(path, {GOOD: b"abc"}).read_bytes())
    data[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)


def smaller_in_the_directory(path: Path) -> None:
    """Let the directory entry declare fewer bytes than the member's own header."""
    data = bytearray(write(path, {GOOD: bytes(8 << 20)}, zipfile.ZIP_DEFLATED).read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, 100)
    path.write_bytes(data)


def overlapping(path: Path) -> None:
    """Write many names for the same bytes: together they are larger than the file."""
    with zipfile.ZipFile(write(path, {GOOD: bytes(4096)}), "a") as archive:
        archive._didModify = True  # type: ignore[attr-defined]
        archive.filelist += [declared(f"m/copy{index}", 4096, 0) for index in range(40)]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "make",
    [
        *(lzma, doubled, linked, unpacked_link, encrypted, smaller_in_the_directory, overlapping),
        *(named(name) for name in ("../evil.so", "/etc/evil", "a/../../b", "C:/evil.so", "a\\..\\b")),
        *(named(name) for name in ("\x1b[31mred", "m/data/aotinductor/model/../../x.so")),
    ],
)
def test_unsafe_archives_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """An archive that may do harm, or be read as two packages, is refused."""
    make(tmp_path / "unsafe.pt2")
    assert slug_of(tmp_path / "unsafe.pt2") == "unsafe_archive"


def test_a_bomb_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    """64 MiB of zeros in 64 KiB are refused because of the declared ratio, in little memory."""
    path = write(tmp_path / "bomb.pt2", {GOOD: bytes(64 << 20)}, zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    assert slug_of(path) == "unsafe_archive"
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_flipped_byte_is_found(zoo: Zoo, tmp_path: Path) -> None:
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
    """The limit of a text member applies to the bytes that are read, and not to the declared size."""
    container = ZipContainer(write(tmp_path / "long.pt2", {GOOD: b"x" * 100}))
    assert read_bytes(container, GOOD, limit=100) == b"x" * 100
    with pytest.raises(PackageError) as caught:
        read_bytes(container, GOOD, limit=99)
    assert caught.value.slug == "too_large"


def zip64(path: Path) -> bytearray:
    """Write a good archive that also ends with 64-bit records."""
    data = write(path, {GOOD: b"x" * 100, "m/b": b"y"}).read_bytes()
    at = data.rindex(b"PK\5\6")
    _, _, _, here, total, length, offset, _ = struct.unpack("<4s4H2LH", data[at:])
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, here, total, length, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)
    return bytearray(data[:at] + end + locator + data[at:])


def overwritten(at: int, form: str, value: int) -> Callable[[bytearray], bytes]:
    """A change that packs `value` at `at` bytes from the 64-bit end record."""

    def write_over(data: bytearray) -> bytes:
        struct.pack_into(form, data, data.rindex(b"PK\6\6") + at, value)
        return bytes(data)

    return write_over


def inserted(place: Callable[[bytearray], int]) -> Callable[[bytearray], bytes]:
    return lambda data: bytes(data[: place(data)] + b"PK\3\4hidden" + data[place(data) :])


FORGERIES = {
    "the record has no signature": overwritten(0, "<I", 0),
    "the records name different places": overwritten(48, "<Q", 0),
    "the records count different members": overwritten(32, "<Q", 1),
    "the locator points elsewhere": overwritten(56 + 8, "<Q", 10),
    "a directory of other length": overwritten(40, "<Q", 3),
    "a comment that is not there": overwritten(56 + 20 + 20, "<H", 9),
    "bytes before all members": inserted(lambda _data: 0),
    "bytes between two members": inserted(lambda data: data.index(b"PK\3\4", 4)),
    "bytes after all members": inserted(len),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_archive_with_two_readings_is_refused(tmp_path: Path, forgery: str) -> None:
    """It is refused whatever `zipfile` reads: another reader may use the other record, or other bytes.

    With both end records, as torch writes them beyond 4 GiB, it is read.
    """
    path = tmp_path / "two.pt2"
    path.write_bytes(zip64(path))
    assert [member.name for member in ZipContainer(path).members] == [GOOD, "m/b"]
    path.write_bytes(FORGERIES[forgery](bytearray(path.read_bytes())))
    assert slug_of(path) in ("unsafe_archive", "truncated_zip")
    with pytest.raises(PackageError) as caught:
        refuse_unsafe(path)
    assert caught.value.slug == "unsafe_archive"


# Files that are not AOTInductor packages.

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.target,)  # type: ignore[return-value]


def refusal(path: Path) -> PackageError:
    with pytest.raises(PackageError) as caught:
        open_package(path)
    return caught.value


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n"
SCRIPT: Members = {"m/data.pkl": b"", "m/constants.pkl": b"", "m/code/__torch__.py": b""}


@pytest.mark.parametrize(
    ("content", "slug", "said"),
    [
        (b"", "empty_file", ""),
        (b"model:\n", "not_a_zip", ""),
        (LFS, "not_a_zip", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "not_a_zip", "web page"),
        (b"\x08\x08\x12\x07pytorch", "not_a_zip", "ONNX"),
        (b"\x1f\x8b\x08\x00", "not_a_zip", "gzip"),
        (b"GGUF\x03\0\0\0", "not_a_zip", "GGUF"),
        ((60).to_bytes(8, "little") + b'{"weight":{}}', "not_a_zip", "safetensors"),
        (SCRIPT, "torchscript_file", ""),
        ({"m/abc.so": b"", "m/abc.cpp": b""}, "outdated_layout", ""),  # of torch before 2.6
        ({"readme.txt": b""}, "no_model", ""),
        # Archives of other kinds with a library.
        ({"torch-2.13.0.dist-info/METADATA": b"", "torch/_C.so": b""}, "other_zip", "Python wheel"),
        ({"arr_0.npy": b"", "torch/_C.so": b""}, "other_zip", "NumPy"),
        ({"MAR-INF/MANIFEST.json": b"", "torch/_C.so": b""}, "other_zip", "TorchServe"),
        ({"META-INF/MANIFEST.MF": b"", "torch/_C.so": b""}, "other_zip", "Java"),
        # A package zipped again.
        ({"scorer.pt2": b"PK", "NOTES.txt": b""}, "other_zip", "scorer.pt2"),
        ({"release/scorer.pt2": b"PK", "NOTES.txt": b""}, "other_zip", "release/scorer.pt2"),
    ],
)
def test_files_that_are_no_package(tmp_path: Path, content: bytes | Members, slug: str, said: str) -> None:
    """The error says what a file with a package's name really is."""
    path = tmp_path / "model.pt2"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write(path, content)
    error = refusal(path)
    assert error.slug == slug and said in f"{error.what} {error.value}"
    assert not said.endswith(".pt2") or "unpack" in error.next_call


def test_archives_of_torch(zoo: Zoo, tmp_path: Path) -> None:
    """The error names torch's programs and tensors, missing files, other folders, and partial packages."""
    package = zoo("ranker")
    assert refusal(package.with_name("ranker.exported.pt2")).slug == "torch_export_archive"
    assert refusal(package.with_name("ranker.inputs.pt")).slug == "torch_save_file"
    (tmp_path / "some" / "dir").mkdir(parents=True)
    assert refusal(tmp_path / "some").slug == "not_a_package_directory"
    assert refusal(tmp_path / "gone.pt2").slug == "missing_file"
    data = package.read_bytes()
    (tmp_path / "half.pt2").write_bytes(data[: len(data) // 2])
    assert refusal(tmp_path / "half.pt2").slug == "truncated_zip"
    (tmp_path / "model.so").write_bytes(b"\x7fELF" + bytes(60))  # alone, it does not describe its inputs
    assert refusal(tmp_path / "model.so").slug == "shared_library_without_wrapper"


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would wait for its writer, even among the files of a directory."""
    os.mkfifo(tmp_path / "pipe.pt2")
    assert refusal(tmp_path / "pipe.pt2").slug == "unreadable_file"
    assert refusal(Path("/dev/zero")).slug == "unreadable_file"
    model = tmp_path / "unpacked" / "data" / "aotinductor" / "model"
    model.mkdir(parents=True)
    os.mkfifo(model / "a.wrapper.cpp")
    assert refusal(tmp_path / "unpacked").slug == "no_model"


def test_pickles_are_never_unpickled(tmp_path: Path) -> None:
    """A pickle is refused by its first bytes, and nothing in it runs."""
    target = tmp_path / "ran"
    (tmp_path / "trap.pt2").write_bytes(pickle.dumps(Trap(target)))
    (tmp_path / "old.pt").write_bytes(pickle.dumps(LEGACY_MAGIC, 2) + pickle.dumps(Trap(target), 2))
    assert refusal(tmp_path / "trap.pt2").slug == "pickle_file"
    assert refusal(tmp_path / "old.pt").slug == "torch_save_file"
    assert not target.exists()


def test_the_capability_is_read_from_a_kernel_where_the_metadata_lack_it(tmp_path: Path) -> None:
    """The properties of the device for which a Triton kernel was tuned have the capability."""
    assert recorded("attention", tmp_path).package.compute_capability == "90"
