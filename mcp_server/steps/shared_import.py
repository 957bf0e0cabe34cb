"""One import of torch for several requests to the worker.

A request may be forked from a process that has imported torch already when a process of its own would find
the same there: the same interpreter, no wrapper around it, and an environment that differs at most in
variables which nothing reads before the request does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from mcp_server import worker
from mcp_server.jobs.child import Child, Starter
from mcp_server.jobs.fork_server import ForkServer, fork_server
from mcp_server.jobs.types import Command, Finished

FORK_SERVER = Path(worker.__file__).with_name("fork_server.py")

# Operations that begin with the import and load what they need themselves. Not `probe`, which tells of a
# fresh interpreter, nor `compile`, whose compiler processes look at how they were started.
FORKED = frozenset({"describe_inputs", "index_values", "interpret", "run", "replay", "repeat"})

# Read when the request is carried out: by the worker, and by the wrapper of a package at its first run
# (torch/csrc/inductor/aoti_runtime/model_base.h, 2.13; instrument/native/runtime.cpp).
# OMP_NUM_THREADS is not: libgomp reads it when loaded.
READ_LATE = frozenset(
    {
        "AOTI_DEBUG_STACKS_AFTER",
        "AOTI_RUNTIME_CHECK_INPUTS",
        "AOTI_DEBUG_JOURNAL",
        "AOTI_DEBUG_JOURNAL_LIMIT",
        "AOTI_DEBUG_SYNC",
        "AOTI_DEBUG_STOP_AT",
    }
)

IMPORT_LIMIT_S = 60.0


@dataclass
class SharedImport:
    """The fork server of one job, started with the surroundings of the first request that may use it."""

    tasks: TaskGroup
    directory: Path
    first: Command | None = None
    seconds: float = 0.0
    server: ForkServer | None = None
    tried: anyio.Event = field(default_factory=anyio.Event)

    async def starter(self, operation: str, command: Command) -> Starter:
        """How to start `command`, a worker that carries `operation` out, with nothing put before it."""
        if operation not in FORKED:
            return Child.start
        if self.first is None:
            self.first = command
            self.directory.mkdir(parents=True, exist_ok=True)
            self.tasks.start_soon(self._serve, command)
        await self.tried.wait()
        fits = self.server is not None and surroundings(command) == surroundings(self.first)
        return self.server.start if self.server is not None and fits else Child.start

    def lost(self, finished: Finished) -> bool:
        """Whether this may be the end of the server, and not that of a forked worker."""
        return self.server is not None and self.server.lost and finished.signal == "SIGKILL"

    async def _serve(self, command: Command) -> None:
        interpreter, unbuffered = command.argv[:2]
        asked = Command(
            argv=(interpreter, unbuffered, str(FORK_SERVER)),
            cwd=command.cwd,
            env=early(command.env),
            timeout_s=IMPORT_LIMIT_S,
            unset=command.unset,
        )
        began = time.monotonic()
        try:
            async with fork_server(asked, self.directory) as self.server:
                self.seconds = time.monotonic() - began
                self.tried.set()
                await anyio.sleep_forever()
        finally:
            self.server = None
            self.tried.set()


@asynccontextmanager
async def shared_import(directory: Path) -> AsyncIterator[SharedImport]:
    """For as long as the context lasts; `directory`, made when it is needed, gets what the server prints."""
    async with anyio.create_task_group() as tasks:
        yield SharedImport(tasks, directory)
        tasks.cancel_scope.cancel()


def early(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that something may read during the import."""
    return {name: value for name, value in env.items() if name not in READ_LATE}


def surroundings(command: Command) -> tuple[str, dict[str, str], frozenset[str]]:
    """What two commands must have in common."""
    return command.argv[0], early(command.env), frozenset(command.unset)
