"""Cuts the output of `run.py` down to recordings: `python benchmarks/memory_faults/record.py OUT RECORDINGS`.

For each program: the wrapper without interface functions and compile commands, the operators' JSON, the
first records of memcheck, the journal, the index ranges and inputs of that run, and the truth. Directories of
the machine are replaced.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(HERE)]

RECORDS = 1
_PATH = re.compile(r"/(?:tmp|root|home|opt|work)/[\w./+-]*/")
_CUBIN = re.compile(r"(?<=/cache/)c\w{51}(?=\.cubin)")
"""Differs from compile to compile: without it, programs with the same code have the same recording."""
_START = "#define CUDA_DRIVER_CHECK"
_END = "\n// Compile cmd"


def main(out: Path, target: Path, truths: Path) -> None:
    """Record every program that has a journal; `truths` is a JSON of what is right, by program."""
    known = json.loads(truths.read_text())
    for located in sorted(out.glob("*/located.json")):
        name = located.parent.name
        run = next(iter(sorted(located.parent.glob("located/*check"))), None)
        if run is None or name not in known:
            continue
        place = target / name
        place.mkdir(parents=True, exist_ok=True)
        _package(next(iter(out.glob(f"**/{name}.pt2"))), place)
        (place / "memcheck.txt").write_text(_clean("".join(_records(run / "output.log"))))
        (place / "launches.jsonl").write_text((run / "launches.jsonl").read_text())
        (place / "report.jsonl").write_text("".join(_events(run / "report.jsonl")))
        (place / "truth.json").write_text(json.dumps(known[name], indent=1) + "\n")


def _package(path: Path, place: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        text = archive.read(next(n for n in names if n.endswith(".wrapper.cpp"))).decode()
        nodes = next((n for n in names if n.endswith(".wrapper.json")), None)
        if nodes:
            (place / "model.wrapper.json").write_bytes(archive.read(nodes))
    cut = text[text.find(_START) if _START in text else 0 :]
    code = _CUBIN.sub("kernel", _clean(cut[: cut.find(_END)].rstrip()))
    (place / "model.wrapper.cpp").write_text(code + "\n")


def _records(path: Path) -> Iterator[str]:
    """The first records, and the summary."""
    seen = 0
    for line in path.open(encoding="utf-8", errors="replace"):
        head = line.startswith("========= ") and not line.startswith("=========     ") and line.strip("= \n")
        seen += bool(head) and "SUMMARY" not in line and "COMPUTE" not in line
        if "SUMMARY" in line or "index out of bounds" in line or (line.startswith("=") and seen <= RECORDS):
            yield line


def _events(path: Path) -> Iterator[str]:
    for line in path.open():
        if json.loads(line)["event"] in ("argument", "given"):
            yield line


def _clean(text: str) -> str:
    return _PATH.sub("/cache/", text)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
