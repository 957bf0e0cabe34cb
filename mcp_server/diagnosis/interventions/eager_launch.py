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

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options, Trial
from mcp_server.diagnosis.interventions.plan import TriedCall
from mcp_server.diagnosis.interventions.run import try_intervention
from mcp_server.tools.context import Context
from mcp_server.tools.divergence import EveryLaunch, WrongLaunch
from mcp_server.worker.protocol import EagerLaunches

MOST_TRIED = 3  # wrong launches


def in_eager(
    launch: WrongLaunch, others: Sequence[WrongLaunch] = (), plan: Path | None = None
) -> Intervention:
    """The launch done in eager mode, on what it reads itself, in a call with the others done so anyway."""
    numbers = sorted(each.launch for each in (launch, *others))
    also = f" (launch {', '.join(str(each.launch) for each in others)} is so in all calls)" if others else ""
    asked = EagerLaunches(plan=str(plan), launches=numbers) if plan is not None else None
    return Intervention(
        key=eager_key(launch.launch),
        kind=Kind.KERNEL,
        what=f"the call with launch {launch.launch} ({launch.kernel}) done in eager mode{also}",
        options=Options(eager=asked),
    )


def eager_key(launch: int) -> str:
    return f"launch:{launch}:eager"


async def try_in_eager(context: Context, call: TriedCall, found: EveryLaunch) -> dict[str, Trial]:
    """The trials of the wrong launches, by key. Launches that may only be fed wrong are not tried.

    A launch without which the others make the call fail no more is left out of what is done for the others.
    """
    assert found.plan is not None, "only launches of a call that came back are wrong"
    plan = found.plan.path
    package = json.loads(plan.read_text())["package"]
    open_ones = [each for each in found.wrong if not (each.suspects or each.constant or each.tf32)][
        :MOST_TRIED
    ]
    trials: dict[str, Trial] = {}
    for each in tuple(open_ones):
        others = [other for other in open_ones if other is not each]
        without = EagerLaunches(plan=str(plan), launches=[other.launch for other in others])
        request = {**call.request, "package": package, "eager": without}
        tried = await try_intervention(context, replace(call, request=request), in_eager(each, others, plan))
        trials[tried.intervention.key] = tried
        if tried.effect is Effect.NOT_APPLICABLE:
            open_ones.remove(each)
    return trials
