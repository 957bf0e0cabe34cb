"""The clock of a job: its budget stands still while all of its children wait for a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import anyio


class Clock:
    """Starts at once. Time that the job spent waiting does not count against its limits.

    A child that waits for another child of the same job does not stop it.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._stopped_at: float | None = None
        self._waited = 0.0
        self._limits: dict[anyio.CancelScope, float] = {}  # seconds left when the clock stopped
        self._children = self._blocked = 0

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def waited_s(self) -> float:
        """Seconds that the clock stood still, a current stop included."""
        return self._waited + (time.monotonic() - self._stopped_at if self._stopped_at is not None else 0.0)

    @property
    def worked_s(self) -> float:
        return self.wall_s - self.waited_s

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancel the body after `seconds` of this clock."""
        still = self._stopped_at is not None
        scope = anyio.CancelScope(deadline=math.inf if still else anyio.current_time() + seconds)
        self._limits[scope] = seconds
        try:
            with scope:
                yield scope
        finally:
            del self._limits[scope]

    def child(self) -> AbstractContextManager[None]:
        return self._added(children=1, blocked=0)

    def blocked(self) -> AbstractContextManager[None]:
        return self._added(children=0, blocked=1)

    @contextmanager
    def _added(self, children: int, blocked: int) -> Iterator[None]:
        self._count(children, blocked)
        try:
            yield
        finally:
            self._count(-children, -blocked)

    def _count(self, children: int, blocked: int) -> None:
        self._children += children
        self._blocked += blocked
        waits = bool(self._blocked) and self._blocked >= self._children
        if waits and self._stopped_at is None:
            self._stopped_at = time.monotonic()
            for scope in self._limits:
                self._limits[scope] = scope.deadline - anyio.current_time()
                scope.deadline = math.inf
        elif not waits and self._stopped_at is not None:
            self._waited, self._stopped_at = self.waited_s, None
            for scope, left in self._limits.items():
                scope.deadline = anyio.current_time() + left
