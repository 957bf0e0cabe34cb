"""Small real programs, and functions that show whether processes live.

`python -m tests.jobs.support DIRECTORY [LAUNCHER]` is a minimal server: it runs one job in the directory
until its standard input ends. Each rank of the launcher writes its process ids to a file.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.jobs.child import Command, Finished
from mcp_server.jobs.manager import Job
from mcp_server.jobs.run import run
from mcp_server.model import Cost
from mcp_server.server.app import exit_on_signals

ASKED = "asked.json"
# Starts a process in another session, writes both pids to the file argv[1]; both ignore SIGTERM and sleep.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(60)
"""


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code, *arguments)


async def finish(directory: Path, argv: tuple[str, ...], **options: Any) -> Finished:
    """Run `argv` in `directory` to its end."""
    return await run(Command(argv, directory, **{"timeout_s": 60, **options}), directory)


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def appears(path: Path, limit_s: float = 120) -> str:
    """Wait for a file that some process is about to write, and return its text."""
    assert within(limit_s, path.exists), f"{path.name} never came"
    return path.read_text()


def within(limit_s: float, happens: Callable[[], bool]) -> bool:
    """Whether `happens` becomes true in that time."""
    limit = time.monotonic() + limit_s
    while not (done := happens()) and time.monotonic() < limit:
        time.sleep(0.005)
    return done


def family(path: Path) -> list[int]:
    """The process ids that FAMILY wrote."""
    return [int(pid) for pid in appears(path).split()]


def all_dead(pids: list[int], limit_s: float) -> bool:
    return within(limit_s, lambda: not any(map(alive, pids)))


def asked_before(job: Path, operation: str, base: Path, **arguments: object) -> None:
    """Write the request of a job into its directory, as the product does."""
    asked = {"operation": operation, "base": str(base), "arguments": arguments}
    (job / ASKED).write_text(json.dumps(asked))


async def endless(job: Job) -> Cost:
    job.progress("sleeping")
    await anyio.sleep(60)
    return Cost()


OF_EACH_RANK = "import os, sys; sys.argv[1] += '.' + os.environ['SLURM_PROCID']" + FAMILY


async def serve(directory: Path, launcher: tuple[str, ...]) -> None:
    argv = (*launcher, *python(OF_EACH_RANK if launcher else FAMILY, str(directory / "pids")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(finish, directory, argv)
        await anyio.to_thread.run_sync(sys.stdin.read)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    exit_on_signals()
    anyio.run(serve, Path(sys.argv[1]), tuple(sys.argv[2:]))
