"""The steps of a job: what a running step is called, and finished steps, which a resumed job does not repeat.

A step's key is a digest of its command, its request and the content of the files that they name, but not of
the numbers in the names of step folders. It is written next to the output when the child ends, so a step
that was stopped has no key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_server.errors import read_json
from mcp_server.jobs.child import STOOD_STILL, Command, Finished

# A script compiles before it calls; other programs do not.
COMPILES = " (including its compiles)"
# By the name of the step's folder, without a number at its end.
WORDS = {
    "capture": "running {program}" + COMPILES,
    "plain": "making the call once",
    "load": "loading the package",
    "checked": "making the call with all checks on",
    **dict.fromkeys(("repeat", "repeats"), "making the call again, to see whether it varies"),
    "run": "making the call",
    "with": "making the call with the change",
    "again": "making the call without the change again",
    "replay": "making the recorded call again",
    "rebuild-inputs": "reading the inputs of the recorded call",
    "describe-inputs": "reading the inputs",
    "describe-files": "reading tensors",
    "index-values": "comparing the indices in the inputs with their limits",
    "trace": "making the call, and watching each launch",
    "observe": "recording what every kernel reads and writes",
    "interpret": "running the exported program operator by operator",
    "time-call": "timing the call, unchanged and changed in turn",
    "time-launches": "timing each kernel of the call",
    "time-load": "timing the load",
    **dict.fromkeys(("build", "time-build"), "timing the build"),
    "compile-forwarders": "compiling timers for each kernel",
    "schemas": "reading the operators that the package calls",
    "verify": "running the package and the program",
    "reference": "running eager mode",
    "compare-launches": "comparing each kernel with eager mode",
    "intervene": "testing whether a change removes the failure",
    "intervene-flaky": "repeating the call with and without the change",
    **dict.fromkeys(("alone", "alone-again"), "running {program} again, as it is"),
    "in-order": "running {program} with one kernel or copy at a time",
    "with-stream": "running {program} with a wait before its streams begin",
    "with-output-stream": "running {program} with a wait after its streams",
    "with-copy": "running {program} with copies that it waits for",
    "with-precision": "running {program} with products in full precision",
    "with-update": "running {program} with constants that it does not share",
    "with-stream-capture": "running {program} with a package for one thread",
    "judge-captures": "computing recorded launches from their source",
    "operators": "reading the operators of the program",
    "compile": "compiling the model",
    "compile-changed": "compiling the model with less work",
    "try-sizes": "compiling the model without the operator that fixed a size",
    "unedited": "running the package as it was read",
    "toolchain": "",  # takes no time, so it needs no line
    **dict.fromkeys(
        ("compile-wrapper", "compile-runtime", "compile-regex", "compile-kernels", "link"),
        "compiling the package with probes",
    ),
    **dict.fromkeys(("compile-kernel", "link-kernel", "recompile-triton"), "compiling the changed kernel"),
    "compile-recorder": "compiling the recorder",
    "probe": "looking for torch and GPUs",
    **dict.fromkeys(("compiler", "compiler-program"), "testing the C++ compiler"),
    "native": "running under native checks",
    "asan": "running under AddressSanitizer",
    "ubsan": "running under UndefinedBehaviorSanitizer",
    "memcheck": "running under compute-sanitizer (memcheck)",
    "initcheck": "running under compute-sanitizer (initcheck)",
    "racecheck": "running under compute-sanitizer (racecheck)",
    "synccheck": "running under compute-sanitizer (synccheck)",
    "sync": "running with a wait after each kernel",
    "core-dump": "running until it dumps a core",
    "attempt": "compiling the program and calling it once",
    "record": "computing the values of the program in eager mode",
    "cut": "cutting the program down",
    "trial": "trying a smaller program",
    "reproduction-run": "running the reproduction",
}


def in_words(step: str, argv: Sequence[str] = ()) -> str:
    """The progress line of the step `step`, which runs `argv`. Unknown steps keep their name."""
    name = step.replace("_", "-").rstrip("0123456789").rstrip("-")
    # The name of the script that a command runs, or of its program.
    script = next((word for word in argv[1:] if word.endswith(".py")), argv[0] if argv else "the program")
    program = Path(script).name
    words = WORDS.get(name, name.replace("-", " ")).format(program=program)
    return words if program.endswith(".py") else words.removesuffix(COMPILES)


CARD = "step.json"
STREAMS = ("output", "stdout", "stderr")
NOT_LINKED = shutil.ignore_patterns(CARD)

# Variables that may differ between runs with the same result. They come from the time limit, which `take`
# compares, and from the free disk space.
IGNORED = frozenset({"AOTI_DEBUG_STACKS_AFTER", "AOTI_DEBUG_SPARED", "AOTI_DEBUG_CAPTURE_CAP"})

WHOLE_BYTES = 16 << 20  # of a larger file, only both ends, the size and the modification time are hashed
END_BYTES = 1 << 20


@dataclass
class StepCache:
    """The finished steps of a resumed job. Each is used once, in order."""

    steps: dict[str, list[tuple[Path, Finished]]] = field(default_factory=dict)
    last: int = 0

    @classmethod
    def read(cls, job: Path) -> StepCache:
        """Read the finished steps in a job's directory, and the highest step number."""
        found = defaultdict(list)
        numbered = sorted(path for path in job.glob("[0-9][0-9]*-*") if path.is_dir())
        for path in numbered:
            # Without a card, the step has not ended. A partial card was cut off while it was written.
            with suppress(OSError, ValueError, TypeError, KeyError):
                card = read_json((path / CARD).read_bytes())
                card["finished"].update((name, path / f"{name}.log") for name in STREAMS)
                found[str(card["key"])].append((path, Finished(**card["finished"])))
        last = max((int(path.name.partition("-")[0]) for path in numbered), default=0)
        return cls(dict(found), last)

    def take(self, key: str, command: Command, directory: Path) -> Finished | None:
        """The cached result of this command, with its files in `directory`. None if it must run.

        The result of a timed-out run is not valid for a longer time limit, unless the run had stalled.
        """
        for path, finished in self.steps.get(key, ()):
            cut_off = finished.ending == "timeout" and not finished.note.startswith(STOOD_STILL)
            too_short = cut_off and finished.wall_s - finished.spared_s < command.timeout_s - 1
            if too_short or not all((path / f"{name}.log").exists() for name in STREAMS):
                continue
            self.steps[key].remove((path, finished))
            shutil.copytree(path, directory, copy_function=_link, ignore=NOT_LINKED, dirs_exist_ok=True)
            output, stdout, stderr = (directory / f"{name}.log" for name in STREAMS)
            return replace(finished, reused=True, output=output, stdout=stdout, stderr=stderr)
        return None


