"""Reads how a child ended out of its wait status and of what the server did to it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.jobs.types import Ending

Stop = Literal["timeout", "cancelled"]

_STAGES = {
    "directory": "the working directory cannot be entered",
    "program": "the program cannot be started",
    "session": "no session could be made for the program",
}


@dataclass(frozen=True)
class Report:
    """What the supervisor said. `status` is a raw wait status; None: the supervisor itself was lost."""

    status: int | None = None
    pid: int | None = None
    failed_stage: str | None = None
    failed_errno: int = 0
    memory_used: int | None = None
    left: int = 0


@dataclass(frozen=True)
class Decoded:
    """The part of `Finished` that the wait status decides."""

    ending: Ending
    returncode: int | None = None
    signal: str | None = None
    note: str = ""


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; real-time signals as `SIG35`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def signal_of_status(status: int) -> str | None:
    """The signal that a shell-style exit status (128 + n) stands for."""
    number = status - 128
    return signal.Signals(number).name if number in set(signal.Signals) else None


def decode(report: Report, stop: Stop | None, *, limit: str = "", oom_kills: int = 0) -> Decoded:
    """How the child ended.

    `stop` says that the server ended it, `limit` names the limit in words, `oom_kills` counts what the
    kernel's out-of-memory killer did in this control group meanwhile.
    """
    if report.failed_stage is not None:
        return _not_started(report)
    if report.memory_used is not None:
        note = f"killed: its processes used {report.memory_used} bytes of memory, more than the limit allows"
        return Decoded("out_of_memory", signal="SIGKILL", note=note)
    if stop is not None:
        return Decoded(stop, signal=_signal(report), note=limit)
    if report.status is None:
        return Decoded(
            "signal", signal="SIGKILL", note="the supervisor was killed from outside, and the job with it"
        )
    if os.WIFSIGNALED(report.status):
        return _by_signal(os.WTERMSIG(report.status), oom_kills)
    return _by_exit(os.WEXITSTATUS(report.status), oom_kills)


def survivors(report: Report) -> str:
    """What to say of processes that SIGKILL did not end in time: they hang in the kernel, in a driver."""
    return f"{report.left} process(es) could not be killed within 5 s" if report.left else ""


def _not_started(report: Report) -> Decoded:
    stage = _STAGES.get(report.failed_stage or "", "the child could not be started")
    reason = os.strerror(report.failed_errno) if report.failed_errno else "bad argument"
    return Decoded("not_started", note=f"{stage}: {reason}")


def _signal(report: Report) -> str | None:
    if report.status is not None and os.WIFSIGNALED(report.status):
        return signal_name(os.WTERMSIG(report.status))
    return None


def _by_signal(number: int, oom_kills: int) -> Decoded:
    name = signal_name(number)
    if number != signal.SIGKILL:
        return Decoded("signal", signal=name)
    if oom_kills:
        note = f"SIGKILL while the out-of-memory killer struck {oom_kills} time(s) in this control group"
        return Decoded("out_of_memory", signal=name, note=note)
    note = "SIGKILL from outside this tool: often the out-of-memory killer or a scheduler; not proven here"
    return Decoded("signal", signal=name, note=note)


def _by_exit(code: int, oom_kills: int) -> Decoded:
    name = signal_of_status(code)
    notes = []
    if name:
        notes.append(f"exit status {code} is how shells and launchers report {name}")
    if code and oom_kills:
        notes.append(f"the out-of-memory killer struck {oom_kills} time(s) in this control group meanwhile")
    return Decoded("exit", returncode=code, signal=name, note="; ".join(notes))


def oom_kill_count(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Kills by the out-of-memory killer in this process's control group so far; 0 when it is not told.

    Version 2 counts in `memory.events`, version 1 in `memory.oom_control` (Linux 4.13).
    """
    try:
        entries = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return 0
    counts = [_oom_kills_in(_oom_file(root, controllers, path)) for _, controllers, path in entries]
    return max(counts, default=0)


def _oom_file(root: Path, controllers: str, path: str) -> Path | None:
    inside = path.lstrip("/")
    if controllers == "":
        return root / inside / "memory.events"
    return root / "memory" / inside / "memory.oom_control" if "memory" in controllers.split(",") else None


def _oom_kills_in(file: Path | None) -> int:
    try:
        lines = file.read_text().splitlines() if file else []
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
