"""One import of torch for several requests to the worker.

A request may be forked from a process that has imported torch already when a process of its own would find
the same there: the same interpreter, no wrapper around it, and an environment that differs at most in
variables which nothing reads before the request does. Who knows what requests will come says so, and the
import is done by then: beside the program's own run, say, which uses one core for most of its compile.
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
FORKED = frozenset(
    {"describe_inputs", "index_values", "interpret", "run", "replay", "repeat", "observe", "intervene"}
)

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
class Imported:
    """One fork server, with the surroundings of `command`; `server` is None before it is ready, and after."""

    command: Command
    modules: tuple[str, ...] = ()
    seconds: float = 0.0
    server: ForkServer | None = None
    tried: anyio.Event = field(default_factory=anyio.Event)

    async def serve(self, directory: Path, before: anyio.Event | None) -> None:
        """Import once `before` is set, then fork until this is cancelled."""
        if before is not None:
            await before.wait()
        interpreter, unbuffered = self.command.argv[:2]
        asked = Command(
            argv=(interpreter, unbuffered, str(FORK_SERVER), *self.modules),
            cwd=self.command.cwd,
            env=early(self.command.env),
            timeout_s=IMPORT_LIMIT_S,
            unset=self.command.unset,
        )
        directory.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        try:
            async with fork_server(asked, directory) as self.server:
                self.seconds = time.monotonic() - began
                self.tried.set()
                await anyio.sleep_forever()
        finally:
            self.server = None
            self.tried.set()


@dataclass
class SharedImport:
    """The fork servers of one job: one for each of the surroundings that were expected.

    When none was, the first request that may be forked says which they are.
    """

    tasks: TaskGroup
    directory: Path
    servers: list[Imported] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """What the imports took, each by itself."""
        return sum(imported.seconds for imported in self.servers)

    def expect(self, command: Command, modules: tuple[str, ...] = ()) -> None:
        """Begin to import torch, and `modules` after it, for requests that are surrounded as `command` is.

        One import after another, in the order in which they were expected.
        """
        if self._of(command) is None:
            before = self.servers[-1].tried if self.servers else None
            imported = Imported(command, modules)
            self.servers.append(imported)
            directory = self.directory / str(len(self.servers))
            self.tasks.start_soon(imported.serve, directory, before)

    async def starter(self, operation: str, command: Command) -> Starter:
        """How to start `command`, a worker that carries `operation` out, with nothing put before it."""
        if operation not in FORKED:
            return Child.start
        if not self.servers:
            self.expect(command)
        imported = self._of(command)
        if imported is None:
            return Child.start
        await imported.tried.wait()
        return imported.server.start if imported.server is not None else Child.start

    def lost(self, finished: Finished) -> bool:
        """Whether this may be the end of a server, and not that of a forked worker."""
        servers = [imported.server for imported in self.servers if imported.server is not None]
        return any(server.lost for server in servers) and finished.signal == "SIGKILL"

    def _of(self, command: Command) -> Imported | None:
        asked = surroundings(command)
        return next((one for one in self.servers if surroundings(one.command) == asked), None)


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
