"""Runs one command to its end, and kills every process that it leaves behind.

`fork_server` starts a process that has imported torch and forks for each command, so that the import is paid
only once (`worker/fork_server.py`). Each fork has its own supervisor, like any other child. Leaving the
context ends the process and all of its forks.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import (
    STACKS_SIGNAL,
    STOOD_STILL,
    SUPERVISOR,
    Child,
    Command,
    Finished,
    Program,
    Starter,
    child_environment,
    decode,
    oom_kill_count,
)
from mcp_server.jobs.gpus import Waits, device_names, leased
from mcp_server.jobs.output import Capture
from mcp_server.jobs.supervisor import end_proxied, processor_use
from mcp_server.plurals import counted

MARK = "AOTI_DEBUG_CHILD"
KILL_LIMIT_S = 2.0
KILL_STEP_S = 0.005


def marked_processes(mark: str) -> list[int]:
    """List the ids of this user's processes with the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def kill_marked(mark: str) -> None:
    """Send SIGKILL until no marked process is left, because a marked process may fork meanwhile."""
    end_proxied(lambda: marked_processes(mark))
    limit = time.monotonic() + KILL_LIMIT_S
    while (found := marked_processes(mark)) and time.monotonic() < limit:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_STEP_S)


# Seconds from SIGTERM to SIGKILL. When a call is cancelled, the server often must exit within a second.
TIMEOUT_GRACE_S = 1.0
CANCEL_GRACE_S = 0.3
STALL_POLL_S = 3.0  # seconds between checks whether a child has stalled
BUILD_POLL_S = 2.0  # seconds between checks whether a child builds
BUSY = 0.02  # a build that makes progress uses more of one processor than this share, or waits for one
IDLE_S = 10.0  # a build that used no processor time for so long waits for something
TELL_S = 8.0  # seconds between two messages that a child still runs
STACKS_S = 1.0  # seconds for a process to print its stacks
DRAIN_S = 2.0  # seconds for output left in the pipes after every process has ended


async def run(
    command: Command, directory: Path, *, start: Starter = Child.start, waits: Waits | None = None
) -> Finished:
    """Run `command`, store its output in `directory`, and return how it ended.

    Writes `output.log`, `stdout.log` and `stderr.log`. `start` starts the program under a supervisor. `waits`
    is notified while the command waits for a GPU; that wait does not count as its time. When this returns or
    is cancelled, no process of the command is left. A command that fails or cannot be started is a result.
    Raise ProblemError for invalid arguments or a directory that is not writable.
    """
    if not command.timeout_s > 0:
        raise ProblemError("no time to run in", value=command.timeout_s, allowed="seconds above 0")
    env = child_environment(command.env, command.unset)
    if not command.gpus:
        return await _run(command, env, directory, start)
    names, asked = device_names(command.gpus, env.get("CUDA_VISIBLE_DEVICES")), time.monotonic()
    async with leased(names, waits or Waits(str(directory))) as leases:
        waited_s = time.monotonic() - asked
        return replace(await _run(command, env, directory, start, leases), waited_s=waited_s)


async def _run(
    command: Command, env: dict[str, str], directory: Path, start: Starter, leases: Sequence[int] = ()
) -> Finished:
    mark = env[MARK] = secrets.token_hex(16)
    with Capture(directory) as capture:
        began, kills = time.monotonic(), oom_kill_count()
        program = Program(command.argv, command.cwd, env, capture.stdout, capture.stderr, leases)
        child = start(program)
        capture.started()
        build = _Build()
        timed_out = await _wait_or_stop(child, capture, command, mark, build)
        wall_s = time.monotonic() - began
    limit = ""
    if timed_out:
        stalled = wall_s < command.timeout_s
        at_limit = f"did not end within {command.timeout_s:g} s"
        at_limit += f", not counting {build.spared_s:.0f} s of builds" if build.spared_s >= 1 else ""
        limit = f"{STOOD_STILL}, and was ended after {wall_s:.0f} s" if stalled else at_limit
    report = child.report()
    ended = decode(report, limit, oom_kills=oom_kill_count() - kills)
    left = f"{counted(report.left, 'process')} could not be killed within 5 s" if report.left else ""
    return Finished(
        **{**vars(ended), **capture.paths, "note": "; ".join(filter(None, (ended.note, left)))},
        wall_s=wall_s,
        incomplete=capture.error,
        building=build.what if timed_out and build.idle_s < IDLE_S else "",
        built_s=build.seconds,
        spared_s=build.spared_s,
    )


