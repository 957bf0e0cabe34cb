"""A command to run as a child process, and how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Ending = Literal["exit", "signal", "timeout", "out_of_memory", "not_started"]

# A Python process with the capture hook prints the stacks of all threads on it. Programs do not use it.
STACKS_SIGNAL = signal.SIGRTMIN + 9
STOOD_STILL = "stood still"  # beginning of the note of a child that was stopped for a stall


@dataclass(frozen=True)
class Command:
    """One child process.

    `env` holds variables to add to the inherited ones. `timeout_s` is wall-clock seconds.
    `gpus` are the device indices that the child may use, None for none. They are leased, so that two jobs do
    not share a GPU. With `asks` the child requests its lease when it first uses the GPU (worker/lease.py);
    otherwise it has the lease from the start.
    `stalled` is called every few seconds and returns the id of a process that will never go on, if there is
    one. That process prints its stacks (`STACKS_SIGNAL`); then the child is stopped as at its time limit.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    gpus: tuple[int, ...] | None = None
    asks: bool = False
    unset: tuple[str, ...] = ()
    stalled: Callable[[], int | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Finished:
    """How a child ended, after running for `wall_s` seconds and waiting `waited_s` for a GPU.

    `output` is stdout and stderr in order of arrival, without `dropped_bytes` from the middle if the child
    printed more than the cap. `returncode` is None if a signal or a limit ended the child. `signal` is a name
    such as `SIGSEGV`, also for a shell-style status (128 + n). `incomplete` says why output was lost.
    `reused` marks a result of an earlier run of the job.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    wall_s: float
    output: Path
    stdout: Path
    stderr: Path
    dropped_bytes: int = 0
    note: str = ""
    incomplete: str = ""
    reused: bool = False
    waited_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ending == "exit" and self.returncode == 0
