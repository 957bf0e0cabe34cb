"""Launchers such as torchrun and srun: separates the output of ranks and finds the first that failed.

Sources: torch.distributed.run of torch 2.8-2.15 (torch/distributed/elastic/multiprocessing/api.py), srun of
Slurm 22.05 (src/plugins/launch/slurm). The launcher's own lines have no rank before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.logs.text import Line, bound, read_line

MOST_LINES = 10_000
MOST_RANKS = 256
LONGEST_LINE = 64 << 10  # characters

_ENDED = re.compile(
    r"failed \((?P<torchrun>[^()]+)\) local_rank: (?P<local>\d+) |"
    r"srun: error: \S+: tasks? (?P<task>\d+)[\d,-]*: (?P<srun>.+)"
)
# Exit statuses of ranks that the launcher stopped because another rank failed.
_STOPPED = re.compile(r"Terminated|Killed|Exited with exit code 1(?:37|43)\b|exitcode: -(?:9|15)\b")
_WAITING = re.compile(r"srun: job \d+ queued and waiting for resources")
_GRANTED = re.compile(r"srun: job \d+ has been allocated resources")
_REFUSED = re.compile(r"srun: (?:fatal: |unrecognized option|error: (?:Unable to|Task launch|Invalid))")


@dataclass(frozen=True)
class RankEnd:
    """A rank and its end, in the launcher's words."""

    rank: str
    how: str


@dataclass(frozen=True)
class LauncherWords:
    """What a launcher printed: the rank that failed `first`, or was stopped first if none failed by itself;
    whether it is waiting for resources; and why it refused to start anything."""

    first: RankEnd | None = None
    waiting: bool = False
    refused: str = ""


def read_launcher(lines: Iterable[str]) -> LauncherWords:
    """The launcher's own lines, which have no rank, in the joint output of its ranks."""
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
    ends.sort(key=lambda end: _STOPPED.search(end.how) is not None)  # stable: else in the order printed
    waiting = any(map(_WAITING.match, own)) and not any(map(_GRANTED.match, own))
    refused = "" if ends else next((text for text in own if _REFUSED.match(text)), "")
    return LauncherWords(next(iter(ends), None), waiting, bound(refused, 300))


# Options with which a launcher puts the rank before each line of output; they are added unless the prefix has
# one of the spellings behind them. `{directory}` is the run's output directory.
# torch.distributed.run of torch 2.8-2.15; srun of Slurm 20-25.
LAUNCHERS: dict[str, dict[tuple[str, ...], set[str]]] = {
    "torchrun": {
        ("--no-python",): {"--no-python", "--no_python"},
        ("--log-dir", "{directory}/torchrun"): {"--log-dir", "--log_dir"},
        ("--tee", "3"): {"--tee", "-t"},
    },
    "srun": {("--label",): {"--label", "-l"}},
}


# Under any launcher, a child that is no run of the workload runs in the first rank only.
ONLY_FIRST = (
    "sh",
    "-c",
    'rank="${RANK:-${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}}"; '
    '[ "$rank" = 0 ] || exit 0; exec "$@"',
    "sh",
)


def launched(prefix: Sequence[str], argv: Sequence[str], directory: Path) -> tuple[str, ...]:
    """`argv` under the launcher `prefix`, with the options that name the rank of each line."""
    if not prefix:
        return tuple(argv)
    chosen = {word.partition("=")[0] for word in prefix}
    added = [
        option.replace("{directory}", str(directory))
        for options, unless in _known(prefix).items()
        if chosen.isdisjoint(unless)
        for option in options
    ]
    return (*prefix, *added, *argv)


def _known(prefix: Sequence[str]) -> dict[tuple[str, ...], set[str]]:
    """The entry of the launcher in the prefix, which may begin with `env` or `nice`; empty for others."""
    return next((LAUNCHERS[name] for name in (Path(word).name for word in prefix) if name in LAUNCHERS), {})


def separate_ranks(output: Path, prefix: Sequence[str]) -> list[Path]:
    """Write the lines of each rank to `ranks/RANK.log` in the folder of `output`.

    Nothing is written unless a known launcher was used and two ranks printed something.
    """
    found: set[str] = set()
    for line in _rank_lines(output) if _known(prefix) else ():
        if len(found) < MOST_RANKS:
            found.add(line.process)
    if len(found) < 2:
        return []
    directory = output.parent / "ranks"
    directory.mkdir(exist_ok=True)
    paths = {rank: directory / f"{rank}.log" for rank in sorted(found, key=int)}
    with ExitStack() as files:
        opened = {rank: files.enter_context(path.open("w")) for rank, path in paths.items()}
        for line in _rank_lines(output):
            if line.process in opened:
                opened[line.process].write(line.text + "\n")
    return list(paths.values())


def _rank_lines(output: Path) -> Iterator[Line]:
    with output.open(errors="replace") as lines:
        for raw in lines:
            line = read_line(raw[:LONGEST_LINE], 0)
            if line.process:
                yield line


def read_launcher_output(finished: Finished, prefix: Sequence[str]) -> LauncherWords:
    """`read_launcher` of a run that failed; empty for another, and for an unknown launcher."""
    if finished.ok or not _known(prefix) or not finished.output.exists():
        return LauncherWords()
    with finished.output.open(errors="replace") as lines:
        return read_launcher(lines)


def check_started(finished: Finished, prefix: Sequence[str]) -> None:
    """Raise ProblemError if the launcher started nothing: then the workload did not run."""
    words = read_launcher_output(finished, prefix)
    if words.refused:
        raise ProblemError(f"the launcher started nothing: {words.refused}", value=" ".join(prefix))
    if words.waiting:
        raise ProblemError(
            f"the launcher waited for its resources until the run ended ({finished.wall_s:.0f} s)",
            value=" ".join(prefix),
            next_call="give it more time (timeout_s), or ask the launcher for less",
        )
