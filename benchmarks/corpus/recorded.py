"""Logs of plain runs that the repository keeps; `python -m benchmarks.corpus.recorded` writes what exists.

A log names no machine: paths of the checkout, of the interpreter and of caches are replaced. CI scores the
log form of the corpus on these, since running the programs takes too long there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import CACHE, Program, program
from benchmarks.corpus.validate import CASES, ROOT, select
from tests.recorded import RECORDINGS
from tools.made import MADE
from tools.packed import pack

LOGS = RECORDINGS / "corpus"


def neutral(text: str) -> str:
    """`text` with the paths of this machine replaced by those of none, the longest first."""
    replaced = {
        rf"{re.escape(str(CACHE))}/programs/[^/\s]+/script": "/srv/app",
        rf"{re.escape(str(CACHE))}/inductor/\w+": "/var/cache/inductor",
        rf"{re.escape(str(MADE))}/unpacked/[^/\s]+": "/srv/app",
        re.escape(sys.prefix): "/opt/venv",
        re.escape(sys.base_prefix): "/usr",
        re.escape(str(ROOT)): "/srv/app",
        re.escape(str(Path.home())): "/home/app",
        r"torchinductor_\w+": "torchinductor_app",
    }
    for pattern, path in replaced.items():
        text = re.sub(pattern, path, text)
    return text


def made() -> Iterator[tuple[Answer, Path]]:
    """Each CPU case whose plain run was made, with its log."""
    for answer in select(CASES, "cpu", []):
        case: Program = program(answer, CASES)
        log = case.home / "plain" / f"{answer.name}.log"
        if "log" in answer.forms and log.with_suffix(".json").exists():
            yield answer, log


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    for answer, log in made():
        (LOGS / f"{answer.name}.log").write_text(neutral(log.read_text(errors="replace")))
        print(answer.name)
    pack(RECORDINGS, ROOT / "tests" / "recordings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
