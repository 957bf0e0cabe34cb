"""`--symptom slow` and `slow-load`: where the time goes, and which change wins it back, timed in pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from mcp_server.cost.forwarders import build_forwarders
from mcp_server.diagnosis.observe.program import suspect_call
from mcp_server.errors import ProblemError
from mcp_server.model import (
    Component,
    Confirmed,
    Cost,
    Evidence,
    Fix,
    FixRun,
    PackageWorkload,
    ScriptWorkload,
    Verdict,
)
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView, view_package
from mcp_server.plurals import counted
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import capture
from mcp_server.tools.requests import run_request
from mcp_server.worker.events import LaunchTime, LoadedIn, PairsTimed

LEAST_WIN = 1.15  # of the lower quartile of the paired ratios
MOST_SHOWN = 5
LARGE = 4096  # elements: less is no work worth keeping
LOADS = 3  # pairs
ISA_OK = "TORCHINDUCTOR_VEC_ISA_OK"


@dataclass(frozen=True)
class Lever:
    """A change that may win time: what to write, and what it costs."""

    fix: str
    code: str
    note: str = ""


LEVERS = {
    "one thread": Lever(
        "run this model with one thread: its kernels are too small for more", "torch.set_num_threads(1)"
    ),
    "flushed denormals": Lever(
        "flush denormal numbers to zero, or scale the inputs that are below 1e-38",
        "torch.set_flush_denormal(True)",
        "numbers below 1.2e-38 become 0",
    ),
    "folded constants": Lever(
        "compile with folding of constants: a launch computes from weights alone in every call",
        'inductor_configs={"aot_inductor.use_runtime_constant_folding": True}',
    ),
}


async def diagnose_cost(
    context: Context, workload: PackageWorkload, program: Path | None, *, of_load: bool, budget_s: float
) -> Verdict:
    """A verdict of the category `cost`, or `no_fault` with the numbers. Raises `ProblemError`."""
    if of_load:
        return await _of_load(context, workload)
    if workload.inputs is None:
        raise ProblemError("timing a call needs inputs", allowed="inputs=FILE of torch.save, or specs")
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    repeated = work_on_constants(view)
    other = await _folded(context, workload, program) if program is not None and repeated else None
    library = await build_forwarders(context, view)
    request = {**run_request(workload), "seconds": min(budget_s / 8, 12.0)}
    if library is not None:
        request["forwarders"] = str(library)
    if other is not None:
        request["other"] = str(other)
    env = {"LD_PRELOAD": str(library)} if library is not None else {}
    run = await context.worker("time_call", request, env=env, workload=workload, alone=True)
    timed, launches = run.all(PairsTimed), run.all(LaunchTime)
    if not timed:
        raise ProblemError(f"the call could not be timed: {run.finished.note or run.phase!r}")
    return _verdict(context, view, timed, launches, repeated, program is not None)


def work_on_constants(view: PackageView) -> list[Launch]:
    """Launches that compute from weights alone, in every call: they depend on no input."""
    large = {each.name for each in view.package.constants if math.prod(each.shape) > LARGE}
    return [
        launch
        for launch in view.wrapper.launches
        if large.intersection(launch.reads) and not view.flow.backward_from(launch.index).inputs
    ]


async def _folded(context: Context, workload: PackageWorkload, program: Path) -> Path | None:
    """The program compiled again with constant folding; None where it does not compile."""
    out = context.fresh("other") / "folded.pt2"
    configs = {"aot_inductor.use_runtime_constant_folding": True}
    request = {"exported": str(program), "package_path": str(out), "inductor_configs": configs}
    try:
        await context.worker("compile", request, workload=workload)
    except ProblemError:
        return None
    return out if out.exists() else None


async def package_of(context: Context, workload: ScriptWorkload) -> tuple[PackageWorkload, Path | None]:
    """The package that a script calls last, with its inputs and its program. Raises `ProblemError`."""
    seen = await capture(context, workload)
    call = suspect_call(seen)
    if call is None or call.inputs is None:
        raise ProblemError(
            "the script calls no package", value=str(workload.script), allowed="package and inputs"
        )
    around = workload.model_dump(include={"cwd", "env", "python", "timeout_s"})
    programs = [each.exported for each in seen.compiles if each.exported]
    package = PackageWorkload(package=call.package, inputs=call.inputs, **around)
    return package, programs[-1] if programs else None


def _verdict(
    context: Context,
    view: PackageView,
    timed: list[PairsTimed],
    launches: list[LaunchTime],
    repeated: list[Launch],
    may_build: bool,
) -> Verdict:
    launches.sort(key=lambda each: -each.seconds)
    evidence = [_seen(each) for each in timed] + [_of_launch(each) for each in launches[:MOST_SHOWN]]
    cost = context.cost.cost()
    plain = f"A call takes {told(timed[0].plain)}"
    winning = [each for each in timed if each.name in LEVERS and each.low >= LEAST_WIN and each.same]
    wrong = [each for each in timed if each.low >= LEAST_WIN and not each.same]
    remarks = [
        f"{each.name}: {each.ratio:.2f} times as fast, but other outputs; not a fix." for each in wrong
    ]
    if winning:
        best = max(winning, key=lambda each: each.ratio)
        return _fault(best, plain, evidence, remarks, repeated, view, cost)
    if repeated and not may_build:
        first = repeated[0]
        return Verdict(
            outcome="fault",
            category="cost",
            confidence="likely",
            headline="work on constants in every call",
            summary=f"{plain}. Launch {first.index} computes from weights alone, in every call.",
            guilty=_party(first, view),
            evidence=evidence,
            fix=Fix(text=LEVERS["folded constants"].fix, after=LEVERS["folded constants"].code),
            remarks=["Not proven: give the exported program (--exported), which is compiled again."],
            cost=cost,
        )
    tried = ", ".join(f"{each.name} {each.ratio:.2f}" for each in timed)
    top = f"; most of it in {launches[0].name} ({told(launches[0].seconds)})" if launches else ""
    return Verdict(
        outcome="no_fault",
        confidence="possible",
        summary=f"{plain}{top}. No change won time (ratio of paired medians: {tried}).",
        evidence=evidence,
        remarks=remarks,
        cost=cost,
    )


def _fault(
    best: PairsTimed,
    plain: str,
    evidence: list[Evidence],
    remarks: list[str],
    repeated: list[Launch],
    view: PackageView,
    cost: Cost,
) -> Verdict:
    lever = LEVERS[best.name]
    spread = (
        f"{best.ratio:.2f} times as fast (quartiles {best.low:.2f} to {best.high:.2f}, {best.pairs} pairs)"
    )
    of_launch = best.name == "folded constants" and repeated
    party = _party(repeated[0], view) if of_launch else Component(kind="environment", name=best.name)
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="proven",
        headline=f"the call is slow without {best.name}"
        if not of_launch
        else "work on constants in every call",
        summary=f"{plain}. With {best.name} it takes {told(best.changed)}: {spread}.",
        guilty=party,
        evidence=evidence,
        fix=Fix(text=lever.fix, after=lever.code, ran=FixRun(result=f"the call is {spread}", command="")),
        confirmed=Confirmed(
            what=f"with {best.name}",
            before=f"took {told(best.plain)}",
            after=f"took {told(best.changed)} and gave the same outputs",
            again=f"took {told(best.plain)}",
            side_effects=lever.note,
        ),
        remarks=remarks,
        cost=cost,
    )


def _party(launch: Launch, view: PackageView) -> Component:
    return Component(
        kind="kernel",
        name=launch.kernel,
        launch_index=launch.index,
        model_locations=view.locations(launch.index),
    )


def told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _seen(each: PairsTimed) -> Evidence:
    same = "the same outputs" if each.same else "other outputs"
    text = f"{each.name}: {told(each.plain)} and {told(each.changed)}, ratio {each.ratio:.2f}"
    return Evidence(step="time_call", fact=f"{text} [{each.low:.2f} {each.high:.2f}], {same}")


def _of_launch(each: LaunchTime) -> Evidence:
    share = each.seconds / each.whole if each.whole else 0.0
    times = counted(round(each.calls), "call")
    return Evidence(step="time_call", fact=f"{each.name}: {told(each.seconds)} ({share:.0%}), {times}")


async def _of_load(context: Context, workload: PackageWorkload) -> Verdict:
    """The load as it is and with the test of the processor's instructions left out, in turns."""
    plain: list[float] = []
    changed: list[float] = []
    request = {"package": str(workload.package), "model_name": workload.model_name}
    for _ in range(LOADS):
        for found, value in ((plain, ""), (changed, "1")):
            env, unset = ({ISA_OK: value}, ()) if value else ({}, (ISA_OK,))
            run = await context.worker("time_load", request, env=env, unset=unset, workload=workload)
            event = run.last(LoadedIn)
            if event is None:
                raise ProblemError(f"the package could not be loaded: {run.finished.note or run.phase!r}")
            found.append(event.seconds)
    ratios = sorted(a / b for a, b in zip(plain, changed, strict=True))
    usual, quick = (told(sorted(each)[LOADS // 2]) for each in (plain, changed))
    middle = f"The load takes {usual}, {quick} with {ISA_OK}=1"
    if ratios[0] < LEAST_WIN:
        return Verdict(
            outcome="no_fault",
            confidence="possible",
            summary=f"{middle}: no change won time.",
            cost=context.cost.cost(),
        )
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="proven",
        headline="the load compiles a test of the processor",
        summary=f"{middle}: torch compiles a test of the vector instructions when it loads a package.",
        guilty=Component(kind="environment", name=ISA_OK),
        fix=Fix(
            text="set the variable on machines like the one that the package was built for",
            after=f"{ISA_OK}=1",
            ran=FixRun(result=f"the load is {ratios[LOADS // 2]:.1f} times as fast", command=""),
        ),
        confirmed=Confirmed(
            what=f"with {ISA_OK}=1",
            before=f"took {told(plain[0])}",
            after=f"took {told(changed[0])}",
            again=f"took {told(plain[1])}",
            side_effects="the instructions are no longer tested, so a package for other ones is loaded, too",
        ),
        cost=context.cost.cost(),
    )
