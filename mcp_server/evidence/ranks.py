"""What a launcher says of the processes that it started: which failed first, and whether any began.

Read from the launcher's own lines, which carry no rank before them: torch.distributed.run of torch 2.8-2.15
(torch/distributed/elastic/multiprocessing/api.py), srun of Slurm 22.05 (src/plugins/launch/slurm).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mcp_server.evidence.text import bound, read_line

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
