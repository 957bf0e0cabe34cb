"""What an install copies: every tracked file. They are few and plain text; build outputs are elsewhere."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.made import MADE, made_below

MOST_FILES = 595
MOST_BYTES = 6_000_000


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in files if path.is_file()]


def test_what_an_install_copies_is_small() -> None:
    """`npx skills add` copies every tracked file, so they are few and small."""
    files = tracked()
    assert len(files) <= MOST_FILES
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


def test_every_tracked_file_is_plain_text() -> None:
    """Every tracked file can be read as text."""
    assert [path.name for path in tracked() if b"\0" in path.read_bytes()] == []


def test_what_is_made_lies_outside_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Makefile and Python agree on where the environment, caches and compiled models are."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("AOTI_DEBUG_MADE", raising=False)
    assert not made_below(ROOT).is_relative_to(ROOT)
    argv = ["make", "-s", "VENV=$(MADE)/venv", "env"]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert said == str(made_below(ROOT) / "venv")
    assert MADE.is_absolute()
