"""One run of a package with everything that the join needs: journal, index values, inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from mcp_server.errors import ProblemError
from mcp_server.logs.journal import read_journal_file
from mcp_server.memory_faults.situation import Evidence, ValueRange
from mcp_server.model import PackageWorkload, WorkloadBase
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.context import Context, Event, WorkerRun
from mcp_server.tools.first_bad import Model
from mcp_server.tools.probe_backend import unset_arguments
from mcp_server.tools.requests import run_request
from mcp_server.tools.trace_launches import journal_environment

MOST_NAMES = 200
"""Integer tensors whose range is looked at in the run that faults."""

_INTEGERS = ("int", "uint", "bool")


class Rebuild:
    """A rebuild under way. Workers that started meanwhile wait for the file `handoff`."""

    def __init__(self, directory: Path) -> None:
        self.handoff = directory / "package.json"
        self.made: Instrumented | None = None
        self.why_not = ""
        self._done = anyio.Event()

    async def carry_out(
        self, context: Context, workload: PackageWorkload, options: Options, cache: Cache | None
    ) -> None:
        """Rebuild the package with probes; one that cannot be rebuilt is handed on as it is."""
        python = context.python_for(workload)
        try:
            self.made = await instrument(
                workload.package, options, context, python=python, cache=cache, env=workload.env
            )
        except ProblemError as problem:
            self.why_not = str(problem)
        package = self.made.package if self.made else workload.package
        partial = self.handoff.with_suffix(".partial")
        partial.write_text(json.dumps({"package": str(package), "probes": self.made is not None}))
        partial.rename(self.handoff)
        self._done.set()

    async def wait(self) -> None:
        await self._done.wait()


@dataclass(frozen=True)
class FaultRun:
    """A run and what it left for the join."""

    done: WorkerRun
    evidence: Evidence


class Target(Protocol):
    """What a method runs: a call of a package, or a whole program."""

    @property
    def workload(self) -> WorkloadBase: ...

    @property
    def view(self) -> PackageView: ...

    @property
    def rebuilt(self) -> Instrumented | None:
        """The package with probes; None where there is none."""

    @property
    def why_not(self) -> str:
        """Why there are no probes; empty where there are, and where none were asked for."""

    async def settled(self) -> None:
        """Wait until `rebuilt` and `why_not` hold."""

    async def run(
        self,
        context: Context,
        name: str,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
        directory: Path | None = None,
    ) -> FaultRun:
        """Run once; a crash is what is looked for."""


@dataclass(frozen=True)
class PackageTarget:
    """What is run: the package as it is, or with probes as soon as `rebuild` is done."""

    workload: PackageWorkload
    view: PackageView
    rebuild: Rebuild | None = None
    gpus: tuple[int, ...] | None = None

    async def settled(self) -> None:
        if self.rebuild is not None:
            await self.rebuild.wait()

    @property
    def rebuilt(self) -> Instrumented | None:
        return self.rebuild.made if self.rebuild else None

    @property
    def why_not(self) -> str:
        return self.rebuild.why_not if self.rebuild else ""

    @property
    def env(self) -> dict[str, str]:
        """What must be preloaded; only known when the rebuild is done."""
        preload = self.rebuilt.preload if self.rebuilt else ()
        return {"LD_PRELOAD": " ".join(preload)} if preload else {}

    async def run(
        self,
        context: Context,
        name: str,
        *,
        env: Mapping[str, str],
        unset: Sequence[str] = (),
        prefix: Sequence[str] = (),
        directory: Path | None = None,
    ) -> FaultRun:
        """Run once, each launch waited for; a crash is what is looked for.

        The worker starts at once and waits for the rebuilt package itself.
        """
        directory = directory or context.fresh(name)
        journal = directory / "launches.jsonl"
        workload, operation, request = self.workload, "run", run_request(self.workload)
        wanted = {**workload.env, **self.env, **env}
        if self.rebuild is not None:
            operation = "observe"
            started = {"handoff": self.rebuild.handoff, "warm": self.view.package.device_type}
            request = {**request, **observed(self.view), **started}
            wanted |= journal_environment(journal, True, None)
        done = await context.worker(
            operation,
            request,
            directory=directory,
            env={key: value for key, value in wanted.items() if key not in unset},
            unset=tuple(unset),
            timeout_s=workload.timeout_s,
            python=context.python_for(workload),
            cwd=workload.cwd,
            gpus=self.gpus,
            prefix=prefix,
        )
        await self.settled()
        return FaultRun(done, _evidence(self, done, journal))


def prepare(
    context: Context,
    workload: PackageWorkload,
    options: Options,
    tasks: TaskGroup,
    *,
    cache: Cache | None = None,
    gpus: tuple[int, ...] | None = None,
) -> PackageTarget:
    """Begin to rebuild the package with probes, as one of `tasks`."""
    rebuild = Rebuild(context.fresh("rebuild"))
    tasks.start_soon(rebuild.carry_out, context, workload, options, cache)
    return PackageTarget(workload, view_package(workload.package, workload.model_name), rebuild, gpus)


def observed(view: PackageView) -> dict[str, object]:
    """What the observation is asked for: the integer tensors of each launch, before it."""
    model = Model(view.package, view.wrapper)
    return {
        "names": integer_tensors(view)[:MOST_NAMES],
        "phases": ["before"],
        "skip_before": unset_arguments(model),
    }


def integer_tensors(view: PackageView) -> list[str]:
    """Variables that may hold indices; those of unknown type (results of operators) too."""
    types = {i.name: i.dtype for i in view.package.inputs}
    types |= {c.name: c.dtype for c in view.package.constants}
    types |= {b.name: b.dtype for b in view.wrapper.buffers.values() if b.dtype and b.name not in types}
    used = dict.fromkeys(name for launch in view.wrapper.launches for name in launch.reads)
    return [name for name in used if (types.get(name) or "int").startswith(_INTEGERS)]


def _evidence(target: PackageTarget, done: WorkerRun, journal: Path) -> Evidence:
    given = done.last("given")
    leaves = given["leaves"] if given else []
    tensors = [{"kind": "tensor", **leaf} for leaf in leaves if leaf.get("shape") is not None]
    flat = from_leaves(tensors, None).tensors if len(tensors) == len(leaves) else ()
    if target.rebuilt is None:
        return Evidence(inputs=flat)
    return Evidence(
        journal=read_journal_file(journal),
        synchronous=True,
        ranges=read_ranges(done.all("argument")),
        inputs=flat,
    )


def read_ranges(events: Iterable[Event]) -> dict[tuple[int, str], ValueRange]:
    """Least and greatest element by launch and variable; of a launch that ran twice, the last."""
    return {
        (int(e["launch"]), str(e["name"])): ValueRange(int(e["min"]), int(e["max"]))
        for e in events
        if e.get("min") is not None and str(e.get("dtype", "")).startswith(_INTEGERS)
    }