def keep(key: str, directory: Path, finished: Finished) -> None:
    """Store a finished step for `StepCache`. On a full disk nothing is stored, and the step runs again."""
    fields = {name: value for name, value in asdict(finished).items() if name not in STREAMS}
    draft = directory / f"{CARD}.draft"
    with suppress(OSError):
        draft.write_text(json.dumps({"key": key, "finished": fields}))
        draft.replace(directory / CARD)


def key_of(command: Command, directory: Path) -> str:
    """Compute the key of `command`, for a child whose directory is `directory`."""
    # The same step may have another number in a resumed job.
    numbered = re.compile(re.escape(str(directory.parent)) + r"/\d\d+-")
    env = {name: value for name, value in command.env.items() if name not in IGNORED}
    words = [*command.argv, str(command.cwd), *sorted(f"{k}={v}" for k, v in env.items()), *command.unset]
    request = directory / "request.json"
    if request.exists():
        words += _words(json.loads(request.read_text()))
    digest = hashlib.sha256()
    for word in words:
        digest.update(numbered.sub("JOB/", word).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(_content(word, directory).encode() + b"\0")
    return digest.hexdigest()


def _words(value: Any) -> Iterator[str]:
    """Yield the keys and values of a request one by one, because some of them name files."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield name
            yield from _words(value[name])
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
    else:
        yield str(value)


def _content(word: str, directory: Path) -> str:
    """Digest the file that `word` names; "" for other words and for files that this step writes."""
    if not word.startswith("/") or word.startswith(str(directory)):
        return ""
    try:
        status = os.stat(word)  # noqa: PTH116 - any word may be asked about, also one too long for a path
    except (OSError, ValueError):
        return ""
    return _digest(word, status.st_size, status.st_mtime_ns) if os.path.isfile(word) else ""  # noqa: PTH113


@lru_cache(maxsize=256)
def _digest(path: str, size: int, changed_ns: int) -> str:
    with open(path, "rb") as file:  # noqa: PTH123
        if size <= WHOLE_BYTES:
            return hashlib.sha256(file.read()).hexdigest()
        head = file.read(END_BYTES)
        file.seek(-END_BYTES, os.SEEK_END)
        return hashlib.sha256(head + file.read() + f"{size} {changed_ns}".encode()).hexdigest()


def _link(source: str, target: str) -> str:
    """Hard-link or copy the file; an existing target, such as the request, stays."""
    if not os.path.lexists(target):
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # a file system without links, or another user's file
            shutil.copyfile(source, target, follow_symlinks=False)
    return target
