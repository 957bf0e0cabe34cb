"""Whole numbers that do not fit the dtype which the model has for them, in eager mode as in the package."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.causes.common import agreement, check_failed, component, lines_of, seen
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, SideEffects, Trial
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Fix
from mcp_server.plurals import counted
from mcp_server.tools.context import Event
from mcp_server.worker.protocol import CallFacts

KEY = "exact integers"


def detect_overflow(case: DiagnosisState) -> Iterator[Suspect]:
    """The first operator whose integers do not fit, where what the user expects failed and all else agrees.

    A healthy program may mean it so: hashes and checksums are computed modulo the range of their dtype.
    """
    events = case.eager_events("node_overflow")
    if not events or not case.equals_eager or not _fails(case):
        return
    event = next((each for each in events if not each["modular"]), events[0])
    trial = case.trials.get(KEY)
    op, dtype = str(event["op"]), str(event["dtype"])
    place = f"element {event['index']} is {event['value']}, and the exact value is {event['exact']}"
    fact = f"{event['node']} ({op}) computes in {dtype}: {place}"
    several = f"; {counted(event['count'], 'element')} of it do not fit" if event["count"] > 1 else ""
    yield Suspect(
        category="wrong_output",
        guilty=component("op", op, lines_of(event), value=f"{event['value']} in place of {event['exact']}"),
        summary=f"{op} computes in {dtype}, which its result does not fit: {place}. It does the same in "
        "eager mode.",
        level=CausalLevel.BAD_VALUE,
        evidence=(seen("interpret", fact + several), *agreement(case)),
        fix=Fix(action=f"convert what {op} computes with to a wider dtype before it, with .long() say"),
        intervention=trial.intervention if trial is not None else None,
        harmful=case.failed,
        observed=not event["modular"],
    )


def detect_rounded(case: DiagnosisState) -> Iterator[Suspect]:
    """Whole numbers in half precision: no more than possible, since what was meant is not known."""
    events = case.eager_events("constant_rounded")
    if not events or not case.equals_eager or not _fails(case):
        return
    name, dtype, bound = str(events[0]["op"]), str(events[0]["dtype"]), events[0]["bound"]
    value = f"{dtype}, up to {events[0]['largest']}"
    fact = f"{name} has whole numbers alone ({value})"
    yield Suspect(
        category="constants",
        guilty=component("constant", name, case.call_locations, value=value),
        summary=f"Constant {name} has whole numbers alone ({value}), and {dtype} has a value for each "
        f"up to {bound} only: if they are codes or positions, a cast of the whole model has rounded them.",
        level=CausalLevel.FAULT_SITE,
        evidence=(seen("interpret", fact), *agreement(case)),
        fix=Fix(action=f"keep {name} as an integer buffer, which a cast of the model leaves as it is"),
        harmful=case.failed,
        observed=False,
    )


def _fails(case: DiagnosisState) -> bool:
    """Whether a check of the program's, or the user's expectation, failed."""
    return case.failure_of("plain") == "differs" or check_failed(case)


def exact_trial(case: DiagnosisState) -> Trial | None:
    """The program with its overflowing operators in int64, compared with what is expected of the call.

    None where nothing is expected, and where the program as it is gives that.
    """
    compared: Event | None = case.interpreted.last("compared_exact") if case.interpreted is not None else None
    before, exact, again = compared["equal"] if compared is not None else (True, True, True)
    if before or again:
        return None
    wrong = Seen("ok", differs="other values than expected")
    operators = ", ".join(dict.fromkeys(str(each["op"]) for each in case.eager_events("node_overflow")))
    return Trial(
        Intervention(KEY, Kind.OPERATOR, f"the call in eager mode with {operators} in int64"),
        Effect.GONE if exact else Effect.SAME,
        wrong,
        Seen("ok", facts=CallFacts("exact", "", "ok")) if exact else wrong,
        wrong,
        side_effects=SideEffects(known=False),
    )
