"""Runs a sweep: reuses stored verdicts, diagnoses the other cases in parallel, retries lost ones."""

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

SLACK_S = 120.0  # beyond the budget: time to end the running step and write the verdict
QUEUE_S = 3600.0  # waiting for a GPU lease does not spend the case's budget


@dataclass(frozen=True)
class AttemptResult:
    """An attempt, and the verdict as JSON data if there is one."""

    attempt: Attempt
    verdict: dict[str, Any] | None = None


OnDone = Callable[[SweepCase, AttemptResult], None]
"""Called when an attempt ends."""


async def attempt(case: SweepCase, gpus: str | None = None) -> AttemptResult:
    """Diagnose `case` in a child process. `gpus`, if set, becomes CUDA_VISIBLE_DEVICES of its runs."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aoti-debug-sweep-") as name:
        directory = Path(name)
        finished = await run(_command(case, gpus, directory), directory)
        verdict = _result(directory / "result.json")
        wall_s = time.monotonic() - started
        return _attempt_result(finished, verdict, wall_s)


def _command(case: SweepCase, gpus: str | None, directory: Path) -> Command:
    arguments = dict(case.arguments)
    if gpus is not None:
        arguments["env"] = {"CUDA_VISIBLE_DEVICES": gpus, **arguments.get("env", {})}
    request = directory / "arguments.json"
    request.write_text(json.dumps(arguments))
    argv = (sys.executable, "-m", "mcp_server.sweep.one", str(request), str(directory / "result.json"))
    env = {name: value for name, value in os.environ.items() if name.startswith("AOTI_DEBUG_")}
    budget_s = float(case.arguments.get("budget_s", 300))
    timeout_s = budget_s + SLACK_S + (QUEUE_S if case.gpus else 0)
    return Command(argv=argv, cwd=Path(case.arguments["cwd"]), env=env, timeout_s=timeout_s)


def _result(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found


def _attempt_result(finished: Finished, found: dict[str, Any] | None, wall_s: float) -> AttemptResult:
    where = socket.gethostname()
    if finished.ok and found is not None:
        return AttemptResult(Attempt(ended="verdict", where=where, wall_s=wall_s), found)
    if finished.returncode == REFUSED and found is not None:
        return AttemptResult(
            Attempt(ended="refused", where=where, wall_s=wall_s, why=str(found["problem"])[:500])
        )
    how = finished.signal or finished.ending
    tail = finished.output.read_text(errors="replace").strip().splitlines()[-1:]
    why = f"its process ended by {how}: {' '.join(tail)[:300]}"
    return AttemptResult(Attempt(ended="lost", where=where, wall_s=wall_s, why=why))


class Executor(Protocol):
    """Runs each case once: `Local` on this machine, `Cluster` on Ray."""

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None: ...


OnRecord = Callable[[CaseRecord], None]


async def sweep(
    cases: Sequence[SweepCase],
    results: Results,
    executor: Callable[[], Executor],
    *,
    retries: int = 1,
    on_record: OnRecord = lambda _record: None,
) -> Sweep:
    """Diagnose every case that has no stored verdict; `on_record` is called with each new record.

    A case whose process or node died is retried `retries` times. `executor` is only called when there is
    something to run, so that a fully cached sweep needs no Ray cluster.
    """
    records = {case.name: record for case in cases if (record := results.known(case))}
    reused = len(records)
    attempts: dict[str, list[Attempt]] = {case.name: [] for case in cases}

    def done(case: SweepCase, result: AttemptResult) -> None:
        attempts[case.name].append(result.attempt)
        if result.attempt.ended == "lost" and len(attempts[case.name]) <= retries:
            return
        records[case.name] = _record(case, attempts[case.name], result)
        results.keep(case, records[case.name])
        on_record(records[case.name])

    while left := [case for case in cases if case.name not in records]:
        await executor().each(left, done)
    return Sweep(cases=[records[case.name] for case in cases], reused=reused)


def _record(case: SweepCase, attempts: list[Attempt], result: AttemptResult) -> CaseRecord:
    verdict = Verdict.model_validate(result.verdict) if result.verdict is not None else None
    ended, tries = result.attempt.ended, list(attempts)
    return CaseRecord(name=case.name, digest=case.digest, ended=ended, attempts=tries, verdict=verdict)


DEVICES = Path("/dev")
_DEVICE = re.compile(r"nvidia(\d+)")


def local_gpus(devices: Path = DEVICES) -> list[str]:
    """GPU names from CUDA_VISIBLE_DEVICES, else from /dev/nvidia*, since the server never imports torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    found = (_DEVICE.fullmatch(path.name) for path in devices.glob("nvidia*"))
    return [str(number) for number in sorted(int(match[1]) for match in found if match)]


class Local:
    """Runs `jobs` cases at a time on this machine; lane i uses GPU i modulo the number of GPUs.

    `jobs` 0 means one lane per GPU. A lease keeps other jobs off a GPU while its case runs.
    """

    def __init__(self, jobs: int = 0) -> None:
        self.gpus = local_gpus()
        self.lanes = jobs or max(1, len(self.gpus))

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        """Run every case once; call `done` as each attempt ends."""
        waiting = list(reversed(cases))

        async def lane(number: int) -> None:
            gpus = self.gpus[number % len(self.gpus)] if self.gpus else None
            while waiting:
                case = waiting.pop()
                done(case, await attempt(case, gpus if case.gpus else None))

        async with anyio.create_task_group() as tasks:
            for number in range(min(self.lanes, len(cases))):
                tasks.start_soon(lane, number)
