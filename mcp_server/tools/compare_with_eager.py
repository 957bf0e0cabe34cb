"""`compare_with_eager`: compares a package with its exported program, and finds the wrong launches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError, argument
from mcp_server.model import Artifact, Cost, ExportedWorkload, PackageWorkload, Record, ScriptWorkload
from mcp_server.package.view import view_package
from mcp_server.plurals import quoted
from mcp_server.probes.build import with_probes
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import Failure, read_failure
from mcp_server.tools.capture import capture
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.every_launch import EveryLaunch, LaunchFlows, every_launch
from mcp_server.tools.kernel_io import unset_arguments
from mcp_server.tools.requests import called_package, how_made, package_request, plan_replay
from mcp_server.worker import events
from mcp_server.worker.events import ConstantDiffers, OutputCompared
from mcp_server.worker.protocol import MadeBy, ReplayRequest, Step

Outcome = Literal["agrees", "differs", "inconclusive"]
Kind = Literal["error", "tf32", "nondeterministic", "uninitialised"]


class Changed(Record):
    """The first tensor that differs between two runs of the same call."""

    launch: int
    kernel: str
    argument: str


class ComparedWithEager(Record):
    """The result of the comparison.

    `kind`: why outputs differ from eager's, if known. None if they agree or were not compared. `every_launch`
    judges each launch on correct inputs. `deterministic`: whether two runs gave the same outputs;
    `varies_from`: where they first differ. `reads_unset`: whether outputs change, or become steady, when
    memory that nothing wrote is filled with NaN; `unset_from`: where this shows. `other_constants` differ
    from the program's: the package then belongs to another program.
    """

    outcome: Outcome
    summary: str
    kind: Kind | None = None
    outputs: list[OutputCompared] = Field(default_factory=list)
    every_launch: EveryLaunch
    deterministic: bool | None = None
    varies_from: Changed | None = None
    reads_unset: bool | None = None
    unset_from: Changed | None = None
    other_constants: list[ConstantDiffers] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    log: Artifact
    cost: Cost


class Repeats:
    """The runs of one call: `first` and `second` unchanged, `filled` with unset memory set to NaN.

    `filled_again` repeats `filled` if the first two differ.
    """

    def __init__(self, done: WorkerRun) -> None:
        self.steady_eager = all(event.same for event in done.all(events.EagerRan)[-1:])
        self.outputs = {event.run: event.checksums for event in done.all(events.Outputs)}
        self.written = done.all(events.Rerun)
        self.anything_filled = bool(done.phases("filled"))

    def same(self, one: str, other: str) -> bool | None:
        """Whether two runs gave the same outputs. None if one did not return."""
        if one not in self.outputs or other not in self.outputs:
            return None
        return self.outputs[one] == self.outputs[other]

    def change(self, one: str, other: str) -> Changed | None:
        """The first tensor whose checksum differs between two runs, if their outputs differ."""
        if self.same(one, other) is not False:
            return None
        known = {(e.sequence, e.name): e.checksum for e in self.written if e.run == one}
        for event in self.written:
            checksum = known.get((event.sequence, event.name), event.checksum)
            if event.run == other and checksum != event.checksum:
                return Changed(launch=event.launch, kernel=event.kernel, argument=event.name)
        return None

    @property
    def reads_unset(self) -> bool | None:
        """Whether filling unset memory changes outputs that were the same, or makes varying outputs the same.

        None without probes, or if outputs also vary for another reason.
        """
        steady = self.same("first", "second")
        if steady is None or not any(event.run == "filled" for event in self.written):
            return None
        if not steady:
            return (self.anything_filled and self.same("filled", "filled_again")) or None
        same = self.same("first", "filled")
        return None if same is None else not same

    @property
    def unset_from(self) -> Changed | None:
        """The first tensor that depends on the content of unset memory."""
        if not self.reads_unset:
            return None
        return self.change("first", "second") or self.change("first", "filled")


@dataclass(frozen=True)
class Pair:
    """A package with inputs, and the exported program that it was compiled from.

    `made_by` makes the program again from the script (worker/loading.py), if no file has it. `updates`:
    captured updates of constants before the call, as steps of the worker's `replay`.
    """

    workload: PackageWorkload
    exported: Path | None
    updates: tuple[Step, ...] = ()
    made_by: MadeBy | None = None


async def compare_with_eager(
    context: Context,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    exported: Path | None = None,
) -> ComparedWithEager:
    """Run package and program on the same inputs. Compare outputs, and judge each launch on correct inputs.

    A package needs `exported`, the program that it was compiled from. An exported program is compiled here. A
    script is run once, and its suspect call is used, with the updates of constants before it. Without inputs,
    the program's example inputs are used. A
    package without provenance does not say which nodes a launch carries out: then only outputs are compared.
    Repeated runs show if outputs vary, and runs with unset memory filled, if it is read. A run that fails is
    a result. Raise ProblemError for a missing program, or a script that calls no package that it compiled.
    """
    if isinstance(workload, ScriptWorkload):
        pair = await _captured(context, workload)
    elif isinstance(workload, ExportedWorkload):
        pair = Pair(await compiled_package(context, workload), workload.exported)
    elif exported is not None:
        pair = Pair(workload, exported)
    else:
        raise ProblemError(
            "comparing a package needs the exported program that it was compiled from",
            allowed=f"{argument('exported')} with a .pt2 of torch.export.save, or a script that compiles it",
        )
    return await compare_pair(context, pair)


async def compare_pair(context: Context, pair: Pair) -> ComparedWithEager:
    """Compare a package with the program that it was compiled from."""
    model = await anyio.to_thread.run_sync(view_package, pair.workload.package, pair.workload.model_name)
    directory, flows = context.fresh("compare_launches"), LaunchFlows(model)
    request, notes, env = await _request(context, pair, flows)
    if request["probes"] and flows.nodes:
        flow = await anyio.to_thread.run_sync(lambda: flows.of)
        request.update(flow=flow, eager_outputs=directory / "eager_outputs.pt")
    done = await context.worker(
        "compare_launches",
        request,
        workload=pair.workload,
        env=env,
        gpus=gpus_of(model.package.device_type, pair.workload.device_index),
        directory=directory,
    )
    context.cost.runs += len(done.phases("calling")) if not done.finished.reused else 0
    outputs = done.all(OutputCompared)
    repeats = Repeats(done)
    other_constants = done.all(events.ConstantDiffers)
    judged = EveryLaunch(summary="No launch was judged alone: eager mode has no values to compare with")
    if repeats.steady_eager:
        judged = every_launch(context, done, flows, other_constants, request)
    kind = _kind(outputs, repeats, judged)
    outcome, summary = _conclude(done, outputs, repeats, kind)
    return ComparedWithEager(
        outcome="differs" if judged.wrong else outcome,
        summary=f"{summary}. {judged.summary}",
        kind=kind,
        outputs=outputs,
        every_launch=judged,
        deterministic=repeats.same("first", "second"),
        varies_from=repeats.change("first", "second"),
        reads_unset=repeats.reads_unset,
        unset_from=repeats.unset_from,
        other_constants=other_constants,
        notes=[*notes, *_limits(done)],
        failure=read_failure(done.finished),
        log=context.artifact(done.finished.output, "output of the runs"),
        cost=context.cost.cost(),
    )


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
            allowed="a package and its exported program, saved by the script",
        )
    replayed = plan_replay(seen, call)
    found = called_package(replayed, call.file, workload)
    return Pair(found, compiled.exported, updates_of(replayed), made_by)


def updates_of(request: ReplayRequest) -> tuple[Step, ...]:
    """The updates of constants among the steps of a replay."""
    return tuple(step for step in request.get("steps", ()) if step["do"] == "constants")


async def _request(
    context: Context, pair: Pair, flows: LaunchFlows
) -> tuple[dict[str, object], list[str], dict[str, str]]:
    """The worker's request, notes and variables. A package that cannot be rebuilt has no probes."""
    workload, model = pair.workload, flows.model
    request: dict[str, object] = {
        **package_request(workload),
        "exported": pair.exported,
        "made_by": pair.made_by,
        "steps": pair.updates,
        "constants": {constant.name: constant.fqn for constant in model.package.constants if constant.fqn},
        "probes": True,
    }
    env: dict[str, str] = {}
    notes: list[str] = []
    try:
        rebuilt = await with_probes(context, workload)
        # In branches and loops a name may refer to other memory, so it is not filled there.
        straight = {launch.index for launch in model.wrapper.launches if not launch.context}
        unset = {launch: names for launch, names in unset_arguments(model).items() if launch in straight}
        request.update(package=rebuilt.package, nodes=flows.nodes, unset=unset)
        env = rebuilt.environment
        notes += [f"launch {s.launch} ({s.kernel}) has no probes: {s.reason}" for s in rebuilt.skipped]
    except ProblemError as problem:
        request.update(probes=False)
        notes.append(
            f"only outputs were compared, because the package cannot be rebuilt with probes: {problem}"
        )
    return request, notes, env


