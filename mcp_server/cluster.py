"""Tasks on an existing Ray cluster (extra `ray`)."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError

REACH_S = 10.0


def _reach(address: str) -> None:
    """Raise `OSError` if nothing listens at HOST:PORT: Ray itself would keep trying for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit() and "[" not in host:  # Ray itself checks IPv6 addresses
        with socket.socket() as connection:
            connection.settimeout(REACH_S)
            connection.connect((host, int(port)))


class Task(Protocol):
    """What a cluster must know about a task: its name, and the number of GPUs to reserve."""

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> float: ...


T = TypeVar("T", bound=Task)
R = TypeVar("R")


class Cluster(Generic[T, R]):
    """Calls `run` with each task on the Ray cluster at `address`; `auto` finds the cluster of this machine.

    `lost` turns the reason into the result of a task whose process or node died. Ray's own retries are off:
    the caller must see each lost task. Raise `ProblemError` if Ray is not installed or no cluster answers.
    """

    def __init__(self, address: str, run: Callable[[T], R], lost: Callable[[str], R]) -> None:
        try:
            import ray
        except ImportError as error:
            raise ProblemError(
                "Ray is not installed",
                value=address,
                allowed="the extra `ray`",
                next_call="pip install 'aoti-debug[ray]'",
            ) from error
        self.ray: Any = ray
        self.address, self.lost = address, lost
        self.task = ray.remote(max_retries=0, num_cpus=1)(run)
        self._join()

    def _join(self) -> None:
        try:
            _reach(self.address)
            self.ray.init(address=self.address, ignore_reinit_error=True, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as error:
            what, allowed = f"no Ray cluster answers: {error}", "auto, or HOST:PORT"
            raise ProblemError(what, value=self.address, allowed=allowed) from error

    async def each(self, tasks: Sequence[T], done: Callable[[T, R], None]) -> None:
        """Run all tasks side by side; `done` is called when one ends. Leaves the cluster at the end."""
        # Ray reports lost tasks on stdout, where results are printed, and the last ones when it is left.
        with redirect_stdout(sys.stderr):
            self._join()
            try:
                await self._each(tasks, done)
            finally:
                self.ray.shutdown()

    async def _each(self, tasks: Sequence[T], done: Callable[[T, R], None]) -> None:
        running = {self.task.options(num_gpus=task.gpus, name=task.name).remote(task): task for task in tasks}
        try:
            while running:
                wait = partial(self.ray.wait, list(running), num_returns=1)
                ended, _ = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
                for one in ended:
                    try:
                        result: R = self.ray.get(one)
                    except self.ray.exceptions.RayError as error:
                        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
                        result = self.lost(why)
                    done(running.pop(one), result)
        finally:
            for one in running:
                self.ray.cancel(one, force=True)
