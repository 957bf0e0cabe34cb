"""The operator of the exported program that first makes a value that is not finite."""

from __future__ import annotations

import re

from mcp_server.diagnosis.case import Case
from mcp_server.steps.reports import Event

# A logarithm makes minus infinity of a zero; what else makes it alone, fills in a mask.
_LOGARITHM = re.compile(r"\baten\.log(?:2|10|1p|_)?\.")
# Operators that make an infinity of numbers that are not large.
_POLE = re.compile(r"\baten\.(?:log|div|true_div|reciprocal|r?sqrt|pow|float_power|tan|atanh|erfinv)")


def told(case: Case, event: str) -> list[Event]:
    """The events of that name from the interpretation of the exported program."""
    return case.interpreted.all(event) if case.interpreted is not None else []


def first_made(case: Case) -> Event | None:
    """The first operator to make NaN or plus infinity, of finite values or of the minus infinity of a mask.

    A row of which everything is masked is such a case. Where the minus infinity came from a logarithm, that
    made the first. None where an input or a constant brought it.
    """
    masks: dict[str, Event] = {}
    for event in told(case, "node_non_finite"):
        if not set(event["bad_inputs"]) <= masks.keys():
            continue
        if not event["masked"]:
            return next((root for root in _roots(event, masks) if _LOGARITHM.search(str(root["op"]))), event)
        masks[str(event["node"])] = event
    return None


def of_mask(event: Event) -> bool:
    """Whether minus infinity was all that the operator was given beside finite values."""
    return bool(event["bad_inputs"])


def overflows(event: Event) -> bool:
    """Whether the result is too large for half precision: infinite, of an operator that has no pole."""
    infinite = event.get("dtype") == "float16" and not event.get("nan")
    return infinite and not event["bad_inputs"] and _POLE.search(str(event["op"])) is None


def _roots(event: Event, masks: dict[str, Event]) -> list[Event]:
    """The operators that brought the minus infinity from which this one computes."""
    found, left = [], list(event["bad_inputs"])
    for name in left:
        left += [other for other in masks[name]["bad_inputs"] if other not in left]
        found += [] if masks[name]["bad_inputs"] else [masks[name]]
    return found
