"""Files that are no AOTInductor package are named for what they are."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.problems import PackageError
from tests.conftest import ZooPackage
from tests.package.archives import write

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.target,)  # type: ignore[return-value]


def refusal(path: Path) -> PackageError:
    with pytest.raises(PackageError) as caught:
        open_package(path)
    return caught.value


def test_plain_files(tmp_path: Path) -> None:
    """Missing, empty, text, a directory of something else: each has its own slug."""
    (tmp_path / "empty.pt2").touch()
    (tmp_path / "text.pt2").write_text("model:\n")
    (tmp_path / "some" / "dir").mkdir(parents=True)
    assert refusal(tmp_path / "gone.pt2").slug == "missing_file"
    assert refusal(tmp_path / "empty.pt2").slug == "empty_file"
    assert refusal(tmp_path / "text.pt2").slug == "not_a_zip"
    assert refusal(tmp_path / "some").slug == "not_a_package_directory"


def test_archives_of_torch(zoo: ZooPackage) -> None:
    """An exported program and a file of tensors, as torch itself wrote them."""
    package = zoo("ranker")
    assert refusal(package.with_name("ranker.exported.pt2")).slug == "torch_export_archive"
    assert refusal(package.with_name("ranker.inputs.pt")).slug == "torch_save_file"


def test_archives_by_their_members(tmp_path: Path) -> None:
    """TorchScript, a layout from before torch 2.6, and a zip of anything else."""
    script = {"m/data.pkl": b"", "m/constants.pkl": b"", "m/code/__torch__.py": b""}
    assert refusal(write(tmp_path / "ts.pt2", script)).slug == "torchscript_file"
    assert refusal(write(tmp_path / "old.pt2", {"m/abc.so": b"", "m/abc.cpp": b""})).slug == "outdated_layout"
    assert refusal(write(tmp_path / "zip.pt2", {"readme.txt": b""})).slug == "no_model"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "web page"),
        (b"\x08\x08\x12\x07pytorch", "ONNX"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        ((60).to_bytes(8, "little") + b'{"weight":{}}', "safetensors"),
    ],
)
def test_files_by_their_first_bytes(tmp_path: Path, start: bytes, said: str) -> None:
    """What is mistaken for a package by its name is called what it is."""
    (tmp_path / "model.pt2").write_bytes(start)
    error = refusal(tmp_path / "model.pt2")
    assert error.slug == "not_a_zip" and said in error.what


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ("torch-2.13.0.dist-info/METADATA", "Python wheel"),
        ("arr_0.npy", "NumPy"),
        ("MAR-INF/MANIFEST.json", "TorchServe"),
        ("META-INF/MANIFEST.MF", "Java"),
    ],
)
def test_other_zips(tmp_path: Path, member: str, said: str) -> None:
    """Zip archives of other kinds are called what they are, a library in them or not."""
    error = refusal(write(tmp_path / "model.pt2", {member: b"", "torch/_C.so": b""}))
    assert error.slug == "other_zip" and said in error.what


def test_a_package_that_was_zipped_once_more(tmp_path: Path) -> None:
    """An archive around a .pt2 is called that, and the package in it is named."""
    for member in ("scorer.pt2", "release/scorer.pt2"):
        error = refusal(write(tmp_path / "model.pt2", {member: b"PK", "NOTES.txt": b""}))
        assert (error.slug, error.value) == ("other_zip", [member]) and "unpack" in error.next_call


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would wait for its writer, alone or among the files of a directory."""
    os.mkfifo(tmp_path / "pipe.pt2")
    assert refusal(tmp_path / "pipe.pt2").slug == "unreadable_file"
    assert refusal(Path("/dev/zero")).slug == "unreadable_file"
    model = tmp_path / "unpacked" / "data" / "aotinductor" / "model"
    model.mkdir(parents=True)
    os.mkfifo(model / "a.wrapper.cpp")
    assert refusal(tmp_path / "unpacked").slug == "no_model"


def test_a_cut_archive(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package whose copy stopped half way has no directory at its end."""
    data = zoo("ranker").read_bytes()
    (tmp_path / "half.pt2").write_bytes(data[: len(data) // 2])
    assert refusal(tmp_path / "half.pt2").slug == "truncated_zip"


def test_pickles_are_never_unpickled(tmp_path: Path) -> None:
    """A pickle is refused by its first bytes; what it would run does not run."""
    target = tmp_path / "ran"
    (tmp_path / "trap.pt2").write_bytes(pickle.dumps(Trap(target)))
    (tmp_path / "old.pt").write_bytes(pickle.dumps(LEGACY_MAGIC, 2) + pickle.dumps(Trap(target), 2))
    assert refusal(tmp_path / "trap.pt2").slug == "pickle_file"
    assert refusal(tmp_path / "old.pt").slug == "torch_save_file"
    assert not target.exists()


def test_a_library_alone(tmp_path: Path) -> None:
    """A .so without its wrapper.cpp says nothing about inputs."""
    (tmp_path / "model.so").write_bytes(b"\x7fELF" + bytes(60))
    assert refusal(tmp_path / "model.so").slug == "shared_library_without_wrapper"