def _limits(done: WorkerRun) -> list[str]:
    """List what the worker could not do."""
    notes = [
        f"the exported program's own guard rejects these inputs: {e.text}"
        for e in done.all(events.GuardFailed)[:1]
    ]
    updates = len(done.phases("updating_constants")) // max(1, len(done.phases("loaded")))
    notes += [f"{updates} captured updates of constants were applied to both sides"] if updates else []
    notes += [f"eager keeps its own {e.name}: {e.what}" for e in done.all(events.NotApplied)[:20]]
    notes += [f"no float64 reference: {phase.about}" for phase in done.phases("no_float64")]
    left = sum(event.left_out for event in done.all(events.EagerRan))
    notes += [f"{left} eager values were not kept: too large"] if left else []
    failed = done.phases("observer_failed")
    return notes + [f"the observer failed: {phase.about.splitlines()[-1]}" for phase in failed]


WHY: dict[Kind, str] = {
    "error": "",
    "tf32": "; as much as TF32 products explain",
    "nondeterministic": "; runs of this call differ from each other",
    "uninitialised": "; it depends on memory that nothing wrote",
}


def _kind(outputs: Sequence[OutputCompared], repeats: Repeats, judged: EveryLaunch) -> Kind | None:
    """Why outputs differ. None if they agree, or if eager mode cannot be the reference."""
    differs = any(one.agreement in ("differs", "layout") for one in outputs)
    if not differs or not repeats.steady_eager:
        return None
    if repeats.reads_unset:
        return "uninitialised"
    if repeats.same("first", "second") is False:
        return "nondeterministic"
    return "tf32" if judged.wrong and all(each.tf32 for each in judged.wrong) else "error"


