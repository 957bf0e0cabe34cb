"""Many files in a few: what is packed comes out as it was, and what is copied on install stays small."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tools.made import MADE, made_below
from tools.packed import LEAST_ALIKE, Known, members_of, pack, rebuilt, steps_from, unpacked

MOST_FILES = 800
MOST_BYTES = 8_000_000

NAMES = st.from_regex(r"[a-z]{1,4}(/[a-z]{1,4})?\.(txt|cpp)", fullmatch=True)


@given(files=st.dictionaries(NAMES, st.binary(max_size=40), max_size=6))
def test_what_is_packed_comes_out(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    """Any content, also that of a header line, and equal contents under several names."""
    files = {**files, "again.txt": b"==> other <== 3\nabc\n", "twice.txt": b"==> other <== 3\nabc\n"}
    root = tmp_path_factory.mktemp("packed")
    for name, data in files.items():
        (root / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "files" / name).write_bytes(data)
    (root / "kind").mkdir()
    pack(root / "files", root / "kind")
    found = dict(member for packed in (root / "kind").iterdir() for member in members_of(packed))
    assert found == files


LINES = st.lists(st.sampled_from([b"a\n", b"= 0 1\n", b"+ 1\n", b"\r\n", b"c\r", b"\n"])).map(b"".join)


@given(other=LINES, data=LINES.map(lambda text: text + b"end\n"))
def test_a_file_is_made_again_from_another(other: bytes, data: bytes) -> None:
    """And from itself. Lines that look like steps, and ends of lines of other systems, included."""
    known = Known(other)
    before = list(known.lines)
    assert rebuilt(before, steps_from(known, data)) == data
    assert b"".join(known.lines) == other + data


def test_a_file_like_another_takes_only_its_changes(tmp_path: Path) -> None:
    """The second wrapper of the same model: what is written is shorter, what is read is the same."""
    lines = [b"line %d\n" % number for number in range(LEAST_ALIKE)]
    texts = {"a.cpp": b"".join(lines), "b.cpp": b"".join([*lines[:50], b"changed\n", *lines[60:]])}
    (tmp_path / "files").mkdir()
    (tmp_path / "kind").mkdir()
    for name, data in texts.items():
        (tmp_path / "files" / name).write_bytes(data)
    pack(tmp_path / "files", tmp_path / "kind")
    (packed,) = (tmp_path / "kind").iterdir()
    assert dict(members_of(packed)) == texts
    assert packed.stat().st_size < len(texts["a.cpp"]) + 200


def test_a_report_that_repeats_itself_is_written_once(tmp_path: Path) -> None:
    """A stack that stands under each of many records, say."""
    stack = b"".join(b"=========     at frame %d\n" % number for number in range(LEAST_ALIKE // 20))
    (tmp_path / "files").mkdir()
    (tmp_path / "kind").mkdir()
    (tmp_path / "files" / "a.txt").write_bytes(b"".join(b"record %d\n%b" % (n, stack) for n in range(20)))
    pack(tmp_path / "files", tmp_path / "kind")
    (packed,) = (tmp_path / "kind").iterdir()
    assert dict(members_of(packed))["a.txt"] == (tmp_path / "files" / "a.txt").read_bytes()
    assert packed.stat().st_size < 2 * len(stack)


def test_a_folder_has_loose_files_and_packed_ones(tmp_path: Path) -> None:
    """What lies loose stays so, a change is packed again, and each content has a folder of its own."""
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "logs.packed").write_bytes(b"==> logs/a.txt <== 1\na\n==> logs/b.txt <== as logs/a.txt\n")
    first = unpacked(tmp_path)
    assert sorted(str(p.relative_to(first)) for p in first.rglob("*.*")) == [
        "README.md",
        "logs/a.txt",
        "logs/b.txt",
    ]
    (first / "logs" / "b.txt").write_text("b")
    pack(first, tmp_path)
    assert (tmp_path / "logs.packed").read_bytes() == b"==> logs/a.txt <== 1\na\n==> logs/b.txt <== 1\nb\n"
    assert unpacked(tmp_path) != first and (tmp_path / "README.md").exists()


@pytest.mark.parametrize(
    "text",
    [
        b"no header",
        b"==> a <== 1\nx\n==> b <== 2 of steps\nx\n\n",
        b"==> ../out <== 1\nx\n",
        b"==> /out <== 1\nx\n",
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: bytes) -> None:
    """A line that was edited away, or a name outside the folder."""
    (tmp_path / "a.packed").write_bytes(text)
    with pytest.raises(ValueError):
        unpacked(tmp_path)


def test_what_an_install_copies_is_small() -> None:
    """Tracked files, since `npx skills add` copies every one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    there = [path for path in files if path.is_file()]
    assert len(there) <= MOST_FILES
    assert sum(path.stat().st_size for path in there) <= MOST_BYTES


def test_what_is_made_lies_outside_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment, caches and compiled models: the Makefile and Python agree on where."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("AOTI_DEBUG_MADE", raising=False)
    assert not made_below(ROOT).is_relative_to(ROOT)
    argv = ["make", "-s", "VENV=$(MADE)/venv", "env"]
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert said == str(made_below(ROOT) / "venv")
    assert MADE.is_absolute()
