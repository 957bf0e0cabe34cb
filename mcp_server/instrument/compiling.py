"""Runs a compiler, and finds in what it says the line that tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.steps.context import Context

COMPILE_LIMIT_S = 900.0


async def compile_in(
    context: Context, argv: Sequence[str], directory: Path, name: str, env: Mapping[str, str]
) -> str | None:
    """None when the command succeeded, else what it said. `env` is what the workload sets."""
    command = Command(argv=tuple(argv), cwd=directory, timeout_s=COMPILE_LIMIT_S, env=dict(env))
    finished = await context.run(command, name[:80])
    if finished.ok:
        return None
    return finished.stderr.read_text(errors="replace") or finished.note or finished.ending


async def compile_or_raise(
    context: Context, argv: Sequence[str], directory: Path, name: str, env: Mapping[str, str]
) -> None:
    """Raises `ProblemError` with the compiler's first error."""
    failure = await compile_in(context, argv, directory, name, env)
    if failure is not None:
        raise ProblemError(
            "the rebuild failed: " + first_error(failure),
            value=argv[0],
            next_call="check_devices shows the toolchain; the log is among the artifacts",
        )


def first_error(log: str) -> str:
    """The first line that names an error, else the last line; bounded and printable."""
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1] if lines else "no message"
    line = next((line for line in lines if "error" in line or "cannot" in line), last)
    return "".join(char for char in line if char.isprintable())[:400]


async def together(*works: Callable[[], Awaitable[None]]) -> None:
    """Run all at once; the first `ProblemError` cancels the rest and comes out as itself, not in a group."""
    problems: list[ProblemError] = []

    async with anyio.create_task_group() as tasks:

        async def attempt(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except ProblemError as problem:
                problems.append(problem)
                tasks.cancel_scope.cancel()

        for work in works:
            tasks.start_soon(attempt, work)
    if problems:
        raise problems[0]
