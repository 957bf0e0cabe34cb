"""Tries a case once: starts its process, and reads what became of it."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.jobs.run import run
from mcp_server.jobs.types import Command, Finished
from mcp_server.sweep.one import REFUSED
from mcp_server.sweep.plan import SweepCase
from mcp_server.sweep.record import Attempt

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
