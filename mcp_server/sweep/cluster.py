"""Runs the cases of a sweep on an existing Ray cluster, one Ray task per case.

The files of a case must have the same path on every node, as on a shared file system. Ray's own retries are
off: the sweep counts attempts, so it must see each lost one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.sweep.plan import Attempt, SweepCase
from mcp_server.sweep.run import AttemptResult, OnDone, attempt


def _attempt(case: SweepCase) -> AttemptResult:
    # Runs in the Ray worker. Ray has set CUDA_VISIBLE_DEVICES there, so no GPU is named here.
    return anyio.run(attempt, case)


class Cluster:
    """The Ray cluster at `address`; `auto` finds the one this machine belongs to.

    Raises `ProblemError` when Ray is not installed or no cluster answers.
    """

    def __init__(self, address: str) -> None:
        self.ray = _connected(address)
        self.task = self.ray.remote(max_retries=0, num_cpus=1)(_attempt)

    async def each(self, cases: Sequence[SweepCase], done: OnDone) -> None:
        """Run every case once; call `done` as each attempt ends."""
        running = {self.task.options(num_gpus=case.gpus, name=case.name).remote(case): case for case in cases}
        try:
            while running:
                wait = partial(self.ray.wait, list(running), num_returns=1)
                ended, _ = await anyio.to_thread.run_sync(wait, abandon_on_cancel=True)
                for task in ended:
                    done(running.pop(task), self._outcome(task))
        finally:
            for task in running:
                self.ray.cancel(task, force=True)

    def _outcome(self, task: Any) -> AttemptResult:
        try:
            result: AttemptResult = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
            return AttemptResult(Attempt(ended="lost", where="the cluster", wall_s=0.0, why=why))
        return result


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
