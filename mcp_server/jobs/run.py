"""Runs one command to its end, whatever that end is, and finds what it left behind."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Child, Decoded, Starter, Stop, decode, oom_kill_count, survivors
from mcp_server.jobs.clock import Clock
from mcp_server.jobs.environment import child_environment
from mcp_server.jobs.gpus import Waits, device_names, known_gpus, leased
from mcp_server.jobs.lease_requests import on_request
from mcp_server.jobs.output import Capture
from mcp_server.jobs.supervisor import hand_back
from mcp_server.jobs.types import STACKS_SIGNAL, STOOD_STILL, Command, Finished

MARK = "AOTI_DEBUG_CHILD"
LIMIT_S = 2.0
STEP_S = 0.005


def marked_processes(mark: str, proc: Path = Path("/proc")) -> list[int]:
    """Processes of this user whose environment carries the mark; one that wiped it is not found."""
    wanted = f"{MARK}={mark}".encode()
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and _carries(entry, wanted)]


def _carries(process: Path, wanted: bytes) -> bool:
    try:
        return wanted in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False  # ended meanwhile, or another user's


def kill_marked(mark: str) -> None:
    """SIGKILL until none is left: one of them may fork meanwhile."""
    hand_back(lambda: marked_processes(mark))
    limit = time.monotonic() + LIMIT_S
    while (found := marked_processes(mark)) and time.monotonic() < limit:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(STEP_S)


# From SIGTERM to SIGKILL. A cancelled call is often a server that goes, which has a second in all.
TIMEOUT_GRACE_S = 1.0
CANCEL_GRACE_S = 0.3
LOOK_S = 3.0  # from one look at whether a child goes on to the next
STACKS_S = 1.0  # for a process to print its stacks
DRAIN_S = 2.0  # for output that is still in the pipes when every process is gone

# Programs colour their output on a terminal; ours is one for its line buffering only.
PLAIN_TERMINAL: Mapping[str, str] = {"TERM": "dumb", "NO_COLOR": "1"}


async def run(
    command: Command,
    directory: Path,
    *,
    on_line: Callable[[str], None] | None = None,
    start: Starter = Child.start,
    waits: Waits | None = None,
) -> Finished:
    """Run `command`, keep its output in `directory`, and say how it ended.

    Writes `output.log`, `stdout.log` and `stderr.log`. `on_line` gets cleaned, bounded lines of both streams
    as they arrive. `start` starts the program under a supervisor. `waits` hears of it when a GPU has to be
    waited for, during which the time limit stands still.
    When this returns or is cancelled, no process of the command is left. A command that fails or cannot be
    started is a result; raises ProblemError for impossible arguments and for a directory that cannot be
    written.
    """
    if not command.timeout_s > 0:
        raise ProblemError("no time to run in", value=command.timeout_s, allowed="seconds above 0")
    env = child_environment({**(PLAIN_TERMINAL if command.terminal else {}), **command.env}, command.unset)
    clock = Clock()
    if not command.gpus:
        return await _run(command, env, directory, on_line, start, clock)
    known = await anyio.to_thread.run_sync(known_gpus, abandon_on_cancel=True)
    names = device_names(command.gpus, env.get("CUDA_VISIBLE_DEVICES"), known)
    waits = _stopping(clock, waits or Waits(str(directory)))
    if command.asks:
        async with on_request(names, waits) as (leases, more):
            return await _run(command, {**env, **more}, directory, on_line, start, clock, leases)
    async with leased(names, waits) as leases:
        return await _run(command, env, directory, on_line, start, clock, leases)


def _stopping(clock: Clock, waits: Waits) -> Waits:
    """`waits`, with a clock that stands still meanwhile."""

    @contextmanager
    def blocked() -> Iterator[None]:
        with clock.stopped(), waits.blocked():
            yield

    return replace(waits, blocked=blocked)


async def _run(
    command: Command,
    env: dict[str, str],
    directory: Path,
    on_line: Callable[[str], None] | None,
    start: Starter,
    clock: Clock,
    leases: Sequence[int] = (),
) -> Finished:
    mark = env[MARK] = secrets.token_hex(16)
    with Capture(directory, terminal=command.terminal, on_line=on_line) as capture:
        began, kills = clock.worked_s, oom_kill_count()
        child = start(
            command.argv,
            cwd=command.cwd,
            env=env,
            stdout=capture.stdout,
            stderr=capture.stderr,
            memory_bytes=command.memory_bytes,
            keep_fds=leases,
        )
        capture.started()
        stop = await _see_through(child, capture, command, mark, clock)
        worked_s = clock.worked_s - began
    limit = _limit(command, worked_s) if stop == "timeout" else ""
    ended = decode(child.report(), stop, limit=limit, oom_kills=oom_kill_count() - kills)
    return _finished(ended, capture, worked_s, clock.waited_s, survivors(child.report()))


def _limit(command: Command, wall_s: float) -> str:
    """Why a child was ended: its time limit, or before that word that it will not go on."""
    if wall_s < command.timeout_s:
        return f"{STOOD_STILL}, and was ended after {wall_s:.0f} s"
    return f"did not end within {command.timeout_s:g} s"


def _finished(ended: Decoded, capture: Capture, wall_s: float, waited_s: float, left: str) -> Finished:
    return Finished(
        ending=ended.ending,
        returncode=ended.returncode,
        signal=ended.signal,
        wall_s=wall_s,
        waited_s=waited_s,
        output=capture.paths["output"],
        stdout=capture.paths["stdout"],
        stderr=capture.paths["stderr"],
        dropped_bytes=capture.dropped,
        note="; ".join(filter(None, (ended.note, left, capture.note))),
    )


async def _see_through(
    child: Child, capture: Capture, command: Command, mark: str, clock: Clock
) -> Stop | None:
    """Wait for the end or bring it about; the reason if the end was ours."""
    stop: Stop | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(capture.pump)
        try:
            with clock.limit(command.timeout_s):
                await _ended_or_stalled(child, command.stalled)
            if not child.has_ended:
                stop = "timeout"
        finally:
            with anyio.CancelScope(shield=True):
                await _end(child, mark, TIMEOUT_GRACE_S if stop else CANCEL_GRACE_S)
            capture.end_within(DRAIN_S)
    return stop


async def _ended_or_stalled(child: Child, stalled: Callable[[], int | None] | None) -> None:
    """Wait until the child ends, or one of its processes has printed where it will stay for ever."""
    async with anyio.create_task_group() as tasks:

        async def look() -> None:
            assert stalled is not None
            while (pid := await anyio.to_thread.run_sync(stalled)) is None:
                await anyio.sleep(LOOK_S)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACKS_SIGNAL)
            await anyio.sleep(STACKS_S)
            tasks.cancel_scope.cancel()

        if stalled is not None:
            tasks.start_soon(look)
        await child.ended()
        tasks.cancel_scope.cancel()


async def _end(child: Child, mark: str, grace_s: float) -> None:
    """Leave no process, whoever is killed on the way."""
    if not child.has_ended:
        await child.stop(grace_s)
    await child.close()
    report = child.report()
    if report.status is None or report.left:
        await anyio.to_thread.run_sync(kill_marked, mark)
