"""The intervention "eager in place of launch N", on every launch that was found wrong on right inputs.

The call is made on the package with probes: without the launch done in eager mode, with it, and without.
Where several launches are wrong, the others are done in eager mode in all three calls: a call that fails for
two reasons fails without either of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio.to_thread

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options, Trial
from mcp_server.diagnosis.interventions.run import TriedCall, try_intervention
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.package.view import view_package
from mcp_server.tools.compare_with_eager import Pair, compare_pair
from mcp_server.tools.context import Context
from mcp_server.tools.divergence import EveryLaunch
from mcp_server.worker.protocol import EagerLaunches

MOST_TRIED = 3  # wrong launches


def in_eager(launch: int, kernel: str, others: Sequence[int] = (), plan: Path | None = None) -> Intervention:
    """The launch done in eager mode, on what it reads itself, in a call with the others done so anyway."""
    also = f" (launch {', '.join(map(str, others))} is so in all calls)" if others else ""
    asked = EagerLaunches(plan=str(plan), launches=sorted((launch, *others))) if plan is not None else None
    return Intervention(
        key=eager_key(launch),
        kind=Kind.KERNEL,
        what=f"the call with launch {launch} ({kernel}) done in eager mode{also}",
        options=Options(eager=asked),
    )


def eager_key(launch: int) -> str:
    return f"launch:{launch}:eager"


def on_probes(call: TriedCall, plan: Path, launches: Sequence[int] = ()) -> TriedCall:
    """The call of the package with probes, with these launches in eager mode."""
    package = json.loads(plan.read_text())["package"]
    asked = EagerLaunches(plan=str(plan), launches=list(launches))
    return replace(call, request={**call.request, "package": package, "eager": asked})


async def try_in_eager(
    context: Context, call: TriedCall, found: EveryLaunch, exported: Path | None = None
) -> dict[str, Trial]:
    """The trials of the wrong launches, by key. Launches that may only be fed wrong are not tried.

    A launch without which the others make the call fail no more is left out of what is done for the others.
    `exported` is the program for the command that tries one again.
    """
    assert found.plan is not None, "only launches of a call that came back are wrong"
    plan = found.plan.path
    doubtless = [each for each in found.wrong if not (each.suspects or each.constant or each.tf32)]
    kernels = {each.launch: each.kernel for each in doubtless[:MOST_TRIED]}
    trials: dict[str, Trial] = {}
    open_ones = list(kernels)
    for launch in kernels:
        others = [other for other in open_ones if other != launch]
        made = in_eager(launch, kernels[launch], others, plan)
        if exported is not None and not others:
            made = replace(made, spelling=_spelled(launch, exported))
        tried = await try_intervention(context, on_probes(call, plan, others), made)
        trials[made.key] = tried
        if tried.effect is Effect.NOT_APPLICABLE:
            open_ones.remove(launch)
    return trials


async def launch_in_eager(
    context: Context, call: TriedCall, workload: PackageWorkload, exported: Path, launch: int
) -> tuple[TriedCall, Intervention]:
    """One launch done in eager mode, and the call to try that on: what eager mode returns is expected of it.

    Raises `ProblemError` for an unknown launch, and for one of which the program has no value.
    """
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    known = model.launch(launch)
    if known is None:
        allowed = f"0 to {len(model.wrapper.launches) - 1}"
        raise ProblemError("no such launch", value=launch, allowed=allowed)
    found = (await compare_pair(context, Pair(workload, exported), every=True)).every_launch
    if found is None or found.plan is None or found.eager_outputs is None:
        raise ProblemError(found.summary if found is not None else "no launch was judged", value=launch)
    why = next((each.why for each in found.unjudged if each.launch == launch), "")
    if why:
        raise ProblemError(f"the launch cannot be done in eager mode: {why}", value=launch)
    if not call.symptom.judges:
        call = replace(call, symptom=replace(call.symptom, expect=found.eager_outputs.path))
    made = replace(in_eager(launch, known.kernel, plan=found.plan.path), spelling=_spelled(launch, exported))
    return on_probes(call, found.plan.path), made


def _spelled(launch: int, exported: Path) -> tuple[str, ...]:
    """The arguments of `try-fix`."""
    return ("--launch", str(launch), "--as", "eager", "--exported", str(exported))
