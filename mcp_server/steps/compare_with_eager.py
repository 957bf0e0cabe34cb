"""`compare_with_eager`: the first launch whose output departs from the exported program in eager mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mcp_server.errors import ProblemError
from mcp_server.instrument.build import instrument
from mcp_server.instrument.types import Options
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.steps.capture import capture
from mcp_server.steps.compiled import compiled_package
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.eager_departure import Judge, Nodes, read_launches, read_outputs
from mcp_server.steps.eager_records import ComparedWithEager, LaunchCompared, OtherConstant, Status
from mcp_server.steps.eager_verdict import Repeats, conclude, find_departure
from mcp_server.steps.failure import read_failure
from mcp_server.steps.first_bad import Model
from mcp_server.steps.leases import gpus_of
from mcp_server.steps.probe_backend import unset_arguments
from mcp_server.steps.replay_plan import called_package, how_made, plan_replay
from mcp_server.steps.reports import Event

SHOWN = 24
_LAUNCHES = TypeAdapter(list[LaunchCompared])
_ORDER: tuple[Status, ...] = ("departs", "partial", "unmatched", "matches")


@dataclass(frozen=True)
class Pair:
    """A package with inputs, and the exported program that it was compiled from.

    `made_by` is how the script makes the program (worker/taken.py), should no file give it back. `updates`:
    captured updates of constants before the call, as steps of the worker's `replay`.
    """

    workload: PackageWorkload
    exported: Path | None
    updates: tuple[Mapping[str, Any], ...] = ()
    made_by: Mapping[str, Any] | None = None


async def compare_with_eager(
    context: Context,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    exported: Path | None = None,
    *,
    tolerance: float = 1.0,
    shown: int = SHOWN,
) -> ComparedWithEager:
    """Run both on the same inputs; hold every launch and every output against the program's own nodes.

    A package needs `exported`, the program that it was compiled from; an exported program is compiled here; a
    script is run once and its suspect call taken, with the updates of constants before it. Without inputs the
    program's example inputs are used. `tolerance` multiplies the tolerance (see `worker/closeness.py`).
    Repeats tell differences between runs from departures, and runs with unset memory filled tell reads of
    it. A run that fails is a result. Raises ProblemError for a missing program, and for a script that makes
    no call of a package that it compiled.
    """
    if not 0 < tolerance <= 1000:
        raise ProblemError("tolerance is out of range", value=tolerance, allowed="above 0, up to 1000")
    return await compare_pair(context, await _pair(context, workload, exported), tolerance, shown)


async def compare_pair(
    context: Context, pair: Pair, tolerance: float = 1.0, shown: int = SHOWN
) -> ComparedWithEager:
    """The comparison of a package whose program is at hand."""
    package = open_package(pair.workload.package, pair.workload.model_name)
    model = Model(package, read_wrapper(package.wrapper_text, package.kernel_text))
    nodes = Nodes(model)
    done, notes = await _beside(context, pair, model, nodes, tolerance)
    return _result(context, done, model, nodes, notes, shown)


async def _pair(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload, exported: Path | None
) -> Pair:
    if isinstance(workload, ScriptWorkload):
        return await _captured(context, workload)
    if isinstance(workload, ExportedWorkload):
        return Pair(await compiled_package(context, workload, {}), workload.exported)
    if exported is None:
        raise ProblemError(
            "comparing a package needs the exported program that it was compiled from",
            allowed="exported=a .pt2 of torch.export.save, or script=the program that compiles and calls it",
        )
    return Pair(workload, exported)


async def _captured(context: Context, workload: ScriptWorkload) -> Pair:
    """The suspect call of a script with its program, as the capture kept them."""
    seen = await capture(context, workload, env={"INDUCTOR_PROVENANCE": "1", **workload.env})
    call = seen.suspect
    load = seen.load_of(call) if call is not None else None
    compiled = seen.compile_of(load) if load is not None else None
    made_by = how_made(seen, compiled, workload) if compiled is not None else None
    kept = compiled is not None and (compiled.exported is not None or made_by is not None)
    if call is None or call.file is None or load is None or compiled is None or not kept:
        raise ProblemError(
            "the script makes no call of a package that it compiled itself, or it was not kept",
            value=str(workload.script),
            allowed="package and exported, saved by the script",
        )
    plan = plan_replay(seen, call)
    found = called_package(plan, call.file, workload)
    return Pair(found, compiled.exported, updates_of(plan.request), made_by)


def updates_of(request: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The updates of constants among the steps of a replay."""
    return tuple(step for step in request.get("steps", ()) if step["do"] == "constants")


