"""For every kind of damage to a package, a refusal is proven where the loader refused, and nowhere else."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Zoo, torch_environment
from tests.package.archives import Members, changed, name_ending
from tests.support.command import answered
from tests.zoo.names import nightly, thorough

pytestmark = pytest.mark.slow


def flipped(ending: str, place: Callable[[bytes], int]) -> Callable[[Path, Path], None]:
    """Flip one bit of a member; the archive keeps the checksum of the good bytes."""

    def damage(package: Path, target: Path) -> None:
        good = package.read_bytes()
        changed(package, target, lambda members: None)
        raw, content = bytearray(target.read_bytes()), b""

        def read(members: Members) -> None:
            nonlocal content
            content = members[name_ending(members, ending)]

        changed(package, target.with_suffix(".copy"), read)
        raw[raw.index(content) + place(content)] ^= 1
        target.write_bytes(raw)
        assert good != bytes(raw)

    return damage


def rewritten(change: Callable[[Members], None]) -> Callable[[Path, Path], None]:
    """Change or remove members; the checksums are right."""

    def damage(package: Path, target: Path) -> None:
        changed(package, target, change)

    return damage


def without_member(ending: str) -> Callable[[Path, Path], None]:
    def drop(members: Members) -> None:
        del members[name_ending(members, ending)]

    return rewritten(drop)


def elf_header(members: Members) -> None:
    name = name_ending(members, "wrapper.so")
    members[name] = members[name][:18] + b"\xff\xff" + members[name][20:]  # the machine


def empty_library(members: Members) -> None:
    members[name_ending(members, "wrapper.so")] = b""


def cut(package: Path, target: Path) -> None:
    target.write_bytes(package.read_bytes()[:-4000])


def text(_package: Path, target: Path) -> None:
    target.write_text("not a package")


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "a bit of kernel_information.json": flipped("kernel_information.json", lambda data: len(data) // 2),
    "a bit of kernel.cpp": flipped("kernel.cpp", lambda data: data.index(b"#include") + 3),
    "no wrapper_metadata.json": without_member("wrapper_metadata.json"),
    "no library": without_member("wrapper.so"),
    "an empty library": rewritten(empty_library),
    "the ELF header, with a right checksum": rewritten(elf_header),
    "a cut archive": cut,
    "a text": text,
}
TRIED = ("a bit of kernel.cpp", "the ELF header, with a right checksum")
"""Harmless, and refused by the linker. tests/package/test_archive.py has an archive that is cut."""

LOAD = """
import sys, torch
torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1)
"""


def loads(package: Path) -> bool:
    """Whether torch's own loader accepts the file."""
    argv = [sys.executable, "-W", "ignore", "-c", LOAD, str(package)]
    return subprocess.run(argv, env=torch_environment(), capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("damage", [*TRIED, *nightly(*(each for each in DAMAGES if each not in TRIED))])
def test_a_refusal_is_proven_where_the_loader_refused(zoo: Zoo, tmp_path: Path, damage: str) -> None:
    """Otherwise the cause is the one of the call, here an index, and the damage is a remark."""
    package = tmp_path / "damaged.pt2"
    DAMAGES[damage](zoo("ranker"), package)
    found = answered("diagnose", package, "-i", zoo("ranker").with_name("ranker.bad-index.pt"))
    refused = found["category"] == "invalid_package" and found["confidence"] == "proven"
    if loads(package):
        assert not refused
        assert (found["category"], found["confidence"]) == ("index_out_of_bounds", "proven")
        assert any("is damaged" in remark for remark in found["remarks"])
    else:
        assert found["category"] in ("invalid_package", "arch_mismatch"), found["summary"]
        assert found["confidence"] == "proven"
        assert any(each["step"] == "run" for each in found["evidence"]), "the loader's words are quoted"


@thorough
def test_damage_that_does_no_harm_is_a_remark(zoo: Zoo, tmp_path: Path) -> None:
    """With good inputs the verdict stays `no_fault`; a remark names the damaged member."""
    package = tmp_path / "damaged.pt2"
    DAMAGES["a bit of kernel_information.json"](zoo("ranker"), package)
    found = answered("diagnose", package, "-i", zoo("ranker").with_name("ranker.inputs.pt"))
    assert found["outcome"] == "no_fault"
    assert any("kernel_information.json is damaged" in remark for remark in found["remarks"])
