"""Carries out an operation for a person: progress on stderr, the result on stdout."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import anyio
from pydantic import BaseModel
from rich.console import Console

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import JobState, Manager
from mcp_server.model import Record, Verdict
from mcp_server.operations.arguments import Arguments, Operation
from mcp_server.operations.table import in_shell_words
from mcp_server.operations.work import open_store, resumed, work_of
from mcp_server.render import plain, write
from mcp_server.server.standard_streams import printing

STEP_S = 0.1
_SO_FAR = re.compile(r": \d+ s so far(,?)")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command, which then reports what it knows."""


def carried_out(operation: Operation, arguments: Arguments) -> Record:
    """Run the operation and return its result; progress goes to stderr.

    Raise ProblemError, or SystemExit with 128 + n if signal n ended it.
    """
    state, result, ended_by = anyio.run(_carry_out, operation, arguments)
    if ended_by:
        raise SystemExit(128 + ended_by)
    if state.problem:
        raise state.problem.error()
    assert isinstance(result, Record), "a job without a problem has a result"
    return result


def print_result(record: Record, as_json: bool, verbose: bool = False) -> None:
    """Print the result on stdout, as text for people or as its complete JSON."""
    with printing():
        if as_json:
            sys.stdout.write(record.model_dump_json(indent=2) + "\n")
        else:
            write(record, verbose)


def print_problem(problem: ProblemError) -> None:
    """Print on stderr what is wrong with the command and what to do instead."""
    console = Console(stderr=True, highlight=False)
    what = problem.what if problem.value is None else f"{problem.what}: {str(problem.value)[:400]}"
    console.print(plain(f"error: {in_shell_words(what)}", "bold red"), soft_wrap=True)
    for label, text in (("expected", problem.allowed), ("try", problem.next_call)):
        if text:
            console.print(plain(f"  {label}: {in_shell_words(text)}"), soft_wrap=True)


def say(line: str) -> None:
    Console(stderr=True, highlight=False).print(plain(line), soft_wrap=True)


async def _carry_out(operation: Operation, arguments: Arguments) -> tuple[JobState, BaseModel | None, int]:
    """The job's last state, its result, and the signal that ended it (0 if none did)."""
    async with Manager.open(open_store()) as manager:
        arguments, again = resumed(manager.store, arguments)
        job = manager.start(operation.name, work_of(operation, arguments), again=again)
        with _ended_by_signals() as received, _progress(getattr(arguments, "budget_s", 0)) as show:
            while (state := await manager.wait(job.id, STEP_S)).state == "running":
                show(state)
        if received:
            state = await manager.stop(job.id)
            _print_stopped(state)
    return state, job.result, received[0] if received else 0


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Cancel the body when a signal of ENDING arrives; the yielded list then has its number.

    A signal that this process was started to ignore (nohup) stays ignored. After the first signal, only
    SIGINT is not ignored: `timeout` sends SIGTERM to its child twice.
    """
    received: list[int] = []
    scope = anyio.CancelScope()

    def end(number: int) -> None:
        received.append(number)
        scope.cancel()

    loop = asyncio.get_running_loop()
    handled = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        loop.add_signal_handler(number, end, number)
    try:
        with scope:
            yield received
    finally:
        ignored = [number for number in handled if received and number != signal.SIGINT]
        signal.pthread_sigmask(signal.SIG_BLOCK, ignored)  # since removing a handler restores the default
        for number in handled:
            loop.remove_signal_handler(number)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)


def _print_stopped(state: JobState) -> None:
    """Print what a stopped diagnosis has found, if the terminal still exists, and how to continue it."""
    if state.kind == "diagnose":
        if state.result is not None:
            with suppress(OSError):
                write(Verdict.model_validate(state.result))
        else:
            say(f"stopped; to continue: aoti-debug diagnose --resume {state.job_id}")


@contextmanager
def _progress(limit_s: float) -> Iterator[Callable[[JobState], None]]:
    """Print each step as it begins. On a terminal, also show the progress of the current step."""
    console = Console(stderr=True, highlight=False)
    step, most = "", f" of {limit_s:g} s" if limit_s else ""

    def print_new(state: JobState) -> None:
        nonlocal step
        known = state.progress
        seen = len(known) - known[::-1].index(step) if step in known else 0
        for line in known[seen:]:
            if console.is_terminal and _SO_FAR.search(line):
                continue  # the status line shows it
            # Each line begins with the time, so remove the time inside it. Only the first line names the
            # limit.
            told = _SO_FAR.sub(lambda found: found[1] or ", still running", line)
            limit = "" if step else most
            console.print(plain(f"[{state.wall_s:.1f} s{limit}] {told}"), soft_wrap=True)
            step = line

    if not console.is_terminal:
        yield print_new
        return
    with console.status("starting") as status:

        def update(state: JobState) -> None:
            print_new(state)
            told = _SO_FAR.sub(r"\1", state.progress[-1]) if state.progress else "starting"
            status.update(plain(f"{told} ({state.wall_s:.0f} s{most})"))

        yield update
