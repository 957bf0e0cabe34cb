"""Finds a job's processes without its supervisor: when that one was killed, nobody else knows them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from mcp_server.jobs.supervisor import hand_back

MARK = "AOTI_DEBUG_CHILD"
LIMIT_S = 2.0
STEP_S = 0.005


def marked(mark: str, proc: Path = Path("/proc")) -> list[int]:
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
    hand_back(lambda: marked(mark))
    limit = time.monotonic() + LIMIT_S
    while (found := marked(mark)) and time.monotonic() < limit:
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(STEP_S)