@dataclass
class _Build:
    """What a child builds and for how long, how long it made no progress, and the time that did not count."""

    what: str = ""
    seconds: float = 0.0
    idle_s: float = math.inf
    spared_s: float = 0.0

    async def follow(self, child: Child, command: Command, limit: anyio.CancelScope) -> None:
        """Extend the child's time limit by the time of builds that use the processor."""
        looked, used = time.monotonic(), 0.0
        while not child.has_ended:
            await anyio.sleep(BUILD_POLL_S)
            what = await anyio.to_thread.run_sync(command.builds)
            spent, runs = processor_use(child.report().pid) if what else (used, False)
            now = time.monotonic()
            passed_s, worked = now - looked, runs or abs(spent - used) > BUSY * (now - looked)
            self.seconds = self.seconds + passed_s if what and what == self.what else 0.0
            self.what, self.idle_s = what, 0.0 if worked else self.idle_s + passed_s
            spared_s = command.spare(passed_s) if what and worked else 0.0
            self.spared_s, limit.deadline = self.spared_s + spared_s, limit.deadline + spared_s
            looked, used = now, spent


async def _wait_or_stop(child: Child, capture: Capture, command: Command, mark: str, build: _Build) -> bool:
    """Wait for the child, or stop all its processes at its limit or stall. Return whether it was stopped."""
    timed_out = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(capture.pump)
        try:
            with anyio.move_on_after(command.timeout_s) as limit:
                await _wait_for_end_or_stall(child, command, partial(build.follow, child, command, limit))
            timed_out = not child.has_ended
            if timed_out and command.at_limit is not None:
                await command.at_limit(child.report().pid)
        finally:
            with anyio.CancelScope(shield=True):
                if not child.has_ended:
                    await child.stop(TIMEOUT_GRACE_S if timed_out else CANCEL_GRACE_S)
                await child.close()
                report = child.report()
                if report.status is None or report.left:  # somebody killed the supervisor
                    await anyio.to_thread.run_sync(kill_marked, mark)
            capture.end_within(DRAIN_S)
    return timed_out


async def _wait_for_end_or_stall(
    child: Child, command: Command, follow: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Wait until the child ends, or until its stalled process has printed its stacks."""
    async with anyio.create_task_group() as tasks:

        async def watch(stalled: Callable[[], int | None]) -> None:
            while (pid := await anyio.to_thread.run_sync(stalled)) is None:
                await anyio.sleep(STALL_POLL_S)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACKS_SIGNAL)
            await anyio.sleep(STACKS_S)
            tasks.cancel_scope.cancel()

        async def repeat(tell: Callable[[float], None]) -> None:
            began = time.monotonic()
            while not child.has_ended:
                await anyio.sleep(TELL_S)
                tell(time.monotonic() - began)

        tasks.start_soon(follow)
        if command.stalled is not None:
            tasks.start_soon(watch, command.stalled)
        if command.tell is not None:
            tasks.start_soon(repeat, command.tell)
        await child.ended()
        tasks.cancel_scope.cancel()


READY = b"ready "  # followed by the process id
READY_BYTES = 64
PYTHON_WORDS = 2  # `PYTHON -u`: the fork already runs Python, and needs only the words after these


class ForkServer:
    """The server's side of a fork server. `start` replaces `Child.start` for commands that may be forked.

    It is also the `ProcessHandle` of every forked supervisor. The forking process reaps the supervisors;
    killing one kills all of them.
    """

    def __init__(self, server: socket.socket, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.lost = False

    def start(self, program: Program) -> Child:
        """Fork for `PYTHON -u PROGRAM ARGUMENTS...`; start a fresh process if the fork server died."""
        packet = json.dumps(program.argv[PYTHON_WORDS:]).encode()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = [theirs.fileno(), program.stdout, program.stderr, *program.keep_fds]
                socket.send_fds(self._server, [packet], descriptors)
        except OSError:
            self.lost = True
            ours.close()
            return Child.start(program)
        return Child(self, ours, program)

    def poll(self) -> int:
        """Return 0, for a reaped process, because the forking process reaps the supervisors."""
        return 0

    def kill(self) -> None:
        """End the process and all forks. Called when a supervisor never reported an exit status."""
        self.lost = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def fork_server(command: Command, directory: Path) -> AsyncIterator[ForkServer | None]:
    """Run `command` while the context lasts, with the supervisor's path appended to its arguments.

    Yield None if it ended or was not ready within `command.timeout_s`; callers then start fresh processes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lasting = replace(command, argv=(*command.argv, str(SUPERVISOR)), timeout_s=math.inf)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_serve, lasting, directory, theirs)
        with ours:
            ours.setblocking(False)
            message = b""
            with anyio.move_on_after(command.timeout_s), suppress(OSError):
                await anyio.wait_readable(ours)
                message = ours.recv(READY_BYTES)
            ready = message.startswith(READY)
            yield ForkServer(ours, int(message.removeprefix(READY))) if ready else None
        tasks.cancel_scope.cancel()


async def _serve(command: Command, directory: Path, theirs: socket.socket) -> None:
    """Run the fork server with its end of the socket as standard input."""

    def start(program: Program) -> Child:
        with theirs:
            return Child.start(replace(program, stdin=theirs.fileno()))

    try:
        with theirs:
            await run(command, directory, start=start)
    except ProblemError as problem:
        logging.getLogger(__name__).warning("no fork server: %s", problem)