async def _beside(
    context: Context, pair: Pair, model: Model, nodes: Nodes, tolerance: float
) -> tuple[WorkerRun, list[str]]:
    """The worker's comparison; without probes, of outputs only, when the package cannot be rebuilt."""
    workload = pair.workload
    python = context.python_for(workload)
    request: dict[str, object] = {
        "exported": pair.exported,
        "made_by": pair.made_by,
        "inputs": workload.inputs,
        "package": workload.package,
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "extra_imports": workload.extra_imports,
        "factor": tolerance,
        "steps": pair.updates,
        "constants": {constant.name: constant.fqn for constant in model.package.constants if constant.fqn},
    }
    env, notes = dict(workload.env), list[str]()
    try:
        rebuilt = await instrument(workload.package, Options(), context, python=python, env=workload.env)
        request.update(package=rebuilt.package, nodes=nodes.of, unset=_fillable(model))
        env.update({"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {})
        notes += _without_nodes(nodes)
        notes += [f"launch {s.launch} ({s.kernel}) has no probes: {s.reason}" for s in rebuilt.skipped]
    except ProblemError as problem:
        request.update(probes=False)
        notes.append(f"only outputs were compared, the package cannot be rebuilt with probes: {problem}")
    done = await context.worker(
        "beside",
        request,
        env=env,
        python=python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
        gpus=gpus_of(model.package.device_type, workload.device_index),
    )
    context.cost.runs += len(done.all("calling")) if not done.finished.reused else 0
    return done, notes


def _fillable(model: Model) -> dict[int, list[str]]:
    """Unset memory by launch, outside of branches and loops: in them a name may stand for other memory."""
    straight = {launch.index for launch in model.wrapper.launches if not launch.context}
    return {launch: names for launch, names in unset_arguments(model).items() if launch in straight}


def _without_nodes(nodes: Nodes) -> list[str]:
    if nodes.of:
        return []
    return [
        "the package does not say which nodes its launches come from (compile with INDUCTOR_PROVENANCE=1, "
        "torch >= 2.9): a launch is matched by its values alone, and none can be said to depart"
    ]


def _result(
    context: Context, done: WorkerRun, model: Model, nodes: Nodes, notes: list[str], shown: int
) -> ComparedWithEager:
    outputs = read_outputs(done.all("output"))
    repeats = Repeats(done)
    judge = Judge(read_launches(done.all("beside"), nodes), model, nodes)
    first = find_departure(judge, outputs, repeats)
    launches = judge.settled(departed=first is not None)
    ranked = sorted(launches, key=lambda row: _ORDER.index(row.status))
    outcome, summary = conclude(done, outputs, first, repeats)
    return ComparedWithEager(
        outcome=outcome,
        summary=summary,
        first=first,
        outputs=outputs,
        deterministic=repeats.same("first", "second"),
        varies_from=repeats.change("first", "second"),
        reads_unset=repeats.reads_unset,
        unset_from=repeats.unset_from,
        counts=dict(Counter(row.status for row in launches)),
        launches=ranked[:shown],
        left_out=max(0, len(launches) - shown),
        other_constants=[OtherConstant.model_validate(_fields(e)) for e in done.all("constant_differs")],
        notes=[*notes, *_told(done)],
        failure=read_failure(done.finished),
        json_file=_write(context, done.directory / "launches.json", launches),
        log=context.artifact(done.finished.output, "output of the runs"),
        cost=context.cost.cost(),
    )


def _fields(event: Event) -> dict[str, Any]:
    return {name: event[name] for name in OtherConstant.model_fields}


def _told(done: WorkerRun) -> list[str]:
    """What the worker could not do."""
    notes = [
        f"the exported program's own guard refuses these inputs: {e['text']}"
        for e in done.all("guard_failed")[:1]
    ]
    updates = len(done.all("updating_constants")) // max(1, len(done.all("loaded")))
    notes += [f"{updates} captured updates of constants were applied to both sides"] if updates else []
    notes += [f"eager keeps its own {e['name']}: {e['what']}" for e in done.all("not_applied")[:20]]
    notes += [f"no float64 reference: {event['text']}" for event in done.all("no_float64")]
    left = sum(event["left_out"] for event in done.all("running_float64"))
    notes += [f"{left} eager values were not kept: too large"] if left else []
    return notes + [f"the observer failed: {e['text'].splitlines()[-1]}" for e in done.all("observer_failed")]


def _write(context: Context, path: Path, launches: list[LaunchCompared]) -> Any:
    path.write_bytes(_LAUNCHES.dump_json(launches, indent=1))
    return context.artifact(path, "every tensor that was compared")
