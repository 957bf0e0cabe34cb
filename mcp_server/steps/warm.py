"""Processes that have imported torch and wait for the next job: what a server keeps warm between calls.

They make no tensor and touch no device (worker/fork_server.py). They end with the server, however it ends:
each is supervised as any child is. One that waited long, served many requests, grew, or whose files changed
on the disk since it loaded them is ended before that.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from mcp_server.errors import ProblemError
from mcp_server.jobs.supervisor import private_memory
from mcp_server.jobs.types import Command
from mcp_server.steps.shared_import import Imported, surroundings

IDLE_VARIABLE = "AOTI_DEBUG_WARM_S"
LOADED = "loaded.json"
LOOK_S = 2.0

State = tuple[int, int, int]  # time of the last change in ns, bytes, inode


@dataclass(frozen=True)
class Limits:
    """When a process is ended: seconds without a request, requests, bytes of its own, processes at a time."""

    idle_s: float = 600.0
    requests: int = 1000
    memory_bytes: int = 1 << 30
    processes: int = 4


def limits_here() -> Limits:
    """The limits, with the time that AOTI_DEBUG_WARM_S asks for; 0 keeps nothing warm.

    Raises ProblemError for what is no number of seconds.
    """
    asked = os.environ.get(IDLE_VARIABLE, "")
    try:
        idle_s = float(asked) if asked else Limits.idle_s
    except ValueError:
        idle_s = -1.0
    if not 0 <= idle_s < float("inf"):
        raise ProblemError(f"{IDLE_VARIABLE} is no time", value=asked, allowed="seconds, 0 for none")
    return Limits(idle_s=idle_s)


@dataclass
class Warm(Imported):
    """One of them; `seen` is the state of each file that it had loaded when it was ready."""

    began_ns: int = field(default_factory=time.time_ns)
    seen: dict[str, State] = field(default_factory=dict)

    async def note_files(self) -> None:
        """Remember the files, once it is ready; none when one was changed while they were loaded."""
        await self.tried.wait()
        if self.server is not None and self.loaded is not None:
            with suppress(OSError, ValueError):
                seen = {path: _state(path) for path in json.loads(self.loaded.read_text())}
                self.seen = seen if max(state[0] for state in seen.values()) < self.began_ns else {}

    @property
    def usable(self) -> bool:
        """Whether a new job may have it: it is being made, or it is ready and what it loaded is unchanged."""
        if not self.tried.is_set():
            return True
        alive = self.server is not None and not self.server.lost
        return alive and bool(self.seen) and all(_state(path) == state for path, state in self.seen.items())


def _state(path: str) -> State:
    """What changes when a file is written or replaced, and a directory when something in it is."""
    try:
        found = os.stat(path)  # noqa: PTH116 - thousands of them, for each job
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


class WarmImports:
    """The home of the fork servers of one server; `tasks` end with that."""

    def __init__(self, tasks: TaskGroup, limits: Limits | None = None) -> None:
        self._tasks = tasks
        self.limits = limits or Limits()
        self.kept: list[Warm] = []
        tasks.start_soon(self._watch)

    def take(
        self, command: Command, modules: tuple[str, ...], before: anyio.Event | None, directory: Path
    ) -> Imported:
        """One that fits and is fresh, or a new one."""
        self._end_some()
        found = next((one for one in self.kept if _fits(one, command, modules) and one.usable), None)
        if found is None:
            found = self._begun(command, modules, before, directory)
        found.users += 1
        found.used_at = time.monotonic()
        return found

    def leave(self, imported: Imported) -> None:
        imported.users -= 1
        imported.used_at = time.monotonic()
        self._end_some()

    def _begun(
        self, command: Command, modules: tuple[str, ...], before: anyio.Event | None, directory: Path
    ) -> Warm:
        cwd = surroundings(command)[3] or directory  # no directory of the user's is kept busy
        made = Warm(replace(command, cwd=cwd), modules, directory / LOADED)
        self.kept.append(made)
        self._tasks.start_soon(made.serve, directory, before)
        self._tasks.start_soon(made.note_files)
        return made

    async def _watch(self) -> None:
        while True:
            await anyio.sleep(min(LOOK_S, max(0.1, self.limits.idle_s)))
            self._end_some()

    def _end_some(self) -> None:
        """End what no job uses and none should use again; the longest unused where there are too many."""
        free = sorted((one for one in self.kept if not one.users), key=lambda one: one.used_at)
        surplus = max(0, len(self.kept) - self.limits.processes)
        for place, one in enumerate(free):
            if place < surplus or self._worn(one):
                self.kept.remove(one)
                one.scope.cancel()

    def _worn(self, one: Warm) -> bool:
        if not one.tried.is_set():
            return False
        idle = time.monotonic() - one.used_at >= self.limits.idle_s
        return idle or one.requests >= self.limits.requests or self._gone_or_grown(one)

    def _gone_or_grown(self, one: Warm) -> bool:
        if one.server is None or one.server.lost:
            return True
        return not 0 < private_memory(one.server.pid) <= self.limits.memory_bytes


def _fits(one: Imported, command: Command, modules: tuple[str, ...]) -> bool:
    """Whether requests surrounded as `command` find what they expect, and `modules` imported."""
    mine, asked = surroundings(one.command), surroundings(command)
    return mine == asked and set(modules) <= set(one.modules)
