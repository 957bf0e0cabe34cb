"""Seconds that something had for itself: the clock stands still while it can only wait for a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Clock:
    """Runs from its making on. What is limited by it gets its seconds in full, however long it waits."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._stopped_at: float | None = None
        self._waited = 0.0
        self._limits: dict[anyio.CancelScope, float] = {}  # with what was left when the clock was stopped

    @property
    def wall_s(self) -> float:
        """What a clock on the wall shows."""
        return time.monotonic() - self.began

    @property
    def waited_s(self) -> float:
        """How long the clock stood still, the present stop included."""
        return self._waited + (time.monotonic() - self._stopped_at if self._stopped_at is not None else 0.0)

    @property
    def worked_s(self) -> float:
        """What spends a budget."""
        return self.wall_s - self.waited_s

    def stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
            for scope in self._limits:
                self._limits[scope] = scope.deadline - anyio.current_time()
                scope.deadline = math.inf

    def go_on(self) -> None:
        if self._stopped_at is not None:
            self._waited, self._stopped_at = self.waited_s, None
            for scope, left in self._limits.items():
                scope.deadline = anyio.current_time() + left

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """Cancel what is within after `seconds` of this clock."""
        still = self._stopped_at is not None
        scope = anyio.CancelScope(deadline=math.inf if still else anyio.current_time() + seconds)
        self._limits[scope] = seconds
        try:
            with scope:
                yield scope
        finally:
            del self._limits[scope]


class JobClock(Clock):
    """The clock of a job with several children: it stands still when one of them waits and none works.

    A child that waits for another one of the same job is no reason to stop it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._children = self._blocked = 0

    @contextmanager
    def child(self) -> Iterator[None]:
        """Around all that one child does, its waiting included."""
        with self._counted("_children"):
            yield

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Around the waiting of one child."""
        with self._counted("_blocked"):
            yield

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self._add(name, 1)
        try:
            yield
        finally:
            self._add(name, -1)

    def _add(self, name: str, step: int) -> None:
        setattr(self, name, getattr(self, name) + step)
        if self._blocked and self._blocked >= self._children:
            self.stop()
        else:
            self.go_on()
