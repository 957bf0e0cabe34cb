"""Runs cases on this machine, several side by side, each lane with a GPU of its own where there are any."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import anyio

from mcp_server.sweep.attempt import Done, attempt
from mcp_server.sweep.plan import SweepCase

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
