"""Many small files in a few: `npx skills add` copies this repository file by file.

A `.packed` file is plain text, to be searched and compared as such: for each file a line `==> NAME <== BYTES`
and its bytes, or `==> NAME <== as OTHER` where another file before it holds the same. A file that repeats
most lines of an earlier one has `==> NAME <== BYTES like OTHER`; its bytes are then steps: `= FIRST COUNT`
takes lines of OTHER, counted from 0, and `+ COUNT` takes the lines that follow.

Readers get a folder in which all files lie as they were: `unpacked(FOLDER)`. `python -m tools.packed FOLDER`
prints where that is; after a change there, the same with `--pack` writes the `.packed` files anew.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from tools.made import MADE

SUFFIX = ".packed"
_HEADER = re.compile(
    rb"==> (?P<name>[^\n]+) <== (?:(?P<bytes>\d+)(?: like (?P<like>[^\n]+))?|as (?P<same>[^\n]+))\n"
)
_STEP = re.compile(rb"(?:= (?P<first>\d+) (?P<count>\d+)|\+ (?P<new>\d+))\n")
LEAST_ALIKE = 4096  # bytes of a file that may be written as changes of another: whole text is easier to read


def unpacked(folder: Path) -> Path:
    """A folder with the loose files of `folder` and those in its `.packed` files.

    Raises ValueError for a file that is not in the format.
    """
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    digest = hashlib.sha256(b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources))
    target = MADE / "unpacked" / f"{folder.name}-{digest.hexdigest()[:12]}"
    if not target.is_dir():
        _fill(target, sources)
    return target


def _fill(target: Path, sources: list[Path]) -> None:
    """Beside its place and then moved there: another process may be at the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        new = Path(work) / "new"
        new.mkdir()
        for source in sources:
            members = members_of(source) if source.suffix == SUFFIX else [(source.name, source.read_bytes())]
            for name, data in members:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_bytes(data)
        try:
            new.rename(target)
        except OSError:  # the other process was first
            if not target.is_dir():
                raise


def members_of(packed: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents, in order. Raises ValueError."""
    data, at, seen = packed.read_bytes(), 0, dict[str, bytes]()
    while at < len(data):
        header = _HEADER.match(data, at)
        if header is None:
            raise ValueError(f"{packed}: no file begins at byte {at}; pack it again, don't edit it")
        name, end = header["name"].decode(), header.end()
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(f"{packed}: {name!r} leaves the folder")
        if header["same"]:
            seen[name] = seen[header["same"].decode()]
            at = end
        else:
            at = end + int(header["bytes"]) + 1
            body, like = data[end : at - 1], header["like"]
            seen[name] = rebuilt(seen[like.decode()], body) if like else body
        yield name, seen[name]


def rebuilt(other: bytes, steps: bytes) -> bytes:
    """The file that differs from `other` by these steps. Raises ValueError."""
    known, new, made, at = other.splitlines(keepends=True), steps.splitlines(keepends=True), list[bytes](), 0
    while at < len(new):
        step = _STEP.fullmatch(new[at])
        if step is None:
            raise ValueError(f"not a step: {new[at][:60]!r}; pack it again, don't edit it")
        at += 1
        if step["new"]:
            made += new[at : at + int(step["new"])]
            at += int(step["new"])
        else:
            made += known[int(step["first"]) : int(step["first"]) + int(step["count"])]
    return b"".join(made)


def steps_from(other: bytes, data: bytes) -> bytes:
    """How `data` is made from lines of `other`. Both end with a whole line."""
    known, lines = other.splitlines(keepends=True), data.splitlines(keepends=True)
    steps, at = list[bytes](), 0
    for match in SequenceMatcher(None, known, lines, autojunk=False).get_matching_blocks():
        if match.b > at:
            steps += [b"+ %d\n" % (match.b - at), *lines[at : match.b]]
        if match.size:
            steps.append(b"= %d %d\n" % (match.a, match.size))
        at = match.b + match.size
    return b"".join(steps)


def pack(files: Path, folder: Path) -> None:
    """Write the `.packed` files of `folder` from `files`: one per folder in it, and one for what lies loose.

    What lies loose in `folder` itself stays there, and is written anew.
    """
    loose = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != SUFFIX}
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in files.rglob("*") if path.is_file()):
        name = path.relative_to(files)
        if str(name) in loose:
            shutil.copyfile(path, folder / name)
        else:
            kinds.setdefault(name.parts[0] if len(name.parts) > 1 else folder.name, []).append(path)
    for old in folder.glob(f"*{SUFFIX}"):
        old.unlink()
    for kind, paths in kinds.items():
        (folder / f"{kind}{SUFFIX}").write_bytes(b"".join(_entries(files, paths)))


def _entries(files: Path, paths: list[Path]) -> Iterator[bytes]:
    first: dict[bytes, str] = {}
    lines_of: dict[str, set[bytes]] = {}  # of the files that later ones may be like
    for path in paths:
        name, data = path.relative_to(files).as_posix(), path.read_bytes()
        known = first.setdefault(data, name)
        if known != name:
            body = f"as {known}\n".encode()
        else:
            body = _alike(files, data, lines_of) or b"%d\n%s\n" % (len(data), data)
            if len(data) >= LEAST_ALIKE and data.endswith(b"\n"):
                lines_of[name] = set(data.splitlines())
        yield f"==> {name} <== ".encode() + body


def _alike(files: Path, data: bytes, lines_of: dict[str, set[bytes]]) -> bytes | None:
    """An entry of changes to the earlier file that shares most lines; None if that saves less than half."""
    if len(data) < LEAST_ALIKE or not lines_of or not data.endswith(b"\n"):
        return None
    lines = set(data.splitlines())
    other = max(lines_of, key=lambda name: len(lines & lines_of[name]))
    steps = steps_from((files / other).read_bytes(), data)
    return b"%d like %s\n%s\n" % (len(steps), other.encode(), steps) if len(steps) * 2 < len(data) else None


def main() -> int:
    folder = Path(sys.argv[1])
    if "--pack" in sys.argv[2:]:
        pack(unpacked(folder), folder)
    print(unpacked(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
