"""Reads logs of users and children: the failure that they show, and what a launcher printed.

A large log is read in a separate process, so that the event loop continues and the server can exit.
Cancelling the read kills that process.

Under launchers such as torchrun and srun, finds the rank that failed first. Sources: torch.distributed.run of
torch 2.8-2.15 (torch/distributed/elastic/multiprocessing/api.py), srun of Slurm 22.05
(src/plugins/launch/slurm). A launcher puts no rank before its own lines.
"""

import ctypes
import io
import os
import re
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio.to_process
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Ending, Finished
from mcp_server.logs.facts import LogFacts
from mcp_server.logs.families.kinds import guide_path
from mcp_server.logs.log import lines_of, open_log, read_log, read_log_file
from mcp_server.logs.text import bound, read_line
from mcp_server.model import Category, Record

SMALL_BYTES = 1 << 20
"""Read within a tenth of a second, which is less than a process needs to start."""
KEPT = 16  # number of logs whose facts are cached

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Source = TypeVar("Source")
_Key = tuple[str, int, int]  # path, bytes, time of the last change in ns
_known: OrderedDict[_Key, LogFacts] = OrderedDict()


async def read_users_log(path: Path) -> LogFacts:
    """Read the facts of a user's log file. Raise ProblemError if it cannot be read or is not a log."""

    def size() -> int:
        with open_log(path) as file:
            return os.fstat(file.fileno()).st_size

    bytes_ = await anyio.to_thread.run_sync(size, abandon_on_cancel=True)
    return await _read_apart(read_log_file, path, bytes_)


async def read_text(text: str) -> LogFacts:
    """Read the facts of a text, with the line numbers that the same text would have in a file."""
    return await _read_apart(read_log, io.StringIO(text, newline=None).readlines(), len(text))


async def look_ahead(path: Path) -> None:
    """Cache the facts of a large output, so that `read_output` does not block on it."""
    key = _key(path)
    if key is None or key[1] <= SMALL_BYTES or key in _known:
        return
    _known[key] = await _read_apart(_read_output, path, key[1])
    if len(_known) > KEPT:
        _known.popitem(last=False)


def read_output(path: Path, process: str = "") -> LogFacts:
    """Read the facts of an output file, or of one process in it. Empty if there is no file."""
    key = None if process else _key(path)
    found = _known.get(key) if key else None
    return found or _read_output(path, process)


async def _read_apart(read: Callable[[Source], LogFacts], source: Source, size: int) -> LogFacts:
    """Run `read(source)` in a thread, or in a process if the source is large."""
    if size <= SMALL_BYTES:
        return await anyio.to_thread.run_sync(read, source, abandon_on_cancel=True)
    try:
        return await anyio.to_process.run_sync(_in_child, os.getpid(), read, source, cancellable=True)
    except anyio.BrokenWorkerProcess as error:
        raise ProblemError("the process that read the log was killed", value=str(source)[:200]) from error


def _in_child(parent: int, read: Callable[[Source], LogFacts], source: Source) -> LogFacts:
    """Run `read` in this child process, which ends when the server is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    return read(source)


def _key(path: Path) -> _Key | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_size, found.st_mtime_ns


def _read_output(path: Path, process: str = "") -> LogFacts:
    return read_log(lines_of(path) if path.exists() else (), process)


class Failure(Record):
    """A child that did not succeed. `family` and `text` are empty if its output contains no known error.

    `line` counts from 1 in `log`, the child's stdout and stderr together.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    family: str = ""
    meaning: str = ""
    candidates: list[Category] = Field(default_factory=list)
    text: str = ""
    line: int = 0
    guide: str = ""
    log: Path


def read_failure(finished: Finished) -> Failure | None:
    """The failure of a child, with the root error of its whole output. None if it succeeded."""
    if finished.ok:
        return None
    facts = read_output(finished.output)
    root = facts.root
    line, text = (facts.best_lines[-1:] or facts.tail[-1:] or [(0, "")])[0]
    return Failure(
        ending=finished.ending,
        returncode=finished.returncode,
        signal=finished.signal,
        family=root.family.id if root else "",
        meaning=root.family.meaning if root else "",
        candidates=list(root.candidates) if root else [],
        text=root.text if root else text,
        line=root.line if root else line,
        guide=guide_path(root.family.guide) if root else "",
        log=finished.output,
    )


MOST_LINES = 10_000
LONGEST_LINE = 64 << 10  # characters

_ENDED = re.compile(
    r"failed \((?P<torchrun>[^()]+)\) local_rank: (?P<local>\d+) |"
    r"srun: error: \S+: tasks? (?P<task>\d+)[\d,-]*: (?P<srun>.+)"
)
# Exit statuses of ranks that the launcher stopped because another rank had failed.
_STOPPED = re.compile(r"Terminated|Killed|Exited with exit code 1(?:37|43)\b|exitcode: -(?:9|15)\b")
_WAITING = re.compile(r"srun: job \d+ queued and waiting for resources")
_GRANTED = re.compile(r"srun: job \d+ has been allocated resources")
_REFUSED = re.compile(r"srun: (?:fatal: |unrecognized option|error: (?:Unable to|Task launch|Invalid))")


