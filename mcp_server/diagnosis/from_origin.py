"""Suspects with what is known of the origin: the launch that computed, elements, expression, the change."""

from __future__ import annotations

from dataclasses import replace

from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.origin.records import OffendingElement, Origin
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Component, Evidence, Fix

MOST_ELEMENTS = 4
MOST_DORMANT = 4


def with_origin(suspect: Suspect, case: DiagnosisState, fault_launch: int | None) -> Suspect:
    """`suspect` with the origin of the bad value that launch `fault_launch` showed; as it is without one."""
    origin = case.origin
    if (
        origin is None
        or fault_launch is None
        or fault_launch not in (origin.fault_launch, origin.launch_index)
    ):
        return suspect
    change = _change(case)
    return replace(
        suspect,
        guilty=_guilty(suspect.guilty, origin, case),
        summary=" ".join((suspect.summary, *_sentences(origin))),
        evidence=(*suspect.evidence, *_evidence(origin, case)),
        fix=_fix(origin, case) or suspect.fix,
        intervention=change or suspect.intervention,
    )


def _change(case: DiagnosisState) -> Intervention | None:
    """The change of what is at the origin, which can only confirm: one that misses clears nobody."""
    change = case.origin_change
    trial = case.trials.get(change.key) if change is not None else None
    return change if trial is None or trial.proves else None


def _guilty(party: Component, origin: Origin, case: DiagnosisState) -> Component:
    """The launch that computed the value; the input where it is as it was given."""
    inputs = _inputs(origin)
    if origin.launch_index is None:
        party = _input_party(party, inputs[0], case) if inputs else party
    elif party.kind == "input" and inputs and all(each.input_index != party.input_index for each in inputs):
        party = _input_party(party, inputs[0], case)
    elif party.kind not in ("input", "constant") and party.launch_index != origin.launch_index:
        made = launch_component(origin.launch_index, origin.kernel, case)
        lines = made.model_locations or party.model_locations
        party = made.model_copy(update={"value": party.value, "model_locations": lines})
    value = f"{origin.bad_value} (allowed: {origin.allowed})" if origin.allowed else origin.bad_value
    return party.model_copy(
        update={
            "elements": [each.text() for each in inputs[:MOST_ELEMENTS]],
            "expression": origin.expression,
            "value": party.value or value or None,
        }
    )


def _inputs(origin: Origin) -> list[OffendingElement]:
    """The offending elements of inputs, those that the condition is about first."""
    found = [each for each in origin.elements if each.kind == "input" and each.input_index is not None]
    label = origin.condition.label if origin.condition is not None else ""
    return sorted(found, key=lambda each: each.label != label)


def _input_party(party: Component, element: OffendingElement, case: DiagnosisState) -> Component:
    place = element.input_index
    assert place is not None, "only elements with a place are asked for"
    inputs = case.package.inputs if case.package is not None else ()
    item = inputs[place] if place < len(inputs) else None
    name = (item.path or item.name) if item is not None else element.label
    return party.model_copy(
        update={"kind": "input", "name": name, "input_index": place, "launch_index": None, "value": None}
    )


def _sentences(origin: Origin) -> list[str]:
    """Where it was computed and how it differs from other layers, a sentence each."""
    found = [_computed(origin)]
    if origin.explanation:
        found.append(f"There {origin.explanation}.")
    if origin.condition is not None:
        found.append(f"For {origin.condition.label or origin.condition.variable}: {origin.condition.text}.")
    if any(part.isdigit() for part in origin.layer.split(".")):
        found.append(f"It is in layer {origin.layer}.")
    if origin.sibling_difference is not None:
        found.append(f"It has {origin.sibling_difference.text}.")
    return found


def _computed(origin: Origin) -> str:
    value = f" = {origin.bad_value}" if origin.bad_value and origin.bad_value != origin.expression else ""
    allowed = f", allowed are {origin.allowed}" if origin.allowed else ""
    told = f"{origin.result} = {origin.expression}{value}{allowed}{_from(origin)}"
    if origin.launch_index is None:
        return f"The value is as it was given: {told}."
    carried = f", carried by launch {', '.join(map(str, origin.carriers[:4]))}" if origin.carriers else ""
    return f"Launch {origin.launch_index} computes {told}{carried}."


def _from(origin: Origin) -> str:
    inputs = _inputs(origin)
    if not inputs:
        return ""
    more = origin.element_count - min(len(inputs), MOST_ELEMENTS)
    shown = ", ".join(each.text() for each in inputs[:MOST_ELEMENTS])
    return f", from {shown}{f' and {more} more elements' if more > 0 else ''}"


def _evidence(origin: Origin, case: DiagnosisState) -> list[Evidence]:
    """What was seen at the origin, where the same fault lies dormant, and a change that did not help."""
    named = "; ".join(
        f"{each.name} is {each.label}{f', {each.made_by}' if each.made_by else ''}"
        for each in origin.operands
        if each.name != each.label
    )
    where = f" (layer {origin.layer})" if origin.layer else ""
    at = origin.launch_index if origin.launch_index is not None else origin.fault_launch
    seen = f"launch {at}{where}: {origin.result} is {origin.bad_value or 'not seen'}"
    found = [Evidence(step="dump_kernel_io", fact=f"{seen}{f'; {named}' if named else ''}")]
    if origin.dormant:
        found.append(Evidence(step="inspect_package", fact=_dormant(origin)))
    change = case.origin_change
    trial = case.trials.get(change.key) if change is not None else None
    if trial is not None and not trial.proves:
        why = trial.reason or trial.after.describe()
        found.append(Evidence(step="intervention", fact=f"{trial.intervention.what}: {why}"))
    return found


def _dormant(origin: Origin) -> str:
    """Launches with the same check, by what they pass."""
    grouped: dict[str, list[str]] = {}
    for each in origin.dormant:
        grouped.setdefault(each.passes, []).append(each.layer or f"launch {each.launch_index}")
    parts = [f"{', '.join(names[:6])}: {passes}" for passes, names in list(grouped.items())[:MOST_DORMANT]]
    return f"the same check lies dormant in {'; '.join(parts)}"


def _fix(origin: Origin, case: DiagnosisState) -> Fix | None:
    """The change of the elements in words; the code is that of the change that ran."""
    change = case.origin_change
    if change is None or not change.changes:
        return None
    before, after = change.before_code, change.after_code
    condition = origin.condition
    if condition is not None and condition.good is not None:
        action = f"keep {condition.label} where the expression is good ({condition.text})"
    else:
        action = (
            "leave one element of each row of the mask open, or give rows that are masked as a whole another "
            "value than softmax of nothing"
        )
    return Fix(action=action, before=before, after=after)
