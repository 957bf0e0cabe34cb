"""Launchers such as torchrun and srun: separates the output of ranks and finds the first that failed.

Sources: torch.distributed.run of torch 2.8-2.15 (torch/distributed/elastic/multiprocessing/api.py), srun of
Slurm 22.05 (src/plugins/launch/slurm). The launcher's own lines have no rank before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Finished
from mcp_server.logs.text import bound, read_line

MOST_LINES = 10_000

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

    @property
    def stopped(self) -> bool:
        """Whether the launcher may have stopped it because another rank failed."""
        return _STOPPED.search(self.how) is not None


@dataclass(frozen=True)
class LauncherWords:
    """`failed` in the order printed; `refused` is the launcher's reason to start nothing ("" = none)."""

    failed: tuple[RankEnd, ...] = ()
    waiting: bool = False
    refused: str = ""

    @property
    def first(self) -> RankEnd | None:
        """The first rank that failed by itself, else the first that was stopped."""
        return next((end for end in self.failed if not end.stopped), next(iter(self.failed), None))


def read_launcher(lines: Iterable[str]) -> LauncherWords:
    """The launcher's own lines, in the joint output of its ranks."""
    own = list(islice(_own_lines(lines), MOST_LINES))
    ends = [found for found in map(_ENDED.search, own) if found]
    waiting = any(map(_WAITING.match, own)) and not any(map(_GRANTED.match, own))
    refused = "" if ends else next((text for text in own if _REFUSED.match(text)), "")
    return LauncherWords(tuple(map(_end, ends)), waiting, bound(refused, 300))


def _own_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines without a rank, which the launcher may have written."""
    for raw in lines:
        if "srun: " in raw or "local_rank: " in raw:
            line = read_line(raw, 0)
            if not line.process:
                yield line.text


def _end(found: re.Match[str]) -> RankEnd:
    return RankEnd(found["local"] or found["task"], found["torchrun"] or found["srun"])


MOST_RANKS = 256
LONGEST_LINE = 64 << 10  # characters


@dataclass(frozen=True)
class Launcher:
    """Options with which a launcher puts the rank before each line of output.

    `options` are added unless the prefix has one of `unless`. `{directory}` is the run's output directory.
    """

    options: tuple[str, ...]
    unless: tuple[str, ...]


# torch.distributed.run of torch 2.8-2.15; srun of Slurm 20-25.
LAUNCHERS: dict[str, tuple[Launcher, ...]] = {
    "torchrun": (
        Launcher(("--no-python",), ("--no-python", "--no_python")),
        Launcher(("--log-dir", "{directory}/torchrun"), ("--log-dir", "--log_dir")),
        Launcher(("--tee", "3"), ("--tee", "-t")),
    ),
    "srun": (Launcher(("--label",), ("--label", "-l")),),
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
    added = [
        option.replace("{directory}", str(directory))
        for launcher in _known(prefix)
        if not _has_option(launcher, prefix)
        for option in launcher.options
    ]
    return (*prefix, *added, *argv)


def _known(prefix: Sequence[str]) -> tuple[Launcher, ...]:
    """The entry of the launcher in the prefix, which may begin with `env` or `nice`; empty for others."""
    return next((LAUNCHERS[name] for name in (Path(word).name for word in prefix) if name in LAUNCHERS), ())


def _has_option(launcher: Launcher, prefix: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in launcher.unless for word in prefix)


def separate_ranks(output: Path, prefix: Sequence[str]) -> list[Path]:
    """Write the lines of each rank to `ranks/RANK.log` beside `output`.

    Nothing is written unless a known launcher was used and two ranks printed something.
    """
    if not _known(prefix):
        return []
    ranks = _ranks(output)
    if len(ranks) < 2:
        return []
    directory = output.parent / "ranks"
    directory.mkdir(exist_ok=True)
    paths = {rank: directory / f"{rank}.log" for rank in ranks}
    with ExitStack() as files:
        opened = {rank: files.enter_context(path.open("w")) for rank, path in paths.items()}
        _distribute(output, opened)
    return list(paths.values())


def _ranks(output: Path) -> list[str]:
    found: dict[str, None] = {}
    with output.open(errors="replace") as lines:
        for line in lines:
            process = read_line(line[:LONGEST_LINE], 0).process
            if process and len(found) < MOST_RANKS:
                found[process] = None
    return sorted(found, key=int)


def _distribute(output: Path, opened: Mapping[str, TextIO]) -> None:
    with output.open(errors="replace") as lines:
        for raw in lines:
            line = read_line(raw[:LONGEST_LINE], 0)
            if line.process in opened:
                opened[line.process].write(line.text + "\n")


def read_launcher_output(output: Path, prefix: Sequence[str]) -> LauncherWords:
    """`read_launcher` of an output file; empty for an unknown launcher."""
    if not _known(prefix) or not output.exists():
        return LauncherWords()
    with output.open(errors="replace") as lines:
        return read_launcher(line[:LONGEST_LINE] for line in lines)


def check_started(finished: Finished, prefix: Sequence[str]) -> None:
    """Raise ProblemError if the launcher started nothing: then the workload did not run."""
    words = LauncherWords() if finished.ok else read_launcher_output(finished.output, prefix)
    if words.refused:
        raise ProblemError(f"the launcher started nothing: {words.refused}", value=" ".join(prefix))
    if words.waiting:
        raise ProblemError(
            f"the launcher waited for its resources until the run ended ({finished.wall_s:.0f} s)",
            value=" ".join(prefix),
            next_call="give it more time (timeout_s), or ask the launcher for less",
        )
