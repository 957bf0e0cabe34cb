"""One run of a package with everything that the join needs: journal, index values, inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.evidence.journal import read_journal_file
from mcp_server.faults.situation import Evidence, ValueRange
from mcp_server.instrument.build import instrument
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Instrumented, Options
from mcp_server.model import PackageWorkload
from mcp_server.package.view import PackageView, view_package
from mcp_server.steps.context import Context, Event, WorkerRun
from mcp_server.steps.first_bad import Model
from mcp_server.steps.given import from_leaves
from mcp_server.steps.probe_backend import unset_arguments
from mcp_server.steps.requests import run_request
from mcp_server.steps.trace_launches import journal_environment

MOST_NAMES = 200
"""Integer tensors whose range is looked at in the run that faults."""

_INTEGERS = ("int", "uint", "bool")


@dataclass(frozen=True)
class Target:
    """What is run: the rebuilt package, or the original with the reason why."""

    workload: PackageWorkload
    view: PackageView
    rebuilt: Instrumented | None = None
    why_not: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class FaultRun:
    """A run and what it left for the join."""

    done: WorkerRun
    evidence: Evidence


async def prepare(
    context: Context,
    workload: PackageWorkload,
    options: Options,
    *,
    cache: Cache | None = None,
    gpus: tuple[int, ...] | None = None,
) -> Target:
    """Rebuild the package with probes; one that cannot be rebuilt is taken as it is."""
    view = view_package(workload.package, workload.model_name)
    python = context.python_for(workload)
    try:
        rebuilt = await instrument(workload.package, options, context, python=python, cache=cache)
    except ProblemError as problem:
        return Target(workload, view, None, str(problem), gpus=gpus)
    env = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
    return Target(workload, view, rebuilt, env=env, gpus=gpus)


async def run_target(
    context: Context,
    target: Target,
    name: str,
    *,
    env: Mapping[str, str],
    unset: Sequence[str] = (),
    prefix: Sequence[str] = (),
    directory: Path | None = None,
) -> FaultRun:
    """Run once, each launch waited for; a crash is what is looked for."""
    directory = directory or context.fresh(name)
    journal = directory / "launches.jsonl"
    workload, operation, request = target.workload, "run", run_request(target.workload)
    wanted = {**workload.env, **target.env, **env}
    if target.rebuilt is not None:
        operation = "observe"
        request = {**request, **observed(target.view), "package": target.rebuilt.package}
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
        gpus=target.gpus,
        prefix=prefix,
    )
    return FaultRun(done, _evidence(target, done, journal))


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


def _evidence(target: Target, done: WorkerRun, journal: Path) -> Evidence:
    given = done.last("given")
    leaves = given["leaves"] if given else []
    tensors = [{"kind": "tensor", **leaf} for leaf in leaves if leaf.get("shape") is not None]
    flat = from_leaves(tensors, None).tensors if len(tensors) == len(leaves) else ()
    if target.rebuilt is None:
        return Evidence(given=flat)
    return Evidence(
        journal=read_journal_file(journal),
        synchronous=True,
        ranges=read_ranges(done.all("argument")),
        given=flat,
    )


def read_ranges(events: Iterable[Event]) -> dict[tuple[int, str], ValueRange]:
    """Least and greatest element by launch and variable; of a launch that ran twice, the last."""
    return {
        (int(e["launch"]), str(e["name"])): ValueRange(int(e["min"]), int(e["max"]))
        for e in events
        if e.get("min") is not None and str(e.get("dtype", "")).startswith(_INTEGERS)
    }
