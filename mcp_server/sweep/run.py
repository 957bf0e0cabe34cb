"""Runs a sweep: reuses stored verdicts, diagnoses the other cases in parallel, retries lost ones.

Each case is diagnosed in a process of its own: `python -m mcp_server.sweep.run ARGUMENTS.json RESULT.json`.
Exit status 0: RESULT holds the verdict. Exit status 2: bad arguments, RESULT holds `problem`.

Cases run on this machine (`Local`) or on an existing Ray cluster (`Cluster`). On a cluster the files of a
case must have the same path on every node, as on a shared file system.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import JobState, Manager
from mcp_server.jobs.run import run
from mcp_server.jobs.types import Command
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.table import DIAGNOSE
from mcp_server.operations.work import open_store, work_of
from mcp_server.sweep.plan import Attempt, CaseRecord, Results, Sweep, SweepCase

SLACK_S = 120.0  # beyond the budget: time to end the running step and write the verdict
QUEUE_S = 3600.0  # waiting for a GPU lease does not spend the case's budget
REFUSED = 2
WAIT_S = 30.0


AttemptResult = tuple[Attempt, Verdict | None]
OnDone = Callable[[SweepCase, AttemptResult], None]
"""Called when an attempt ends."""


async def attempt(case: SweepCase, gpus: str | None = None) -> AttemptResult:
    """Diagnose `case` in a child process. `gpus`, if set, becomes CUDA_VISIBLE_DEVICES of its runs."""
    arguments = dict(case.arguments)
    if gpus is not None:
        arguments["env"] = {"CUDA_VISIBLE_DEVICES": gpus, **arguments.get("env", {})}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aoti-debug-sweep-") as name:
        request, result = Path(name, "arguments.json"), Path(name, "result.json")
        request.write_text(json.dumps(arguments))
        command = Command(
            argv=(sys.executable, "-m", "mcp_server.sweep.run", str(request), str(result)),
            cwd=Path(case.arguments["cwd"]),
            env={key: value for key, value in os.environ.items() if key.startswith("AOTI_DEBUG_")},
            timeout_s=float(case.arguments.get("budget_s", 300)) + SLACK_S + (QUEUE_S if case.gpus else 0),
        )
        finished = await run(command, result.parent)
        text = result.read_text() if result.exists() else ""
        tail = finished.output.read_text(errors="replace").strip().splitlines()[-1:]
    facts: dict[str, Any] = {"where": socket.gethostname(), "wall_s": time.monotonic() - started}
    try:
        if finished.ok:
            return Attempt(ended="verdict", **facts), Verdict.model_validate_json(text)
        if finished.returncode == REFUSED:
            return Attempt(ended="refused", why=json.loads(text)["problem"][:500], **facts), None
    except ValueError:
        pass  # a result that was not written completely
    why = f"its process ended by {finished.signal or finished.ending}: {' '.join(tail)[:300]}"
    return Attempt(ended="lost", why=why, **facts), None


async def sweep(
    cases: Sequence[SweepCase],
    results: Results,
    executor: Callable[[], Local | Cluster],
    *,
    retries: int = 1,
    on_record: Callable[[CaseRecord], None] = lambda _record: None,
) -> Sweep:
    """Diagnose every case that has no stored verdict; `on_record` is called with each new record.

    A case whose process or node died is retried `retries` times. `executor` is only called when there is
    something to run, so that a fully cached sweep needs no Ray cluster.
    """
    records = {case.name: record for case in cases if (record := results.known(case))}
    reused = len(records)
    attempts: dict[str, list[Attempt]] = {case.name: [] for case in cases}

    def done(case: SweepCase, result: AttemptResult) -> None:
        last, verdict = result
        tries, ended = attempts[case.name], last.ended
        tries.append(last)
        if ended == "lost" and len(tries) <= retries:
            return
        record = CaseRecord(
            name=case.name, digest=case.digest, ended=ended, attempts=list(tries), verdict=verdict
        )
        records[case.name] = record
        results.keep(case, record)
        on_record(record)

    while left := [case for case in cases if case.name not in records]:
        await executor().each(left, done)
    return Sweep(cases=[records[case.name] for case in cases], reused=reused)


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
        waiting = list(reversed(cases))

        async def lane(gpus: str | None) -> None:
            while waiting:
                case = waiting.pop()
                done(case, await attempt(case, gpus if case.gpus else None))

        async with anyio.create_task_group() as tasks:
            for number in range(min(self.lanes, len(cases))):
                tasks.start_soon(lane, self.gpus[number % len(self.gpus)] if self.gpus else None)


def _attempt(case: SweepCase) -> AttemptResult:
    # Runs in the Ray worker. Ray has set CUDA_VISIBLE_DEVICES there, so no GPU is named here.
    return anyio.run(attempt, case)


class Cluster:
    """The Ray cluster at `address`; `auto` finds the one this machine belongs to.

    Ray's own retries are off: the sweep counts attempts, so it must see each lost one. Raises `ProblemError`
    when Ray is not installed or no cluster answers.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ProblemError(
                "Ray is not installed",
                value=address,
                allowed="the extra `ray`",
                next_call="pip install 'aoti-debug[ray]'",
            ) from error
        try:
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            what, allowed = f"no Ray cluster answers: {error}", "auto, or HOST:PORT"
            raise ProblemError(what, value=address, allowed=allowed) from error
        self.ray: Any = ray
        self.task = ray.remote(max_retries=0, num_cpus=1)(_attempt)

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        running = {self.task.options(num_gpus=case.gpus, name=case.name).remote(case): case for case in cases}
        try:
            while running:
                wait = partial(self.ray.wait, list(running), num_returns=1)
                ended, _ = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
                for task in ended:
                    try:
                        result: AttemptResult = self.ray.get(task)
                    except self.ray.exceptions.RayError as error:
                        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
                        result = Attempt(ended="lost", where="the cluster", wall_s=0.0, why=why), None
                    done(running.pop(task), result)
        finally:
            for task in running:
                self.ray.cancel(task, force=True)


def main() -> int:
    request, result = (Path(word) for word in sys.argv[1:3])
    arguments = DiagnoseArguments.model_validate_json(request.read_text(), strict=False)

    async def diagnosed() -> JobState:
        async with Manager.open(open_store()) as manager:
            job = manager.start(DIAGNOSE.name, work_of(DIAGNOSE, arguments))
            while (state := await manager.wait(job.id, WAIT_S)).state == "running":
                pass
        return state

    state = anyio.run(diagnosed)
    if state.problem is not None:
        result.write_text(json.dumps({"problem": f"{state.problem.what}: {state.problem.value}"}))
        return REFUSED
    assert state.result is not None, "a job without a problem has a result"
    result.write_text(json.dumps(state.result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