@dataclass(frozen=True)
class RankEnd:
    """A rank and how it ended, in the launcher's words."""

    rank: str
    how: str


@dataclass(frozen=True)
class LauncherWords:
    """What a launcher printed: the rank that failed `first` (or was stopped first if none failed on its own);
    whether the launcher is waiting for resources; and why it refused to start anything.
    """

    first: RankEnd | None = None
    waiting: bool = False
    refused: str = ""


def read_launcher(lines: Iterable[str]) -> LauncherWords:
    """Read the launcher's own lines, which have no rank, from the joint output of its ranks."""
    own: list[str] = []
    for raw in lines:
        if len(own) < MOST_LINES and ("srun: " in raw or "local_rank: " in raw):
            line = read_line(raw[:LONGEST_LINE], 0)
            own += [] if line.process else [line.text]
    ends = [
        RankEnd(found["local"] or found["task"], found["torchrun"] or found["srun"])
        for found in map(_ENDED.search, own)
        if found
    ]
    ends.sort(key=lambda end: _STOPPED.search(end.how) is not None)  # else in the order printed
    waiting = any(map(_WAITING.match, own)) and not any(map(_GRANTED.match, own))
    refused = "" if ends else next((text for text in own if _REFUSED.match(text)), "")
    return LauncherWords(next(iter(ends), None), waiting, bound(refused, 300))


# Options that make a launcher print the rank before each line of output. They are added unless the prefix has
# one of the spellings to their right. `{directory}` is the output directory of the run.
# torch.distributed.run of torch 2.8-2.15; srun of Slurm 20-25.
LAUNCHERS: dict[str, dict[tuple[str, ...], set[str]]] = {
    "torchrun": {
        ("--no-python",): {"--no-python", "--no_python"},
        ("--log-dir", "{directory}/torchrun"): {"--log-dir", "--log_dir"},
        ("--tee", "3"): {"--tee", "-t"},
    },
    "srun": {("--label",): {"--label", "-l"}},
}


# Under a launcher, a child that does not run the workload, such as a compile, runs only in the first rank.
ONLY_FIRST = (
    "sh",
    "-c",
    'rank="${RANK:-${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}}"; '
    '[ "$rank" = 0 ] || exit 0; exec "$@"',
    "sh",
)


def launched(prefix: Sequence[str], argv: Sequence[str], directory: Path) -> tuple[str, ...]:
    """Put the launcher `prefix` before `argv`, with options that print the rank before each line."""
    if not prefix:
        return tuple(argv)
    chosen = {word.partition("=")[0] for word in prefix}
    added = [
        option.replace("{directory}", str(directory))
        for options, unless in _options_of(prefix).items()
        if chosen.isdisjoint(unless)
        for option in options
    ]
    return (*prefix, *added, *argv)


def _options_of(prefix: Sequence[str]) -> dict[tuple[str, ...], set[str]]:
    """The launcher's entry in `LAUNCHERS`, even after `env` or `nice`. Empty if it has none."""
    return next((LAUNCHERS[name] for name in (Path(word).name for word in prefix) if name in LAUNCHERS), {})


def read_launcher_output(finished: Finished, prefix: Sequence[str]) -> LauncherWords:
    """Run `read_launcher` on a failed run. Empty for a successful run or an unknown launcher."""
    if finished.ok or not _options_of(prefix) or not finished.output.exists():
        return LauncherWords()
    with finished.output.open(errors="replace") as lines:
        return read_launcher(lines)


class BudgetTooShort(ProblemError):
    """A run ended only because its time was up, so it proves nothing."""


def check_built(finished: Finished, what: str) -> None:
    """Raise BudgetTooShort if the time of the run `what` ended in a build that made progress."""
    if finished.building:
        raise BudgetTooShort(
            f"{what} was still {finished.building} when its time ended after {finished.wall_s:.0f} s. It had "
            f"worked on that for {finished.built_s:.0f} s, so it is slow and does not hang",
            next_call="give it more time (timeout_s, and budget_s of a diagnosis)",
        )


def check_started(finished: Finished, prefix: Sequence[str]) -> None:
    """Raise ProblemError if the launcher started nothing, because then the workload did not run."""
    words = read_launcher_output(finished, prefix)
    if words.refused:
        raise ProblemError(f"the launcher started nothing: {words.refused}", value=" ".join(prefix))
    if words.waiting:
        raise ProblemError(
            f"the launcher waited for its resources until the run ended ({finished.wall_s:.0f} s)",
            value=" ".join(prefix),
            next_call="give it more time (timeout_s), or ask the launcher for less",
        )
