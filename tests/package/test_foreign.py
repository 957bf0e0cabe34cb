"""Files that are no AOTInductor package are named for what they are."""

from __future__ import annotations

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
