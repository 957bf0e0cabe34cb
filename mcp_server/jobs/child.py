"""The server's side of one supervised child: start it, stop it, decode how it ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Ending

Stop = Literal["timeout", "cancelled"]

_STAGES = {
    "directory": "the working directory cannot be entered",
    "program": "the program cannot be started",
    "session": "no session could be made for the program",
}


@dataclass(frozen=True)
class Report:
    """What the supervisor reported. `status` is a raw wait status, or None if the supervisor itself died."""

    status: int | None = None
    pid: int | None = None
    failed_stage: str | None = None
    failed_errno: int = 0
    memory_used: int | None = None
    left: int = 0


@dataclass(frozen=True)
class Decoded:
    """The fields of `Finished` that follow from the wait status."""

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
    """Classify the end of a child.

    `stop` is set if the server ended the child, and `limit` is the note for that. `oom_kills` is the number
    of kills by the kernel's out-of-memory killer in this control group during the run.
    """
    if report.failed_stage is not None:
        stage = _STAGES.get(report.failed_stage, "the child could not be started")
        reason = os.strerror(report.failed_errno) if report.failed_errno else "bad argument"
        return Decoded("not_started", note=f"{stage}: {reason}")
    if report.memory_used is not None:
        note = f"killed: its processes used {report.memory_used} bytes of memory, more than the limit allows"
        return Decoded("out_of_memory", signal="SIGKILL", note=note)
    if stop is not None:
        killed = report.status is not None and os.WIFSIGNALED(report.status)
        name = signal_name(os.WTERMSIG(report.status or 0)) if killed else None
        return Decoded(stop, signal=name, note=limit)
    if report.status is None:
        return Decoded(
            "signal", signal="SIGKILL", note="the supervisor was killed from outside, and the job with it"
        )
    if os.WIFSIGNALED(report.status):
        return _by_signal(os.WTERMSIG(report.status), oom_kills)
    return _by_exit(os.WEXITSTATUS(report.status), oom_kills)


def survivors(report: Report) -> str:
    """A note on processes that survived SIGKILL because they hang in the kernel; empty if there are none."""
    return f"{report.left} process(es) could not be killed within 5 s" if report.left else ""


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
    """Kills by the out-of-memory killer in this process's control group so far; 0 if unknown.

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


SUPERVISOR = Path(__file__).with_name("supervisor.py")

STOP = b"T"  # asks the supervisor to send SIGTERM
KILL_LIMIT_S = 16.0  # 10 s for srun to end its job, then a sweep of up to 5 s
REAP_STEP_S = 0.001


class ProcessHandle(Protocol):
    """A supervisor process, as much of `Popen` as is needed here. `poll` returns None until it is reaped."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


class Starter(Protocol):
    """Starts a program under a supervisor."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        memory_bytes: int | None = None,
        keep_fds: Sequence[int] = (),
    ) -> Child: ...


class Child:
    """A running supervisor and the program below it."""

    def __init__(self, process: ProcessHandle, lifeline: socket.socket) -> None:
        self._process = process
        self._lifeline = lifeline
        self._received = b""
        self.has_ended = False

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        memory_bytes: int | None = None,
        keep_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
    ) -> Child:
        """Start the supervisor. It keeps `keep_fds` (leases) open; the program does not inherit them.

        Raises ProblemError for arguments that execve(2) rejects, and if the process cannot be created.
        """
        argv = check_argv(argv)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = spawn(argv, theirs.fileno(), (stdin, stdout, stderr), keep_fds)
        except OSError as error:
            ours.close()
            raise ProblemError(f"cannot start a process: {error.strerror}", value=argv[0]) from error
        return cls.from_request(process, ours, encode_request(cwd, env, memory_bytes))

    @classmethod
    def from_request(cls, process: ProcessHandle, lifeline: socket.socket, request: bytes) -> Child:
        """Send `request` to a supervisor that is waiting for it."""
        with suppress(OSError):  # `ended` notices a supervisor that died
            lifeline.sendall(request)
        lifeline.setblocking(False)
        return cls(process, lifeline)

    async def ended(self) -> None:
        """Return when the supervisor has exited, which it does after everything below it."""
        while not self.has_ended:
            await anyio.wait_readable(self._lifeline)
            self._receive()

    def _receive(self) -> None:
        try:
            part = self._lifeline.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            part = b""
        self._received += part
        self.has_ended = not part

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to the program's group; after `grace_s` seconds, SIGKILL to the whole tree."""
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
        """Reap the supervisor and close the socket.

        A supervisor that never reported an exit status is killed, and its tree with it.
        """
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
        """The lines received so far."""
        report = Report()
        for line in self._received.decode().splitlines():
            report = parse_line(report, line.split())
        return report


def spawn(
    argv: Sequence[str], lifeline: int, streams: tuple[int, int, int], keep_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start the supervisor in its own session, so that a terminal's Ctrl-C does not reach it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(lifeline), "--", *argv],
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        pass_fds=(lifeline, *keep_fds),
        start_new_session=True,
    )


def check_argv(argv: Sequence[str]) -> list[str]:
    """Raise ProblemError for arguments that execve(2) rejects."""
    if not argv or not argv[0]:
        raise ProblemError("no program to run", value=list(argv), allowed="a list that begins with a program")
    bad = next((argument for argument in argv if "\0" in argument), None)
    if bad is not None:
        raise ProblemError("an argument holds a NUL character", value=bad)
    return list(argv)


def encode_request(cwd: Path, env: Mapping[str, str], memory_bytes: int | None) -> bytes:
    """The message that `supervisor.read_request` parses."""
    pairs = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    body = b"\0".join([os.fsencode(cwd), str(memory_bytes or 0).encode(), *pairs])
    return len(body).to_bytes(8, "big") + body


def parse_line(report: Report, words: list[str]) -> Report:
    """`report` with one more line from the supervisor."""
    match words:
        case ["started", pid]:
            return replace(report, pid=int(pid))
        case ["failed", stage, number]:
            return replace(report, failed_stage=stage, failed_errno=int(number))
        case ["memory", used]:
            return replace(report, memory_used=int(used))
        case ["ended", status, left]:
            return replace(report, status=int(status), left=int(left))
    return report
