"""Processes that have imported torch and fork a worker for each request. They may outlive a server's call.

A request is forked only if a fresh process would find the same conditions: the same interpreter, no wrapper
around it, and an environment that differs only in variables read after the import. A tool announces its
requests early, so that the import runs in parallel with the user's program, whose compile uses mostly one
core.

The processes create no tensor and touch no device (worker/fork_server.py). Like all supervised children, they
end with the server. The server ends a process earlier if it has been idle for long, has served many
requests, has grown, or has loaded files that have since changed on disk.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from mcp_server import worker
from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Child, Command, Finished, Starter
from mcp_server.jobs.run import ForkServer, fork_server
from mcp_server.jobs.supervisor import private_memory
from mcp_server.worker.main import OPERATIONS

FORK_SERVER = Path(worker.__file__).with_name("fork_server.py")

# Variables read when the request is carried out, by the worker or by a package's wrapper at its first run
# (torch/csrc/inductor/aoti_runtime/model_base.h, 2.13; probes/native/runtime.cpp). OMP_NUM_THREADS is not
# among them: libgomp reads it when loaded.
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
IDLE_VARIABLE = "AOTI_DEBUG_WARM_S"
LOADED = "loaded.json"
LOOK_S = 2.0

State = tuple[int, int, int]  # time of the last change in ns, bytes, inode


@dataclass(frozen=True)
class Limits:
    """When a waiting process ends (idle time, requests, own memory), and how many may wait at once."""

    idle_s: float = 600.0
    requests: int = 1000
    memory_bytes: int = 1 << 30
    processes: int = 4


def limits_here() -> Limits:
    """The limits, with the idle time from AOTI_DEBUG_WARM_S; 0 keeps no process warm.

    Raise ProblemError if the variable is not a number of seconds.
    """
    asked = os.environ.get(IDLE_VARIABLE, "")
    try:
        idle_s = float(asked) if asked else Limits.idle_s
    except ValueError:
        idle_s = -1.0
    if not 0 <= idle_s < float("inf"):
        raise ProblemError(f"{IDLE_VARIABLE} must be a time", value=asked, allowed="seconds, 0 for none")
    return Limits(idle_s=idle_s)


@dataclass
class Imported:
    """One fork server for requests like `command`. `server` is None until it is ready and after its end.

    If later jobs may use the server, `loaded` is the file in which it lists what it has loaded, and `seen` is
    the state of each listed file when it was ready. `users` counts the jobs that use it.
    """

    command: Command
    modules: tuple[str, ...] = ()
    loaded: Path | None = None
    server: ForkServer | None = None
    users: int = 0
    requests: int = 0
    used_at: float = field(default_factory=time.monotonic)
    began_ns: int = field(default_factory=time.time_ns)
    seen: dict[str, State] = field(default_factory=dict)
    tried: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def serve(self, directory: Path, before: anyio.Event | None) -> None:
        """Import once `before` is set, then fork until cancelled."""
        interpreter, unbuffered = self.command.argv[:2]
        asked = Command(
            argv=(interpreter, unbuffered, str(FORK_SERVER), str(self.loaded or ""), *self.modules),
            cwd=self.command.cwd,
            env=early(self.command.env),
            timeout_s=IMPORT_LIMIT_S,
            unset=self.command.unset,
        )
        try:
            with self.scope:
                if before is not None:
                    await before.wait()
                directory.mkdir(parents=True, exist_ok=True)
                async with fork_server(asked, directory) as self.server:
                    if self.server is not None and self.loaded is not None:
                        with suppress(OSError, ValueError):
                            seen = {path: _state(path) for path in json.loads(self.loaded.read_text())}
                            # Remember none of the files if one changed while they were being loaded.
                            unchanged = max(state[0] for state in seen.values()) < self.began_ns
                            self.seen = seen if unchanged else {}
                    self.tried.set()
                    await anyio.sleep_forever()
        except OSError as error:  # its output cannot be stored: workers start as fresh processes
            logging.getLogger(__name__).warning("no fork server: %s", error)
        finally:
            self.server = None
            self.tried.set()

    @property
    def usable(self) -> bool:
        """Whether a new job may use this server: it is starting, or ready with unchanged loaded files."""
        if not self.tried.is_set():
            return True
        alive = self.server is not None and not self.server.lost
        return alive and bool(self.seen) and all(_state(path) == state for path, state in self.seen.items())

    def worn(self, limits: Limits) -> bool:
        """Whether the process has idled too long, served too many requests, grown too large, or ended."""
        if self.server is None or self.server.lost or self.requests >= limits.requests:
            return True
        idle = time.monotonic() - self.used_at >= limits.idle_s
        return idle or not 0 < private_memory(self.server.pid) <= limits.memory_bytes


def _state(path: str) -> State:
    """What changes when a file is written or replaced, or when a directory's content changes."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them, for each job
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def early(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that something may read during the import."""
    return {name: value for name, value in env.items() if name not in READ_LATE}


def surroundings(command: Command) -> tuple[str, dict[str, str], frozenset[str], Path | None]:
    """What must be equal for two commands to share a fork server.

    The working directory counts only if PYTHONPATH is relative to it.
    """
    path = command.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    relative = bool(path) and not all(entry.startswith("/") for entry in path.split(os.pathsep))
    return command.argv[0], early(command.env), frozenset(command.unset), command.cwd if relative else None


class WarmImports:
    """The fork servers of this process, or of one job if not `later_jobs`. They end with `tasks`."""

    def __init__(self, tasks: TaskGroup, limits: Limits | None = None, *, later_jobs: bool = True) -> None:
        self._tasks = tasks
        self._later_jobs = later_jobs
        self.limits = limits or Limits()
        self.kept: list[Imported] = []
        tasks.start_soon(self._watch)

    def take(
        self, command: Command, modules: tuple[str, ...], before: anyio.Event | None, directory: Path
    ) -> Imported:
        """Return a usable fork server with these surroundings and `modules` imported, or start a new one."""
        self._end_some()
        asked = surroundings(command)
        fitting = [
            one
            for one in self.kept
            if surroundings(one.command) == asked and set(modules) <= set(one.modules)
        ]
        found = next((one for one in fitting if one.usable), None)
        if found is None:
            cwd = asked[3] or directory  # so that no directory of the user stays in use
            loaded = directory / LOADED if self._later_jobs else None
            found = Imported(replace(command, cwd=cwd), modules, loaded)
            self.kept.append(found)
            self._tasks.start_soon(found.serve, directory, before)
        found.users += 1
        found.used_at = time.monotonic()
        return found

    def leave(self, imported: Imported) -> None:
        imported.users -= 1
        imported.used_at = time.monotonic()
        self._end_some()

    async def _watch(self) -> None:
        for _ in repeat(None):  # until the server cancels it
            await anyio.sleep(min(LOOK_S, max(0.1, self.limits.idle_s)))
            self._end_some()

    def _end_some(self) -> None:
        """End unused processes that are past their limits and, if too many exist, those idle longest."""
        free = sorted((one for one in self.kept if not one.users), key=lambda one: one.used_at)
        surplus = max(0, len(self.kept) - self.limits.processes)
        for place, one in enumerate(free):
            if place < surplus or (one.tried.is_set() and one.worn(self.limits)):
                self.kept.remove(one)
                one.scope.cancel()


@dataclass
class SharedImport:
    """The fork servers of one job: one for each set of surroundings that was announced.

    If none was announced, the first request that may be forked determines the surroundings.
    """

    home: WarmImports
    directory: Path
    servers: list[Imported] = field(default_factory=list)

    def expect(self, command: Command, modules: tuple[str, ...] = ()) -> None:
        """Begin to import torch and then `modules`, for requests with the same surroundings as `command`.

        Imports run one after another, in the order in which they were announced.
        """
        if self._of(command) is None:
            before = self.servers[-1].tried if self.servers else None
            directory = self.directory / str(len(self.servers) + 1)
            self.servers.append(self.home.take(command, modules, before, directory))

    async def starter(self, operation: str, command: Command) -> Starter:
        """How to start `command`, which runs a worker for `operation` without a wrapper."""
        if not OPERATIONS[operation].forks or "LD_PRELOAD" in command.env:
            return Child.start
        if not self.servers:
            self.expect(command)
        imported = self._of(command)
        if imported is None:
            return Child.start
        await imported.tried.wait()
        imported.requests += 1
        return imported.server.start if imported.server is not None else Child.start

    def lost(self, finished: Finished) -> bool:
        """Whether the child may have been killed only because its fork server ended."""
        servers = [imported.server for imported in self.servers if imported.server is not None]
        return any(server.lost for server in servers) and finished.signal == "SIGKILL"

    def _of(self, command: Command) -> Imported | None:
        asked = surroundings(command)
        return next((one for one in self.servers if surroundings(one.command) == asked), None)


@asynccontextmanager
async def shared_import(directory: Path, home: WarmImports | None = None) -> AsyncIterator[SharedImport]:
    """Provide fork servers while the context lasts; their output goes to `directory`, created when needed.

    The servers live in `home`, or end with the context if there is none.
    """
    if home is None:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                yield SharedImport(WarmImports(tasks, later_jobs=False), directory)
            except Exception as error:  # raised below, outside the group, which would wrap it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return
    shared = SharedImport(home, directory)
    try:
        yield shared
    finally:
        for imported in shared.servers:
            home.leave(imported)
