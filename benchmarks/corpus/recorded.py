"""Logs of plain runs that the repository keeps; `python -m benchmarks.corpus.recorded` writes what exists.

Paths of the checkout, the interpreter and caches are replaced, so that a log names no machine. Inner library
frames of stacks are left out. CI scores the log form of the corpus on these, since running the programs takes
too long there. In the file, a number stands for a line of the first row, which has lines of several logs.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.corpus.answers import Answer
from benchmarks.corpus.forms import CACHE, program
from benchmarks.corpus.validate import ROOT, select

LOGS = ROOT / "tests" / "recordings" / "program-logs.jsonl"
# Printed at every export.
WARNING = re.compile(r"^\S+/copyreg\.py:\d+: FutureWarning: .*\n  return cls\.__new__\(cls, \*args\)\n", re.M)

_PYTHON_FRAME = r'  File "/opt/venv/.*\n(?:    .*\n){0,2}'
_LIBRARY = r"(?:/lib(?:torch\w*|c10\w*|c)\.so|bin/python)"
_FRAMES = (
    re.compile(rf"({_PYTHON_FRAME})(?:{_PYTHON_FRAME})+({_PYTHON_FRAME})"),
    re.compile(rf"()^frame #(?!0:)\d+: (?!aoti_torch_).*{_LIBRARY}.*\n()", re.M),
)
"""Library frames. Of Python's in a row, the first and the last are kept; of C++'s, the first and those of
AOTInductor's functions."""
_GRAPH = re.compile(r"^\n*def forward\(self, .*\n(?: {4}.*\n|\n)*", re.M)
"""What a failed export prints of the program that it traced so far."""
_CARETS = re.compile(r"^ +[\^~]+ *\n", re.M)  # below the code of a frame; Python 3.10 prints none


def shortened(text: str) -> str:
    """`text` without traced graphs, carets, and the inner library frames of its stacks."""
    text = _CARETS.sub("", _GRAPH.sub("", text))
    for frames in _FRAMES:
        text = frames.sub(r"\1\2", text)
    return text


def neutral(text: str) -> str:
    """`text` with neutral paths in place of this machine's, the longest first."""
    replaced = {
        rf"{re.escape(str(CACHE))}/programs/[^/\s]+/script": "/srv/app",
        rf"{re.escape(str(CACHE))}/inductor/\w+": "/var/cache/inductor",
        re.escape(sys.prefix): "/opt/venv",
        re.escape(sys.base_prefix): "/usr",
        re.escape(str(ROOT)): "/srv/app",
        re.escape(str(Path.home())): "/home/app",
        r"torchinductor_\w+": "torchinductor_app",
    }
    for pattern, path in replaced.items():
        text = re.sub(pattern, path, text)
    return WARNING.sub("", text)


def logs() -> dict[str, str]:
    """The kept log of each program."""
    first, *rows = map(json.loads, LOGS.read_text().splitlines())
    shared = first["shared"]
    lines = {row["program"]: [shared[e] if isinstance(e, int) else e for e in row["log"]] for row in rows}
    return {program: "\n".join(log) + "\n" for program, log in lines.items()}


def made() -> Iterator[tuple[Answer, Path]]:
    """Each CPU case that has a log of its plain run, with that."""
    for answer in select("cpu"):
        log = program(answer).home / "plain" / f"{answer.name}.log"
        if "log" in answer.forms and log.with_suffix(".json").exists():
            yield answer, log


def main() -> int:
    kept = logs()
    for answer, log in made():
        kept[answer.name] = shortened(neutral(log.read_text(errors="replace")))
        print(answer.name)
    logs_of = {name: kept[name].splitlines() for name in sorted(kept)}
    every = Counter(line for log in logs_of.values() for line in log)
    place = {line: n for n, line in enumerate(each for each, times in every.items() if times > 1)}
    rows = [
        {"program": name, "log": [place.get(each, each) for each in log]} for name, log in logs_of.items()
    ]
    text = (
        json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
        for row in ({"shared": list(place)}, *rows)
    )
    LOGS.write_text("".join(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
