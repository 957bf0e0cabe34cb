"""Many small files in a few: `npx skills add` copies this repository file by file.

A `.packed` file is plain text, to be searched and compared as such: for each file a line `==> NAME <== BYTES`
and its bytes, or `==> NAME <== as OTHER` where another file before it holds the same. A file that repeats
earlier lines has `==> NAME <== BYTES of steps`: `= FIRST COUNT` takes lines of the files before it and of
itself so far, counted from 0 through all of them, and `+ COUNT` takes the lines that follow.

Readers get a folder in which all files lie as they were: `unpacked(FOLDER)`. `python -m tools.packed FOLDER`
prints where that is; after a change there, the same with `--pack` writes the `.packed` files anew.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from tools.made import MADE

SUFFIX = ".packed"
_HEADER = re.compile(
    rb"==> (?P<name>[^\n]+) <== (?:(?P<bytes>\d+)(?P<steps> of steps)?|as (?P<same>[^\n]+))\n"
)
_STEP = re.compile(rb"(?:= (?P<first>\d+) (?P<count>\d+)|\+ (?P<new>\d+))\n")
LEAST_ALIKE = 512  # bytes of a file that may be written as steps: whole text is easier to read
LEAST_TAKEN = 20  # bytes of lines that are taken from before: a step takes as many
PLACES_TRIED = 200  # of a line that stands in many places, the last ones


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
    data, at, seen, known = packed.read_bytes(), 0, dict[str, bytes](), list[bytes]()
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
            body = data[end : at - 1]
            seen[name] = rebuilt(known, body) if header["steps"] else body
            known += seen[name].splitlines(keepends=True)
        yield name, seen[name]


def rebuilt(known: Sequence[bytes], steps: bytes) -> bytes:
    """The file that these steps make of known lines, and of its own. Raises ValueError."""
    new, lines, at = steps.splitlines(keepends=True), list(known), 0
    while at < len(new):
        step = _STEP.fullmatch(new[at])
        if step is None:
            raise ValueError(f"not a step: {new[at][:60]!r}; pack it again, don't edit it")
        at += 1
        if step["new"]:
            lines += new[at : at + int(step["new"])]
            at += int(step["new"])
        else:
            lines += lines[int(step["first"]) : int(step["first"]) + int(step["count"])]
    return b"".join(lines[len(known) :])


class Known:
    """The lines of the files so far, and where each of them stands."""

    def __init__(self, *files: bytes) -> None:
        self.lines: list[bytes] = []
        self._places: dict[bytes, list[int]] = {}
        for data in files:
            self.add(data)

    def add(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self._places.setdefault(line, []).append(len(self.lines))
            self.lines.append(line)

    def longest(self, wanted: Sequence[bytes]) -> tuple[int, int]:
        """Where most of the lines that are wanted next stand in a row, and how many."""
        found = (0, 0)
        for first in self._places.get(wanted[0], [])[-PLACES_TRIED:]:
            row = zip(wanted, self.lines[first : first + len(wanted)], strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], row))
            found = max(found, (first, count), key=lambda place: place[1])
        return found


def steps_from(known: Known, data: bytes) -> bytes:
    """How `data`, which ends with a whole line, is made from known lines; its own are known after it."""
    lines, steps, new = data.splitlines(keepends=True), list[bytes](), list[bytes]()
    at = 0
    while at < len(lines):
        first, count = known.longest(lines[at:])
        if sum(map(len, lines[at : at + count])) > LEAST_TAKEN:
            steps += [*_added(new), b"= %d %d\n" % (first, count)]
            new = []
        else:
            count = 1
            new.append(lines[at])
        known.add(b"".join(lines[at : at + count]))
        at += count
    return b"".join([*steps, *_added(new)])


def _added(lines: list[bytes]) -> list[bytes]:
    return [b"+ %d\n" % len(lines), *lines] if lines else []


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
    first, lines = dict[bytes, str](), Known()
    for path in paths:
        name, data = path.relative_to(files).as_posix(), path.read_bytes()
        same = first.setdefault(data, name)
        if same != name:
            body = f"as {same}\n".encode()
        else:
            body = _in_steps(data, lines) or b"%d\n%s\n" % (len(data), data)
        yield f"==> {name} <== ".encode() + body


def _in_steps(data: bytes, known: Known) -> bytes | None:
    """None if that saves less than a tenth. The lines of `data` are known after it."""
    if len(data) < LEAST_ALIKE or not data.endswith(b"\n"):
        known.add(data)
        return None
    steps = steps_from(known, data)
    return b"%d of steps\n%s\n" % (len(steps), steps) if len(steps) * 10 < len(data) * 9 else None


def main() -> int:
    folder = Path(sys.argv[1])
    if "--pack" in sys.argv[2:]:
        pack(unpacked(folder), folder)
    print(unpacked(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
