"""Launchers that start a program several times: ranks are told apart, and each gets a log of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from mcp_server.errors import ProblemError
from mcp_server.evidence.ranks import LauncherWords, read_launcher
from mcp_server.evidence.text import read_line
from mcp_server.jobs.types import Finished

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
