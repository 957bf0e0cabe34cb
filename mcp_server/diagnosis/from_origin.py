"""What is known of the origin of a bad value, put into suspects."""

from __future__ import annotations

from dataclasses import replace

from mcp_server.diagnosis.components import launch_component, launch_lines
from mcp_server.diagnosis.interventions.base import Intervention, Trial
from mcp_server.diagnosis.origin import OffendingElement, Origin
from mcp_server.diagnosis.origin.of_model import guarded_lines
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Component, Evidence, Fix
from mcp_server.plurals import counted, listed

MOST_ELEMENTS = 4
LONGEST = 160  # letters of an expression in a summary
LONGEST_EXPLAINED = 60  # where the operation at fault was named before; the root cause has it in full
MOST_DORMANT = 4
ALL_LINES = 100


def with_origin(suspect: Suspect, case: DiagnosisState, fault_launch: int | None) -> Suspect:
    """`suspect` with the origin of the bad value that launch `fault_launch` showed; as it is without one."""
    origin = case.origin
    if origin is None or fault_launch is None:
        return suspect
    if fault_launch not in (origin.fault_launch, origin.launch_index):
        return suspect
    guilty, fix, change = _guilty(suspect.guilty, origin, case), case.origin_fix, _change(case)
    if change is not None and origin.operation is not None and change.before_code == origin.operation.code:
        # The guard in the lines of the model that the kernel computes, if each of them is known and can be
        # guarded: without provenance there may be further ones.
        known = launch_lines(origin.launch_index, case, ALL_LINES)
        codes = [each.code for each in (*known, *guilty.model_locations)] if known else []
        lines = guarded_lines(codes, origin.operation.op)
        if lines is not None:
            change = replace(change, before_code=lines[0], after_code=lines[1])
    if fix is not None and fix.key in {trial.intervention.key for trial in _missed(case)}:
        fix = None
    summary = [suspect.summary, *_sentences(origin)]
    if suspect.category == "nan_or_inf" and origin.explanation and len(origin.expression) <= LONGEST:
        summary = [f"{origin.explanation}.", suspect.summary, *_sentences(origin, explained=True)]
    # The corrected expression is the fix where that is at fault, and the changed elements show the cause.
    changes = [each for each in (fix, change) if each is not None]
    return replace(
        suspect,
        guilty=guilty,
        summary=" ".join(summary),
        evidence=(*suspect.evidence, *_evidence(origin, case)),
        fix=_fix(origin, case) or suspect.fix,
        intervention=changes[0] if changes else suspect.intervention,
        parts=tuple(changes[1:]) if changes else suspect.parts,
    )


def _change(case: DiagnosisState) -> Intervention | None:
    """The change of what is at the origin that may still remove the failure.

    It can only confirm: one that missed clears nobody, and the next one is tried.
    """
    missed = {trial.intervention.key for trial in _missed(case)}
    return next((each for each in case.origin_changes if each.key not in missed), None)


def _missed(case: DiagnosisState) -> list[Trial]:
    """The trials of such changes that did not remove the failure."""
    trials = [case.trials.get(each.key) for each in (case.origin_fix, *case.origin_changes) if each]
    return [trial for trial in trials if trial is not None and not trial.proves]


def _guilty(party: Component, origin: Origin, case: DiagnosisState) -> Component:
    """The launch that computed the value; the input where no launch changed it."""
    inputs = _inputs(origin)
    others = party.kind == "input" and all(each.input_index != party.input_index for each in inputs)
    if inputs and (origin.launch_index is None or (others and not origin.of_model)):
        place = inputs[0].input_index
        assert place is not None, "only elements with a place are asked for"
        item = case.compiled_inputs[place] if place < len(case.compiled_inputs) else None
        name = (item.path or item.name) if item is not None else inputs[0].label
        party = party.model_copy(
            update={"kind": "input", "name": name, "input_index": place, "launch_index": None, "value": None}
        )
    elif (
        origin.launch_index is not None
        and (origin.of_model or party.kind not in ("input", "constant"))
        and (party.kind, party.launch_index) != ("kernel", origin.launch_index)
    ):
        made = launch_component(origin.launch_index, origin.kernel, case)
        lines = made.model_locations or party.model_locations
        if party.kind == "input":  # with the line that uses the index
            lines = list(dict.fromkeys([*party.model_locations, *made.model_locations]))
        own = None if party.kind == "input" else party.value  # that of an input is no index
        party = made.model_copy(update={"value": own, "model_locations": lines})
    value = origin.bad_value
    if origin.allowed:
        value = f"{value or 'not seen'} (allowed: {origin.allowed})"
    if party.kind == "input" and origin.launch_index is not None:
        # Its own elements: the bad value is what the expression makes of them.
        values = [each.value for each in inputs if each.input_index == party.input_index and each.value]
        value = ", ".join(dict.fromkeys(values[:MOST_ELEMENTS]))
    return party.model_copy(
        update={
            "elements": [each.text() for each in inputs[:MOST_ELEMENTS]],
            "expression": origin.expression,
            "value": party.value or value or None,
        }
    )


