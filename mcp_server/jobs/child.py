"""One child process: its command and environment; how it is started, stopped, and how it ended."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Protocol

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.supervisor import STOP
from mcp_server.plurals import counted

Ending = Literal["exit", "signal", "timeout", "out_of_memory", "not_started"]

# Makes a Python process with the capture hook print the stacks of all threads. Programs rarely use it.
STACKS_SIGNAL = signal.SIGRTMIN + 9
STOOD_STILL = "stood still"  # beginning of the note of a child that was stopped because it had stalled


@dataclass(frozen=True)
class Command:
    """One child process.

    `env` holds variables to add to the inherited ones. `timeout_s` is wall-clock seconds. `gpus` are the
    device indices that the child may use. None if it uses no GPU. They are leased: two jobs never share a
    GPU, while children of one job may. `stalled` is called every few seconds. It returns the id of a process
    that will never continue, or None. That process prints its stacks (`STACKS_SIGNAL`); then the child is
    stopped as at its time limit. `tell` is called regularly with the seconds since the start. `builds` says
    what the child is building, or "". While the child builds and uses the processor, `spare` is called with
    the seconds that passed, and returns how many of them do not count against the time limit. `at_limit` is
    called with the child's process id before the child is stopped at its time limit.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 300.0
    gpus: tuple[int, ...] | None = None
    unset: tuple[str, ...] = ()
    stalled: Callable[[], int | None] | None = field(default=None, compare=False)
    tell: Callable[[float], None] | None = field(default=None, compare=False)
    at_limit: Callable[[int], Coroutine[None, None, None]] | None = field(default=None, compare=False)
    builds: Callable[[], str] = field(default=str, compare=False)
    spare: Callable[[float], float] = field(default=lambda _seconds: 0.0, compare=False)


@dataclass(frozen=True)
class Finished:
    """How a child ended, after running for `wall_s` seconds and waiting `waited_s` seconds for a GPU.

    `output` is stdout and stderr in order of arrival. If a child prints more than the cap, a line replaces
    the middle, and says how much is missing. `returncode` is None if a signal or a limit ended the child.
    `signal` is a name such as `SIGSEGV`, even for a shell-style status (128 + n). `incomplete` says why
    output was lost. `reused` marks a result of an earlier run of the job. `building` is what the child was
    building for `built_s` seconds when its time ended. `spared_s` seconds did not count against the limit.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    wall_s: float
    output: Path
    stdout: Path
    stderr: Path
    note: str = ""
    incomplete: str = ""
    reused: bool = False
    waited_s: float = 0.0
    building: str = ""
    built_s: float = 0.0
    spared_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ending == "exit" and self.returncode == 0


# Names of variables (shell patterns, case-sensitive) that a child inherits, with the reason. A workload needs
# its compiler, GPU and caches, and must behave as in the user's shell. Everything else, especially secrets,
# must not reach a job or a log.
ALLOWED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("HOME", "USER", "LOGNAME", "SHELL", "PWD"), "caches and configuration live under the home directory"),
    (("PATH",), "finds g++, ninja, ptxas, nvcc"),
    (("LANG", "LANGUAGE", "LC_*", "TZ", "TERM"), "encoding and form of messages"),
    (("TMPDIR", "TEMP", "TMP"), "where packages are unpacked"),
    (("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), "caches, ccache settings"),
    (("LD_LIBRARY_PATH", "LD_PRELOAD"), "which libstdc++ and CUDA libraries are loaded"),
    (("LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"), "the compiler's search paths"),
    (("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CCACHE_*"), "how the wrapper is compiled"),
    (("CONDA_*", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHASHSEED"), "which packages the interpreter imports"),
    (("PIXI_*", "UV_PYTHON*", "MODULEPATH", "LOADEDMODULES"), "other environment managers"),
    (("CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NVCC_*"), "devices, driver and libraries"),
    (("NCCL_*", "TORCH_NCCL_*", "GLOO_*", "UCX_*"), "communication between ranks"),
    (("HIP_*", "ROCR_*", "HSA_*", "ROCM_*"), "devices of ROCm builds"),
    (("TORCH*", "PYTORCH_*", "AOT_*", "AOTI_*", "INDUCTOR_*"), "flags of torch, such as TORCHINDUCTOR_*"),
    (("TRITON_*", "MLIR_*", "LLVM_*"), "flags and caches of Triton"),
    (("OMP_*", "MKL_*", "KMP_*", "GOMP_*", "OPENBLAS_*", "NUMEXPR_*"), "threads of CPU kernels"),
    (("MALLOC_*", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"), "allocators and sanitizers"),
    (("HF_HOME", "HF_HUB_*", "HF_DATASETS_*", "TRANSFORMERS_*"), "where models lie, and offline mode"),
    (("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), "place in a distributed run"),
    (("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "the same, torchrun"),
    (("SLURM_*", "SLURMD_*", "SRUN_*", "OMPI_*", "PMI_*", "PMIX_*"), "the same, schedulers"),
    (("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"), "downloads"),
    (("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), "downloads"),
)

# Also unbuffers C stdio, so that the value printer's printf lines survive a crash (torch 2.13).
ALWAYS: Mapping[str, str] = {"PYTHONUNBUFFERED": "1"}

_SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSWORD|PASSWD|CREDENTIAL|AUTH|JWT|COOKIE", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]*@")
_NAME = re.compile(r"[^=\0]+")


def looks_secret(name: str, value: str) -> bool:
    """Whether the name suggests a secret, or the value is a URL with a password."""
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def check_variable(name: str, value: str) -> None:
    """Raise ProblemError for a name or value that execve(2) rejects."""
    if not _NAME.fullmatch(name):
        raise ProblemError(
            "not a name of an environment variable", value=name, allowed="no '=', no NUL, not empty"
        )
    if "\0" in value:
        raise ProblemError(f"the value of {name} holds a NUL character", allowed="text without NUL")


def _environment() -> dict[str, str]:
    """Copy this process's environment. Another thread may remove a variable during the copy."""
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}