def _conclude(
    done: WorkerRun, outputs: Sequence[OutputCompared], repeats: Repeats, kind: Kind | None
) -> tuple[Outcome, str]:
    """The outcome, and one sentence for it."""
    names = ", ".join([event.name for event in done.all(events.ConstantDiffers)][:3])
    constants = f"; the package and the program have different values of {names}" if names else ""
    # An update that eager mode rejected, but not the package, which checks neither shape nor dtype.
    lost = next(iter(done.all(events.NotApplied)), None)
    update = f"; only the package got the update of {lost.name}: {lost.what}" if lost else ""
    if kind is not None:
        wrong = next(one for one in outputs if one.agreement in ("differs", "layout"))
        layouts = f": {wrong.layouts[1]}, not {wrong.layouts[0]}" if wrong.layouts else ""
        values = f": {wrong.compared.example}" if wrong.compared.values else layouts
        return "differs", f"output {wrong.index} differs from eager{values}{WHY[kind]}{constants}{update}"
    counted = done.last(events.CountedOutputs)
    if counted is None:
        return "inconclusive", _unfinished(done, update)
    if not repeats.steady_eager:
        return "inconclusive", "eager itself differs from run to run on these inputs"
    if counted.package != counted.eager:
        return "differs", f"the package gives {counted.package} outputs and eager {counted.eager}"
    if repeats.reads_unset:
        return "agrees", "all outputs agree with eager here, but depend on memory that nothing wrote"
    if repeats.same("first", "second") is False:
        return "agrees", "all outputs agree with eager here, but runs of this call differ"
    equal = sum(one.agreement == "equal" for one in outputs)
    rounded = len(outputs) - equal
    how = "bit for bit" if not rounded else "except for rounding"
    if equal and rounded:
        how = f"{equal} bit for bit, {rounded} except for rounding"
    all_of_them = "the output agrees" if len(outputs) == 1 else f"all {len(outputs)} outputs agree"
    agree = f"{all_of_them} with eager {how}"
    # NaN that eager mode also gives comes from the model or its inputs, not from the package.
    nans = [
        f"{found.non_finite} of {found.elements} elements of output {each.index}"
        for each in outputs
        if (found := each.compared).non_finite
    ]
    finite = f"; NaN or infinity in both: {', '.join(nans[:3])}" if nans else ""
    return "agrees", agree + finite + constants


def _unfinished(done: WorkerRun, update: str) -> str:
    """Say whether the package or the program failed, and why."""
    failed = done.last(events.Failed)
    why = quoted(failed.text if failed is not None else "", 200)
    if failed is not None and failed.during == "loading_exported":
        return f"the exported program cannot be loaded: {why} (custom ops: extra_imports)"
    ended = done.finished.signal
    text = f": {why}" if failed else f": {ended}" if ended else ""
    if done.last(events.Outputs) is None and not done.phases("loading"):
        return f"eager itself fails on these inputs{text}"
    return f"the package fails on these inputs{text}{update}"
