"""Runs cases on an existing Ray cluster: one case, one task, with the GPUs that it asks for.

The files of a case must be at the same path on every node, as on a shared file system. Ray's own retries are
off: a lost attempt is reported and made again by the sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.sweep.plan import Attempt, SweepCase
from mcp_server.sweep.run import Done, Tried, attempt


def _attempt(case: SweepCase) -> Tried:
    """In the Ray worker, which has set CUDA_VISIBLE_DEVICES already."""
    return anyio.run(attempt, case)


class Cluster:
    """The cluster at `address` (`auto` for the one of this machine). Raises ProblemError without it."""

    def __init__(self, address: str) -> None:
        self.ray = _connected(address)
        self.task = self.ray.remote(max_retries=0, num_cpus=1)(_attempt)

    async def each(self, cases: Sequence[SweepCase], done: Done) -> None:
        """Try every case; `done` gets each with its attempt as it ends."""
        running = {self.task.options(num_gpus=case.gpus, name=case.name).remote(case): case for case in cases}
        try:
            while running:
                ended, _ = await anyio.to_thread.run_sync(self._next, list(running), abandon_on_cancel=True)
                for task in ended:
                    done(running.pop(task), self._outcome(task))
        finally:
            for task in running:
                self.ray.cancel(task, force=True)

    def _next(self, tasks: list[Any]) -> Any:
        return self.ray.wait(tasks, num_returns=1)

    def _outcome(self, task: Any) -> Tried:
        try:
            tried: Tried = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
            return Tried(Attempt(ended="lost", where="the cluster", wall_s=0.0, why=why))
        return tried


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ProblemError(
            "Ray is not installed",
            value=address,
            allowed="the extra `ray`",
            next_call="pip install 'aoti-debug[ray]'",
        ) from error
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ProblemError(
            f"no Ray cluster answers: {error}", value=address, allowed="auto, or HOST:PORT"
        ) from error
    return ray
