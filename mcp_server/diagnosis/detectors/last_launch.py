"""The launch at which a traced call ended: where the fault showed, which need not be where it was made."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.endless_loop import looping
from mcp_server.diagnosis.hanging import call_hangs
from mcp_server.diagnosis.parties import launch_party
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Category, Evidence, Fix
from mcp_server.steps.trace_launches import LaunchRow

ENDED_INSIDE = frozenset({"died", "fault", "threw"})


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the launch that did not come back, or after which the device was in error."""
    trace = case.trace
    if trace is None or trace.last is None or trace.how not in ENDED_INSIDE or looping(case):
        return
    category = _category(case)
    if category is None:
        return
    party = launch_party(trace.last.launch, trace.last.kernel, case)
    yield Suspect(
        category=category,
        guilty=party,
        summary=f"{trace.summary.rstrip('.')}: {_meaning(category)}.",
        level=CausalLevel.STATE if category == "hang" else CausalLevel.FAULT_SITE,
        evidence=(Evidence(step="trace_launches", fact=trace.summary), *_arguments(trace.last)),
        crashing=party,
        fix=_fix(category),
        observed=category == "hang" or trace.how == "fault",
    )


def _category(case: Case) -> Category | None:
    """What a call that ended there failed with; an index assertion has its own detector."""
    if call_hangs(case):
        return "hang"
    plain = case.runs.get("plain")
    if plain is None:
        return None
    root = plain.root
    if root is not None and "illegal_memory_access" not in root.candidates:
        return None
    return "illegal_memory_access"


def _meaning(category: Category) -> str:
    if category == "hang":
        return "that kernel does not end"
    return "that kernel reads or writes memory that is not its own, or was given bad values"


def _arguments(row: LaunchRow) -> tuple[Evidence, ...]:
    shown = "; ".join(row.arguments[:6])
    return (Evidence(step="trace_launches", fact=f"its arguments: {shown}"),) if shown else ()


def _fix(category: Category) -> Fix:
    if category == "hang":
        return Fix(action="give the kernel's loop or barrier an end for this size of input")
    return Fix(action="check the kernel's index arithmetic and masks against the sizes of its arguments")
