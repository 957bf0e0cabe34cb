"""The server's side of one supervised child: starts it, stops it, decodes how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Ending
from mcp_server.jobs.supervisor import STOP

_STAGES = {
    "directory": "the working directory cannot be entered",
    "program": "the program cannot be started",
    "session": "no session could be made for the program",
}


@dataclass(frozen=True)
class Report:
    """What the supervisor reported. `status` is a raw wait status; None if the supervisor itself died."""

    status: int | None = None
    failed_stage: str | None = None
    failed_errno: int = 0
    left: int = 0


@dataclass(frozen=True)
class Decoded:
    """The fields of `Finished` that the wait status determines."""

    ending: Ending
    returncode: int | None = None
    signal: str | None = None
    note: str = ""


_SIGNALS = {int(number): number.name for number in signal.Signals}


def decode(report: Report, limit: str = "", *, oom_kills: int = 0) -> Decoded:
    """Classify how a child ended.

    `limit` says why the server ended the child, if it did. `oom_kills` is the number of kills by the kernel's
    out-of-memory killer in this control group during the run.
    """
    status, name = report.status, None
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = _SIGNALS.get(number, f"SIG{number}")
    struck = f"the out-of-memory killer struck {oom_kills} time(s) in this control group"
    if report.failed_stage is not None:
        stage = _STAGES.get(report.failed_stage, "the child could not be started")
        reason = os.strerror(report.failed_errno) if report.failed_errno else "bad argument"
        return Decoded("not_started", note=f"{stage}: {reason}")
    if limit:
        return Decoded("timeout", signal=name, note=limit)
    if status is None:
        note = "the supervisor was killed from outside, and the job with it"
        return Decoded("signal", signal="SIGKILL", note=note)
    if name is None:
        code = os.WEXITSTATUS(status)
        name = _SIGNALS.get(code - 128)
        notes = [f"exit status {code} is how shells and launchers report {name}"] if name else []
        notes += [f"{struck} meanwhile"] if code and oom_kills else []
        return Decoded("exit", returncode=code, signal=name, note="; ".join(notes))
    if name != "SIGKILL":
        return Decoded("signal", signal=name)
    if oom_kills:
        return Decoded("out_of_memory", signal=name, note=f"SIGKILL while {struck}")
    note = "not sent by this tool; often the out-of-memory killer or a scheduler sends it"
    return Decoded("signal", signal=name, note=note)


def oom_kill_count(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Count the out-of-memory kills in this control group (version 2 or 1) so far; 0 if unknown."""
    most = 0
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                counter = root / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                counter = root / "memory" / path.lstrip("/") / "memory.oom_control"
            else:
                continue
            with suppress(OSError):
                counts = [entry.split() for entry in counter.read_text().splitlines()]
                most = max([most, *(int(count) for name, count in counts if name == "oom_kill")])
    return most


SUPERVISOR = Path(__file__).with_name("supervisor.py")

KILL_LIMIT_S = 16.0  # 10 s for srun to end its job, then a sweep of up to 5 s
REAP_STEP_S = 0.001


class ProcessHandle(Protocol):
    """The part of `Popen`'s interface that a supervisor process needs."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class Program:
    """What to start, and the file descriptors to pass.

    The supervisor keeps `keep_fds` (leases) open; the program does not inherit them. Raise ProblemError for
    arguments that execve(2) rejects.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    stdout: int
    stderr: int
    keep_fds: Sequence[int] = ()
    stdin: int = subprocess.DEVNULL

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            allowed = "a list that begins with a program"
            raise ProblemError("no program to run", value=list(self.argv), allowed=allowed)
        bad = next((argument for argument in self.argv if "\0" in argument), None)
        if bad is not None:
            raise ProblemError("an argument holds a NUL character", value=bad)


Starter = Callable[[Program], "Child"]
"""Starts a program under a supervisor. Raises ProblemError if no process can be created."""


class Child:
    """A running supervisor and the program below it."""

    def __init__(self, process: ProcessHandle, lifeline: socket.socket, program: Program) -> None:
        """Send the request to a supervisor that waits for it at the other end of `lifeline`."""
        self._process = process
        self._lifeline = lifeline
        self._received = b""
        self.has_ended = False
        with suppress(OSError):  # `ended` notices a supervisor that has died
            lifeline.sendall(encode_request(program.cwd, program.env))
        lifeline.setblocking(False)

    @classmethod
    def start(cls, program: Program) -> Child:
        """Start the supervisor in its own session, so that a terminal's Ctrl-C does not reach it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), "--", *program.argv],
                    stdin=program.stdin,
                    stdout=program.stdout,
                    stderr=program.stderr,
                    env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                    pass_fds=(theirs.fileno(), *program.keep_fds),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise ProblemError(f"cannot start a process: {error.strerror}", value=program.argv[0]) from error
        return cls(process, ours, program)

    async def ended(self) -> None:
        """Return when the supervisor has exited. It exits after everything below it has ended."""
        while not self.has_ended:
            await anyio.wait_readable(self._lifeline)
            try:
                part = self._lifeline.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                part = b""
            self._received += part
            self.has_ended = not part

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the program's group; after `grace_s` seconds, SIGKILL to the whole tree."""
        with suppress(OSError):
            self._lifeline.send(STOP)
        with anyio.move_on_after(grace_s):
            await self.ended()
        if self.has_ended:
            return
        self._close_lifeline()
        with anyio.move_on_after(KILL_LIMIT_S):
            await self.ended()
        if not self.has_ended:
            self._process.kill()

    async def close(self) -> None:
        """Reap the supervisor. If it never reported a status, kill it and its tree."""
        self._close_lifeline()
        if self.report().status is None:
            self._process.kill()
        while self._process.poll() is None:
            await anyio.sleep(REAP_STEP_S)
        self._lifeline.close()

    def _close_lifeline(self) -> None:
        with suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def report(self) -> Report:
        return parse_report(self._received.decode())


def encode_request(cwd: Path, env: Mapping[str, str]) -> bytes:
    """Encode the message that `supervisor.read_request` parses."""
    pairs = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    body = b"\0".join([os.fsencode(cwd), *pairs])
    return len(body).to_bytes(8, "big") + body


def parse_report(text: str) -> Report:
    """Parse the supervisor's lines into a report; ignore unknown lines."""
    report = Report()
    for line in text.splitlines():
        match line.split():
            case ["failed", stage, number]:
                report = replace(report, failed_stage=stage, failed_errno=int(number))
            case ["ended", status, left]:
                report = replace(report, status=int(status), left=int(left))
    return report
