"""Tasks on an existing Ray cluster (extra `ray`), and the launches of a call as such tasks.

The launches of one call are judged by several machines: each shard is a range of launches, a task of Ray.

Values flow from launch to launch, so each shard takes the reference values of the whole program and makes the
whole call, with right values copied in after every launch. It measures the launches of its range alone, and
that is what takes long. The first shard repeats the call for all. What they report is merged into the report
of one process. The package, the program and the inputs need the same path on every node; reports come back
through Ray.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.model import Record
from mcp_server.operations.arguments import Operation
from mcp_server.package.view import PackageView
from mcp_server.tools.context import REPORT, Context, WorkerRun, read_events
from mcp_server.worker.events import JudgedOutputs, ShardLost

REACH_S = 10.0


def _reach(address: str) -> None:
    """Raises `OSError` where nothing listens at HOST:PORT: Ray itself goes on trying for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit() and "[" not in host:  # of IPv6 Ray finds out itself
        with socket.socket() as connection:
            connection.settimeout(REACH_S)
            connection.connect((host, int(port)))


class Task(Protocol):
    """What a cluster has to know of a task: a name, and the number of GPUs to reserve."""

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> float: ...


T = TypeVar("T", bound=Task)
R = TypeVar("R")


class Cluster(Generic[T, R]):
    """Calls `run` with each task on the Ray cluster at `address`; `auto` finds the one this machine is in.

    `lost` makes the result of a task whose process or node died, of why. Ray's own retries are off, since the
    caller must see each lost task. Raises `ProblemError` when Ray is not installed or no cluster answers.
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
        """Run all side by side; `done` is called when one ends. Leaves the cluster in the end."""
        # Ray tells of lost tasks on stdout, the last ones when it is left; results are printed there.
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


LEAST = 2  # shards, where the cluster has fewer GPUs
TRIES = 2
OUTPUTS = "eager_outputs.pt"
# Of shards other than the first one that came back; the rest of a report says the same in each.
OWN = frozenset({"calling", "constant_differs", "launch_compared", "launch_judged", "observer_failed"})


@dataclass(frozen=True)
class Shard:
    """The launches from `first` up to `end`, and the arguments of `Context.worker` for them."""

    first: int
    end: int
    gpus: float
    python: Path
    request: Mapping[str, object]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        last = self.end - 1
        return f"launches {self.first} to {last}" if last > self.first else f"launch {last}"


@dataclass(frozen=True)
class Ended:
    """A shard whose worker ended, with the files that it left."""

    finished: Finished
    files: Mapping[str, bytes]


@dataclass(frozen=True)
class Lost:
    """The process or the node of a shard died."""

    why: str


Result = Ended | ProblemError | Lost  # the worker refused the request, or the shard was lost


def split(launches: int, shards: int) -> list[tuple[int, int]]:
    """Ranges of launches, of the same length but for one; no empty ones."""
    parts = max(1, min(shards, launches))
    return list(pairwise(launches * part // parts for part in range(parts + 1)))


def _judge(shard: Shard) -> Result:
    return anyio.run(judge, shard)  # in the process of Ray


async def judge(shard: Shard) -> Result:
    """Run the worker for a shard, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="aoti-debug-shard-") as name:
        context = Context(Path(name), shard.python)
        directory = context.fresh("compare_launches")
        own = {"launches": (shard.first, shard.end), "eager_outputs": directory / OUTPUTS}
        try:
            done = await context.worker(
                "compare_launches", {**shard.request, **own}, directory=directory, **shard.options
            )
        except ProblemError as problem:
            problem.value = str(problem.value)  # it is sent to another process
            return problem
        files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        return Ended(done.finished, files)


@dataclass(frozen=True)
class Shards:
    """Makes a request of `compare_launches` in `count` parts."""

    cluster: Cluster[Shard, Result]
    count: int

    async def __call__(
        self,
        context: Context,
        model: PackageView,
        request: Mapping[str, object],
        directory: Path,
        **options: Any,
    ) -> WorkerRun:
        """What the worker reports of the whole call; its files are put into `directory`.

        Raises `ProblemError` when the worker refuses the request, and when no shard came back.
        """
        gpus = 0 if model.package.device_type == "cpu" else 1
        parts = split(len(model.wrapper.launches), self.count)
        shards = [Shard(*part, gpus, context.python, request, options) for part in parts]
        results: dict[int, Result] = {}

        def done(shard: Shard, result: Result) -> None:
            results[shard.first] = result
            how = "refused" if isinstance(result, ProblemError) else type(result).__name__.lower()
            context.progress(f"{shard.name}: {how}")

        with context.cost.clock.child():
            for _ in range(TRIES):
                left = [one for one in shards if isinstance(results.get(one.first, Lost("")), Lost)]
                await self.cluster.each(left, done)
        return merge([(shard, _told(shard, results[shard.first], directory)) for shard in shards])


def _told(shard: Shard, result: Result, directory: Path) -> WorkerRun | Lost:
    """The run of a shard, with its files in a directory of its own; eager's outputs are the same in each."""
    if isinstance(result, ProblemError):
        raise result
    if isinstance(result, Lost):
        return result
    own = directory / shard.name.replace(" ", "-")
    own.mkdir()
    for name, content in result.files.items():
        (directory if name == OUTPUTS else own).joinpath(name).write_bytes(content)
    ended = result.finished
    moved = {name: own / getattr(ended, name).name for name in ("output", "stdout", "stderr")}
    return WorkerRun(replace(ended, **moved), read_events(own / REPORT), own, shard.python)


def merge(told: Sequence[tuple[Shard, WorkerRun | Lost]]) -> WorkerRun:
    """The run of one process that judged all; event `shard_lost` for launches that no shard judged.

    A call that comes back in no shard is a result, as it is of one process.
    """
    runs = [run for _, run in told if isinstance(run, WorkerRun)]
    if not runs:
        why = "; ".join(f"{shard.name}: {run.why}" for shard, run in told)
        raise ProblemError("no shard came back", value=why, allowed="a cluster whose nodes live")
    judged = [run for run in runs if run.last(JudgedOutputs)]
    if not judged:
        return runs[0]
    lost = [
        ShardLost(shard.first, shard.end, f"{shard.name}: {run.why}")
        for shard, run in told
        if isinstance(run, Lost) or not run.last(JudgedOutputs)
    ]
    own = [event for run in judged for event in run.events if event.event in OWN]
    own.sort(key=lambda event: int(getattr(event, "sequence", 0)))
    rest = [event for event in judged[0].events if event.event not in OWN]
    return replace(judged[0], events=(*own, *lost, *rest))


def on_cluster(address: str, count: int = 0) -> Shards:
    """Shards on the Ray cluster at `address`: `count`, or one for each of its GPUs.

    Raises `ProblemError` when Ray is not installed or no cluster answers.
    """
    cluster: Cluster[Shard, Result] = Cluster(address, _judge, Lost)
    return Shards(cluster, count or max(LEAST, int(cluster.ray.cluster_resources().get("GPU", 0))))


def sharded(operation: Operation, shards: Shards) -> Operation:
    """The operation, with every launch of its call judged in shards."""

    async def call(context: Context, given: Any) -> Record:
        context.shards = shards
        return await operation.call(context, given)

    return replace(operation, call=call)
