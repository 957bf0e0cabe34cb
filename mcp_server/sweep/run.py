"""Runs a sweep: what is known is taken, the rest is tried, several cases side by side."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from mcp_server.jobs.run import run
from mcp_server.jobs.types import Command, Finished
from mcp_server.model import Verdict
from mcp_server.sweep.one import REFUSED
from mcp_server.sweep.plan import Attempt, CaseRecord, Results, Sweep, SweepCase

SLACK_S = 120.0  # beyond the budget: a step that runs may end, the verdict is written
QUEUE_S = 3600.0  # for GPUs that others use: waiting for one spends no budget


@dataclass(frozen=True)
class Tried:
    """An attempt and the verdict, as JSON data, if it came to one."""

    attempt: Attempt
    verdict: dict[str, Any] | None = None


Done = Callable[[SweepCase, Tried], None]
"""Hears of a case whose attempt has ended."""


async def attempt(case: SweepCase, gpus: str | None = None) -> Tried:
    """Diagnose `case`; `gpus` is CUDA_VISIBLE_DEVICES for its runs, None for what the case says."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aoti-debug-sweep-") as name:
        directory = Path(name)
        finished = await run(_command(case, gpus, directory), directory)
        verdict = _result(directory / "result.json")
        wall_s = time.monotonic() - started
        return _tried(finished, verdict, wall_s)


def _command(case: SweepCase, gpus: str | None, directory: Path) -> Command:
    arguments = dict(case.arguments)
    if gpus is not None:
        arguments["env"] = {"CUDA_VISIBLE_DEVICES": gpus, **arguments.get("env", {})}
    given = directory / "arguments.json"
    given.write_text(json.dumps(arguments))
    argv = (sys.executable, "-m", "mcp_server.sweep.one", str(given), str(directory / "result.json"))
    kept = {name: value for name, value in os.environ.items() if name.startswith("AOTI_DEBUG_")}
    budget_s = float(case.arguments.get("budget_s", 300))
    timeout_s = budget_s + SLACK_S + (QUEUE_S if case.gpus else 0)
    return Command(argv=argv, cwd=Path(case.arguments["cwd"]), env=kept, timeout_s=timeout_s)


def _result(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found


def _tried(finished: Finished, found: dict[str, Any] | None, wall_s: float) -> Tried:
    where = socket.gethostname()
    if finished.ok and found is not None:
        return Tried(Attempt(ended="verdict", where=where, wall_s=wall_s), found)
    if finished.returncode == REFUSED and found is not None:
        return Tried(Attempt(ended="refused", where=where, wall_s=wall_s, why=str(found["problem"])[:500]))
    how = finished.signal or finished.ending
    tail = finished.output.read_text(errors="replace").strip().splitlines()[-1:]
    why = f"its process ended by {how}: {' '.join(tail)[:300]}"
    return Tried(Attempt(ended="lost", where=where, wall_s=wall_s, why=why))


class Executor(Protocol):
    """Where cases run."""

    async def each(self, cases: Sequence[SweepCase], done: Done) -> None: ...


Told = Callable[[CaseRecord], None]


async def sweep(
    cases: Sequence[SweepCase],
    results: Results,
    executor: Callable[[], Executor],
    *,
    retries: int = 1,
    told: Told = lambda _record: None,
) -> Sweep:
    """Diagnose every case that has no verdict yet. `told` hears of each case that has ended.

    A case whose process or node died is tried again, `retries` times. `executor` is asked for only when there
    is something to run.
    """
    records = {case.name: record for case in cases if (record := results.known(case))}
    reused = len(records)
    attempts: dict[str, list[Attempt]] = {case.name: [] for case in cases}

    def done(case: SweepCase, tried: Tried) -> None:
        attempts[case.name].append(tried.attempt)
        if tried.attempt.ended == "lost" and len(attempts[case.name]) <= retries:
            return
        records[case.name] = _record(case, attempts[case.name], tried)
        results.keep(case, records[case.name])
        told(records[case.name])

    while left := [case for case in cases if case.name not in records]:
        await executor().each(left, done)
    return Sweep(cases=[records[case.name] for case in cases], reused=reused)


def _record(case: SweepCase, attempts: list[Attempt], tried: Tried) -> CaseRecord:
    verdict = Verdict.model_validate(tried.verdict) if tried.verdict is not None else None
    ended = tried.attempt.ended
    return CaseRecord(
        name=case.name, digest=case.digest, ended=ended, attempts=list(attempts), verdict=verdict
    )


DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia(\d+)")


def local_gpus(devices: Path = DEVICES) -> list[str]:
    """What CUDA_VISIBLE_DEVICES names, else the GPUs of this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    found = (_DEVICE.fullmatch(path.name) for path in devices.glob("nvidia*"))
    return [str(number) for number in sorted(int(match[1]) for match in found if match)]


class Local:
    """`jobs` lanes; lane i uses GPU i modulo their number. A lease keeps others' jobs off that GPU."""

    def __init__(self, jobs: int = 0) -> None:
        self.gpus = local_gpus()
        self.lanes = jobs or max(1, len(self.gpus))

    async def each(self, cases: Sequence[SweepCase], done: Done) -> None:
        """Try every case; `done` gets each with its attempt as it ends."""
        waiting = list(reversed(cases))

        async def lane(number: int) -> None:
            gpus = self.gpus[number % len(self.gpus)] if self.gpus else None
            while waiting:
                case = waiting.pop()
                done(case, await attempt(case, gpus if case.gpus else None))

        async with anyio.create_task_group() as tasks:
            for number in range(min(self.lanes, len(cases))):
                tasks.start_soon(lane, number)