def child_environment(
    asked: Mapping[str, str], unset: Iterable[str] = (), *, parent: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Build a child's environment: the parent's allowed variables without `unset`, then `asked`.

    A variable in `asked` is passed even if it looks like a secret, since the user named it. `parent` defaults
    to this process's environment. Raise ProblemError for an invalid name or value.
    """
    for name, value in asked.items():
        check_variable(name, value)
    inherited = {
        name: value
        for name, value in (_environment() if parent is None else parent).items()
        if any(fnmatchcase(name, pattern) for patterns, _ in ALLOWED for pattern in patterns)
        and not looks_secret(name, value)
    }
    dropped = set(unset) - set(asked)
    merged = {**inherited, **ALWAYS, **asked}
    return {name: value for name, value in merged.items() if name not in dropped}


_STAGES = {
    "directory": "the working directory cannot be entered",
    "program": "the program cannot be started",
    "session": "no session could be created for the program",
}


@dataclass(frozen=True)
class Report:
    """What the supervisor reported. `status` is a raw wait status. None if the supervisor itself died.

    `pid` is the program's process, 0 if it is not known.
    """

    status: int | None = None
    failed_stage: str | None = None
    failed_errno: int = 0
    left: int = 0
    pid: int = 0


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
    struck = f"the out-of-memory killer ended {counted(oom_kills, 'process')} of this control group"
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
    note = "not sent by this tool: by the kernel if memory runs out, which `dmesg` shows, or by a scheduler"
    return Decoded("signal", signal=name, note=note)


def oom_kill_count(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Count the out-of-memory kills in this control group (version 2 or 1) so far. 0 if unknown."""
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
    """The part of `Popen`'s interface that callers of a supervisor process need."""

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
            case ["started", pid]:
                report = replace(report, pid=int(pid))
            case ["failed", stage, number]:
                report = replace(report, failed_stage=stage, failed_errno=int(number))
            case ["ended", status, left]:
                report = replace(report, status=int(status), left=int(left))
    return report
