"""A call that does not come back because a loop of its own, `while_loop`, never ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hanging import call_hangs
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix

TURNS = 4  # of the last launches of the journal, all of which end: no single kernel hangs


def looping(case: Case) -> list[int]:
    """The launches that took turns when the time ran out, in the order of the code; empty for no loop."""
    trace = case.trace
    if trace is None or case.view is None or not call_hangs(case):
        return []
    known = case.view.wrapper.launches
    inside = [row for row in trace.launches if row.launch < len(known) and known[row.launch].context]
    turns = Counter(row.launch for row in inside)
    last = turns[trace.launches[-1].launch] if trace.launches else 0
    return sorted(turns) if last >= TURNS else []


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, with the launch that stands first in the loop: it computes whether to go on."""
    numbers = looping(case)
    if not numbers:
        return
    assert case.trace is not None and case.view is not None
    launch = case.view.wrapper.launches[numbers[0]]
    behind = case.view.inputs_behind(launch.index)
    given = f"; its condition depends on {', '.join(behind[:3])}" if behind else ""
    fact = f"{case.trace.total} launches, the last of them in turns: {', '.join(map(str, numbers[:6]))}"
    party = launch_party(launch.index, launch.kernel, case)
    yield Suspect(
        category="hang",
        guilty=party,
        summary=f"The loop that begins with launch {launch.index} ({launch.kernel}) does not end: "
        f"{case.trace.total} launches had come back when the time ran out{given}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="trace_launches", fact=fact),),
        crashing=party,
        fix=Fix(action="bound the number of turns in the loop's condition, or check what it waits for"),
    )
