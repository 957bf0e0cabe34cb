"""Custom operators that were seen to break what they, or their fake functions, promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.custom_op import launch_of
from mcp_server.diagnosis.interventions.operator import as_promised
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, Party
from mcp_server.steps.reports import Event

REPAIRED = as_promised()
SPOILT = "what lies there is spoilt, and whatever uses it next fails"
COUNTED_ON = "the package counts on what was promised"
SAME = "returns the same values"
_SETTLE = (
    "What the package returns on this call does not depend on it; whether the model in eager mode does, the "
    "program or compare_with_eager tells."
)


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for each operator, of its first call that broke a promise."""
    first: dict[str, Event] = {}
    for event in case.operators.all("operator") if case.operators is not None else ():
        first.setdefault(str(event["op"]), event)
    for op, event in first.items():
        yield _suspect(f"torch.ops.{op}", event, case)


def _suspect(op: str, event: Event, case: Case) -> Suspect:
    broken, fix = _told(op, event)
    launch, lines = launch_of(op, case)
    trial = case.trials.get(REPAIRED.key)
    same = trial is not None and trial.reason == SAME
    overrun = bool(event.get("overrun"))
    without_effect = same and not overrun
    return Suspect(
        category="illegal_memory_access" if overrun else "custom_op",
        guilty=Party(kind="op", name=op, launch_index=launch, model_locations=lines),
        summary=f"{broken}; {SPOILT if overrun else COUNTED_ON}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="watch_operators", fact=f"call {event['call']} of {op}: {broken}"),),
        fix=Fix(action=fix),
        intervention=REPAIRED,
        observed=not without_effect,
        weak=without_effect and not case.failed,
        settle=_SETTLE,
    )


def _told(op: str, event: Event) -> tuple[str, str]:
    """What is broken, and what mends it."""
    if event.get("overrun"):
        return _beyond(op, event["overrun"][0])
    if event["layouts"]:
        pair = event["layouts"][0]
        text = (
            f"The fake function of {op} promises {describe(pair['promised'])}; "
            f"the operator returned {describe(pair['returned'])}"
        )
        return text, kept_promise(op, pair["promised"], pair["returned"])
    if event["mutated"]:
        names = ", ".join(event["mutated"])
        text = f"{op} writes to its argument {names}, which its schema declares as only read"
        return text, f"declare it (mutates_args), or let {op} work on a copy"
    names = ", ".join(event["aliases"])
    text = f"{op} returns memory of its argument {names}, though its schema declares a result of its own"
    return text, f"return a clone from {op}"


def _beyond(op: str, tensor: dict[str, Any]) -> tuple[str, str]:
    """A write beyond a tensor that the operator allocated."""
    side, count = (
        ("past the end", tensor["after"]) if tensor["after"] else ("before the start", tensor["before"])
    )
    kind = f"shape {tensor['shape']}, {tensor['dtype'].removeprefix('torch.')}"
    text = f"{op} writes up to {count} bytes {side} of a tensor that it allocated ({kind})"
    return text, f"keep what {op} calls within the elements of that tensor, or allocate what it needs"


def kept_promise(op: str, promised: dict[str, Any], returned: dict[str, Any]) -> str:
    """What mends a result that differs from its fake in these respects."""
    differing = [what for what in ("shape", "dtype", "device") if promised.get(what) != returned.get(what)]
    what = " and ".join(differing) or "stride"
    return f"make the fake function of {op} return the {what} of the real result, or {op} what that promises"


def describe(layout: dict[str, Any]) -> str:
    return f"shape {layout['shape']}, stride {layout['stride']}, {layout['dtype'].removeprefix('torch.')}"
