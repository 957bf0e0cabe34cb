"""Programs that start several processes: their ranks, and which of them failed first.

What a launcher says of the processes that it started: which failed first, and whether any began.

Read from the launcher's own lines, which carry no rank before them: torch.distributed.run of torch 2.8-2.15
(torch/distributed/elastic/multiprocessing/api.py), srun of Slurm 22.05 (src/plugins/launch/slurm).
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
# How a rank ends that the launcher stops since another one failed.
_STOPPED = re.compile(r"Terminated|Killed|Exited with exit code 1(?:37|43)\b|exitcode: -(?:9|15)\b")
_WAITING = re.compile(r"srun: job \d+ queued and waiting for resources")
_GRANTED = re.compile(r"srun: job \d+ has been allocated resources")
_REFUSED = re.compile(r"srun: (?:fatal: |unrecognized option|error: (?:Unable to|Task launch|Invalid))")


@dataclass(frozen=True)
class RankEnd:
    """A rank and how it ended, as the launcher says it."""

    rank: str
    how: str

    @property
    def stopped(self) -> bool:
        """Whether it may have been stopped for the failure of another rank."""
        return _STOPPED.search(self.how) is not None


@dataclass(frozen=True)
class LauncherWords:
    """`failed` in the order told; `refused` is why the launcher started nothing ("" = it did not say so)."""

    failed: tuple[RankEnd, ...] = ()
    waiting: bool = False
    refused: str = ""

    @property
    def first(self) -> RankEnd | None:
        """The rank that failed by itself first; else the first that was stopped."""
        return next((end for end in self.failed if not end.stopped), next(iter(self.failed), None))


def read_launcher(lines: Iterable[str]) -> LauncherWords:
    """What the launcher says in the joint output of its ranks."""
    own = list(islice(_own_words(lines), MOST_LINES))
    ends = [found for found in map(_ENDED.search, own) if found]
    asked, given = any(map(_WAITING.match, own)), any(map(_GRANTED.match, own))
    refused = "" if ends else next((text for text in own if _REFUSED.match(text)), "")
    return LauncherWords(tuple(map(_end, ends)), asked and not given, bound(refused, 300))


def _own_words(lines: Iterable[str]) -> Iterator[str]:
    """Lines that the launcher may have written, and no rank."""
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
    """Options that a launcher needs so that each line of output names its rank.

    `options` go in unless the prefix has one of `unless`. `{directory}` is where the run's output goes.
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


# Whatever starts several processes: what is no run of the workload is done by the first.
ONLY_FIRST = (
    "sh",
    "-c",
    'rank="${RANK:-${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}}"; '
    '[ "$rank" = 0 ] || exit 0; exec "$@"',
    "sh",
)


def launched(prefix: Sequence[str], argv: Sequence[str], directory: Path) -> tuple[str, ...]:
    """`argv` under the launcher `prefix`, with the options that keep its ranks apart."""
    if not prefix:
        return tuple(argv)
    added = [
        option.replace("{directory}", str(directory))
        for launcher in _known(prefix)
        if not _given(launcher, prefix)
        for option in launcher.options
    ]
    return (*prefix, *added, *argv)


def _known(prefix: Sequence[str]) -> tuple[Launcher, ...]:
    """The entry of the launcher in the prefix, which may begin with `env` or `nice`; empty for others."""
    return next((LAUNCHERS[name] for name in (Path(word).name for word in prefix) if name in LAUNCHERS), ())


def _given(launcher: Launcher, prefix: Sequence[str]) -> bool:
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


def said(output: Path, prefix: Sequence[str]) -> LauncherWords:
    """What a known launcher says in the output; nothing for others."""
    if not _known(prefix) or not output.exists():
        return LauncherWords()
    with output.open(errors="replace") as lines:
        return read_launcher(line[:LONGEST_LINE] for line in lines)


def check_started(finished: Finished, prefix: Sequence[str]) -> None:
    """Raise ProblemError when the launcher started nothing: such a run says nothing of the workload."""
    words = LauncherWords() if finished.ok else said(finished.output, prefix)
    if words.refused:
        raise ProblemError(f"the launcher started nothing: {words.refused}", value=" ".join(prefix))
    if words.waiting:
        raise ProblemError(
            f"the launcher waited for its resources until the run ended ({finished.wall_s:.0f} s)",
            value=" ".join(prefix),
            next_call="give it more time (timeout_s), or ask the launcher for less",
        )
