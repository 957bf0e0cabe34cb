"""What the supervisor adds to each child: `python -m benchmarks.supervisor [ROUNDS]` prints medians in ms.

The same program is started plainly and under `jobs.run`, in turns, so that load on the machine hits both; the
figure still grows with load, since starting an interpreter is all processor time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from mcp_server.jobs.command import Command
from mcp_server.jobs.run import run

PROGRAM = ("/bin/true",)
LIMIT_MS = 30.0


async def plain(directory: Path) -> None:
    subprocess.run(PROGRAM, cwd=directory, capture_output=True, check=True)


async def supervised(directory: Path) -> None:
    assert (await run(Command(PROGRAM, directory), directory)).ok


async def milliseconds(start: Callable[[Path], Awaitable[None]], directory: Path) -> float:
    before = time.perf_counter()
    await start(directory)
    return (time.perf_counter() - before) * 1e3


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        await supervised(directory)
        both = [
            (await milliseconds(plain, directory), await milliseconds(supervised, directory))
            for _ in range(rounds)
        ]
    bare, full = (statistics.median(column) for column in zip(*both, strict=True))
    print(f"plain {bare:.1f} ms, supervised {full:.1f} ms")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"overhead {full - bare:.1f} ms (limit {LIMIT_MS:g} ms)")


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 50)
