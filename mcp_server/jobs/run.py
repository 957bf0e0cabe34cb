"""Runs one command to its end and kills every process that it leaves behind."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Child, Program, Starter, decode, oom_kill_count
from mcp_server.jobs.command import STACKS_SIGNAL, STOOD_STILL, Command, Finished, child_environment
from mcp_server.jobs.gpus import Waits, device_names, known_gpus, leased
from mcp_server.jobs.output import Capture
from mcp_server.jobs.supervisor import end_proxied

MARK = "AOTI_DEBUG_CHILD"
KILL_LIMIT_S = 2.0
KILL_STEP_S = 0.005


def marked_processes(mark: str) -> list[int]:
    """Ids of this user's processes with the mark in their environment, unless they cleared it."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def kill_marked(mark: str) -> None:
    """Send SIGKILL until no marked process is left: one of them may fork meanwhile."""
    end_proxied(lambda: marked_processes(mark))
    limit = time.monotonic() + KILL_LIMIT_S
    while (found := marked_processes(mark)) and time.monotonic() < limit:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_STEP_S)


# Seconds from SIGTERM to SIGKILL. A cancelled call often means that the server exits, within a second in all.
TIMEOUT_GRACE_S = 1.0
CANCEL_GRACE_S = 0.3
STALL_POLL_S = 3.0  # between checks of whether a child has stalled
STACKS_S = 1.0  # for a process to print its stacks
DRAIN_S = 2.0  # for output left in the pipes after every process has ended


async def run(
    command: Command,
    directory: Path,
    *,
    start: Starter = Child.start,
    waits: Waits | None = None,
) -> Finished:
    """Run `command`, store its output in `directory`, and return how it ended.

    Writes `output.log`, `stdout.log` and `stderr.log`. `start` starts the program under a supervisor. `waits`
    is notified while the command waits for a GPU, which is no part of its time.
    When this returns or is cancelled, no process of the command is left. A command that fails or cannot be
    started is a result. Raises ProblemError for invalid arguments and for a directory that is not writable.
    """
    if not command.timeout_s > 0:
        raise ProblemError("no time to run in", value=command.timeout_s, allowed="seconds above 0")
    env = child_environment(command.env, command.unset)
    if not command.gpus:
        return await _run(command, env, directory, start)
    known = await anyio.to_thread.run_sync(known_gpus, abandon_on_cancel=True)
    names, asked = device_names(command.gpus, env.get("CUDA_VISIBLE_DEVICES"), known), time.monotonic()
    async with leased(names, waits or Waits(str(directory))) as leases:
        waited_s = time.monotonic() - asked
        return replace(await _run(command, env, directory, start, leases), waited_s=waited_s)


async def _run(
    command: Command,
    env: dict[str, str],
    directory: Path,
    start: Starter,
    leases: Sequence[int] = (),
) -> Finished:
    mark = env[MARK] = secrets.token_hex(16)
    with Capture(directory) as capture:
        began, kills = time.monotonic(), oom_kill_count()
        program = Program(command.argv, command.cwd, env, capture.stdout, capture.stderr, leases)
        child = start(program)
        capture.started()
        timed_out = await _wait_or_stop(child, capture, command, mark)
        wall_s = time.monotonic() - began
    limit = ""
    if timed_out:
        stalled = wall_s < command.timeout_s
        at_limit = f"did not end within {command.timeout_s:g} s"
        limit = f"{STOOD_STILL}, and was ended after {wall_s:.0f} s" if stalled else at_limit
    report = child.report()
    ended = decode(report, limit, oom_kills=oom_kill_count() - kills)
    left = f"{report.left} process(es) could not be killed within 5 s" if report.left else ""
    return Finished(
        **{**vars(ended), **capture.paths, "note": "; ".join(filter(None, (ended.note, left)))},
        wall_s=wall_s,
        incomplete=capture.error,
    )


async def _wait_or_stop(child: Child, capture: Capture, command: Command, mark: str) -> bool:
    """Wait for the child to end, or stop it; leave no process of it. Returns whether it was stopped."""
    timed_out = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(capture.pump)
        try:
            with anyio.move_on_after(command.timeout_s):
                await _wait_for_end_or_stall(child, command.stalled)
            timed_out = not child.has_ended
        finally:
            with anyio.CancelScope(shield=True):
                if not child.has_ended:
                    await child.stop(TIMEOUT_GRACE_S if timed_out else CANCEL_GRACE_S)
                await child.close()
                report = child.report()
                if report.status is None or report.left:  # someone killed the supervisor
                    await anyio.to_thread.run_sync(kill_marked, mark)
            capture.end_within(DRAIN_S)
    return timed_out


async def _wait_for_end_or_stall(child: Child, stalled: Callable[[], int | None] | None) -> None:
    """Wait until the child ends, or a stalled process of it has printed its stacks."""
    async with anyio.create_task_group() as tasks:

        async def watch(stalled: Callable[[], int | None]) -> None:
            while (pid := await anyio.to_thread.run_sync(stalled)) is None:
                await anyio.sleep(STALL_POLL_S)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, STACKS_SIGNAL)
            await anyio.sleep(STACKS_S)
            tasks.cancel_scope.cancel()

        if stalled is not None:
            tasks.start_soon(watch, stalled)
        await child.ended()
        tasks.cancel_scope.cancel()
