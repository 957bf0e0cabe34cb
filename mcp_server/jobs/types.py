"""What a child process is asked to do, and how it ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Ending = Literal["exit", "signal", "timeout", "cancelled", "out_of_memory", "not_started"]

# A Python process with the capture hook answers it with the stacks of all threads; programs do not use it.
STACKS_SIGNAL = signal.SIGRTMIN + 9
STOOD_STILL = "stood still"  # how the note of a child begins that was ended for that


@dataclass(frozen=True)
class Command:
    """One child process.

    `env` holds the variables asked for on top of the allowlist. `timeout_s` is wall-clock seconds.
    `gpus` names the devices that the child may use: the jobs layer leases them, so that two jobs do not
    fight for one GPU; None means that no GPU is used. With `asks` the child asks for its lease when it comes
    to use the GPU (worker/lease.py), else it has the lease from its start on.
    `stalled` is asked every few seconds, and gives the process that will not go on, if there is one: it is
    asked for its stacks (`STACKS_SIGNAL`), and then the child is ended as at its time limit.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    memory_bytes: int | None = None
    gpus: tuple[int, ...] | None = None
    asks: bool = False
    unset: tuple[str, ...] = ()
    terminal: bool = False
    stalled: Callable[[], int | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Finished:
    """How a child ended, after `wall_s` seconds of its own and `waited_s` of waiting for a GPU.

    `output` is stdout and stderr in the order in which they arrived.
    `returncode` is None when a signal or a limit ended the child; `signal` is a name such as `SIGSEGV`.
    `root` of a shell-style status (128 + n) is decoded into `signal` too. `output` may leave out a
    counted middle part when the child printed more than the cap. `reused` marks a child that ended in an
    earlier turn of the job and was not run again.
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
    reused: bool = False
    waited_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ending == "exit" and self.returncode == 0