def _inputs(origin: Origin) -> list[OffendingElement]:
    """The offending elements of inputs, those that the condition is about first."""
    label = origin.condition.label if origin.condition is not None else ""
    found = [each for each in origin.elements if each.kind == "input" and each.input_index is not None]
    return sorted(found, key=lambda each: each.label != label)


def _sentences(origin: Origin, *, explained: bool = False) -> list[str]:
    """Where it was computed and how it differs from other layers, a sentence each."""
    computed = f"{origin.result} = {origin.expression}"
    short = origin.operation is not None and len(origin.expression) > LONGEST
    brief = explained and len(origin.expression) > LONGEST_EXPLAINED
    if brief:
        computed = f"the {origin.result}"
    if origin.operation is not None and short:
        computed = f"{origin.result}, in which {origin.explanation or origin.operation.text}"
    elif origin.bad_value and origin.bad_value != origin.expression and not brief:
        computed += f" = {origin.bad_value}"
    if origin.allowed:
        computed += f", allowed are {origin.allowed}"
    inputs = _inputs(origin)
    if inputs:
        more = origin.element_count - min(len(inputs), MOST_ELEMENTS)
        computed += f", from {', '.join(each.text() for each in inputs[:MOST_ELEMENTS])}"
        computed += f" and {counted(more, 'more element')}" if more > 0 else ""
    carried = f", carried by launch {', '.join(map(str, origin.carriers[:4]))}" if origin.carriers else ""
    found: list[str] = []
    if origin.launch_index is None:
        found = [f"The value is as it was given: {computed}."]
    elif not (brief and inputs and inputs[0].label in origin.explanation):
        found = [f"Launch {origin.launch_index} computes {computed}{carried}."]
    if not inputs and not brief:
        made = [f"{each.name} is {each.label}, {each.made_by}" for each in origin.operands if each.made_by]
        found += [f"There {listed(made)}."] if made else []
    if origin.explanation and not short and not explained:
        found.append(f"There {origin.explanation}.")
    if origin.condition is not None:
        variable, label = origin.condition.variable, origin.condition.label
        text = f"{origin.condition.text}."
        named = bool(label) and label != variable
        found.append(f"With {variable} for {label}: {text}" if named else f"{text[0].upper()}{text[1:]}")
    if any(part.isdigit() for part in origin.layer.split(".")):
        found.append(f"It is in layer {origin.layer}.")
    if origin.sibling_difference:
        found.append(f"It has {origin.sibling_difference}.")
    elif origin.of_model:
        found.append(f"The expression is at fault: {origin.of_model}.")
    return found


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
    dormant: dict[str, list[str]] = {}  # launches with the same check, by what they pass
    for each in origin.dormant:
        dormant.setdefault(each.passes, []).append(each.layer or f"launch {each.launch_index}")
    if dormant:
        parts = [f"{', '.join(at[:6])}: {passes}" for passes, at in list(dormant.items())[:MOST_DORMANT]]
        fact = f"the same check lies dormant in {'; '.join(parts)}"
        found.append(Evidence(step="inspect_package", fact=fact))
    for trial in _missed(case):
        why = trial.reason or trial.after.describe()
        found.append(Evidence(step="intervention", fact=f"{trial.intervention.what}: {why}"))
    return found


def _fix(origin: Origin, case: DiagnosisState) -> Fix | None:
    """The change of the expression or of the elements in words; the code is that of the change that ran."""
    numbered = any(part.isdigit() for part in origin.layer.split("."))
    where = f"layer {origin.layer}" if numbered else f"launch {origin.launch_index}"
    if case.origin_fix is not None and origin.correction is not None:
        fix, correction = case.origin_fix, origin.correction
        action = f"keep the index within {origin.allowed} where {where} computes it"
        if correction.old is not None:
            action = f"correct {where}, if it should be as the others: it has {origin.sibling_difference}"
        return Fix(action=action, before=fix.before_code, after=fix.after_code)
    change, condition = _change(case), origin.condition
    tried = case.trials.get(change.key) if change is not None else None
    if change is not None and change.action and (tried is None or not tried.side_effects):
        return Fix(action=change.action, before=change.before_code, after=change.after_code)
    if change is None or not change.changes:
        return None
    if condition is not None and condition.good is not None:
        one_sided = (condition.low is None) != (condition.high is None)
        side = "below" if condition.high is None else "above"
        limit = f"at {condition.good} or {side}" if one_sided else f"where {condition.text} does not hold"
        places = [f"[{', '.join(map(str, each.index))}]" for each in change.changes if each.index is not None]
        kept = [f"{condition.label}{place}" for place in places[:MOST_ELEMENTS]] or [condition.label]
        action = f"keep {', '.join(kept)} {limit}"
        if origin.sibling_difference:
            differs = origin.sibling_difference
            action += f"; or correct {where}, if it should be as the others: it has {differs}"
    else:
        action = (
            "leave one element of each row of the mask open, or give rows that are masked as a whole another "
            "value than softmax of nothing"
        )
    return Fix(action=action, before=change.before_code, after=change.after_code)
