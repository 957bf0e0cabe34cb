"""What is known of the origin of a bad value, put into suspects, and the change of inputs that removes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.interventions.base import Change, Intervention, Trial, Where
from mcp_server.diagnosis.interventions.input import Leaf, changed, replace_element, together
from mcp_server.diagnosis.origin import Condition, OffendingElement, Operation, Origin
from mcp_server.diagnosis.origin.of_model import guarded_line
from mcp_server.diagnosis.origin.values import Tensor
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Component, Evidence, Fix

MOST_ELEMENTS = 4
LONGEST = 160  # letters of an expression in a summary
MOST_DORMANT = 4
MOST_CHANGED = 64  # elements, or rows of a mask, that are changed one by one
MOST_COUNTED = 1 << 16  # elements of a tensor that are looked at
_BOOLEAN = {"True": True, "False": False}

TensorOf = Callable[[int], Tensor | None]


def with_origin(suspect: Suspect, case: DiagnosisState, fault_launch: int | None) -> Suspect:
    """`suspect` with the origin of the bad value that launch `fault_launch` showed; as it is without one."""
    origin = case.origin
    if (
        origin is None
        or fault_launch is None
        or fault_launch not in (origin.fault_launch, origin.launch_index)
    ):
        return suspect
    guilty, fix, change = _guilty(suspect.guilty, origin, case), case.origin_fix, _change(case)
    if change is not None and origin.operation is not None and change.before_code == origin.operation.code:
        change = _in_model(change, origin.operation, guilty)
    if fix is not None and fix.key in {trial.intervention.key for trial in _missed(case)}:
        fix = None
    # The corrected expression is the fix where that is at fault, and the changed elements show the cause.
    changes = [each for each in (fix, change) if each is not None]
    return replace(
        suspect,
        guilty=guilty,
        summary=" ".join((suspect.summary, *_sentences(origin))),
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


def _in_model(change: Intervention, operation: Operation, party: Component) -> Intervention:
    """A guard in the line of the model that the kernel computes, where one has the operation once."""
    lines = {
        line: each.code for each in party.model_locations if (line := guarded_line(each.code, operation.op))
    }
    if len(lines) != 1:
        return change
    ((after, before),) = lines.items()
    return replace(change, before_code=before.strip(), after_code=after)


def _missed(case: DiagnosisState) -> list[Trial]:
    """The trials of such changes that did not remove the failure."""
    changes = [*([case.origin_fix] if case.origin_fix is not None else []), *case.origin_changes]
    trials = (case.trials.get(each.key) for each in changes)
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
    value = f"{origin.bad_value} (allowed: {origin.allowed})" if origin.allowed else origin.bad_value
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


def _sentences(origin: Origin) -> list[str]:
    """Where it was computed and how it differs from other layers, a sentence each."""
    computed = f"{origin.result} = {origin.expression}"
    short = origin.operation is not None and len(origin.expression) > LONGEST
    if origin.operation is not None and short:
        computed = f"{origin.result}, in which {origin.explanation or origin.operation.text}"
    elif origin.bad_value and origin.bad_value != origin.expression:
        computed += f" = {origin.bad_value}"
    if origin.allowed:
        computed += f", allowed are {origin.allowed}"
    inputs = _inputs(origin)
    if inputs:
        more = origin.element_count - min(len(inputs), MOST_ELEMENTS)
        computed += f", from {', '.join(each.text() for each in inputs[:MOST_ELEMENTS])}"
        computed += f" and {more} more elements" if more > 0 else ""
    carried = f", carried by launch {', '.join(map(str, origin.carriers[:4]))}" if origin.carriers else ""
    if origin.launch_index is None:
        found = [f"The value is as it was given: {computed}."]
    else:
        found = [f"Launch {origin.launch_index} computes {computed}{carried}."]
    if origin.explanation and not short:
        found.append(f"There {origin.explanation}.")
    if origin.condition is not None:
        found.append(f"For {origin.condition.label or origin.condition.variable}: {origin.condition.text}.")
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


def made_good(origin: Origin, leaves: Sequence[Leaf], tensor_of: TensorOf) -> Intervention | None:
    """The call with the offending elements made the nearest good value, or a masked row given one element.

    `leaves` are the inputs by their place, `tensor_of` gives the values of one. None where no element of an
    input is known, or no value of it that is good.
    """
    condition = origin.condition
    elements = [each for each in origin.elements if each.kind == "input" and each.input_index is not None]
    if condition is None or condition.good is None:
        masked = [e for e in elements if e.value in _BOOLEAN]
        blamed = [e for e in masked if (e.label, e.value) == (masked[0].label, masked[0].value)]
    else:
        blamed = [e for e in elements if e.label == condition.label and _is_bad(e.value, condition)]
    place = blamed[0].input_index if blamed else None
    if place is None or place >= len(leaves):
        return None
    leaf, tensor = leaves[place], tensor_of(place)
    if condition is None or condition.good is None:
        return _unmasked(leaf, blamed, tensor)
    # One limit for the tensor where it changes these elements alone, else each element by itself.
    good, alike = condition.good, -1
    if tensor is not None and tensor.count <= MOST_COUNTED:
        alike = sum(_is_bad(str(tensor.at(place)), condition) for place in range(tensor.count))
    complete = origin.element_count <= len(origin.elements)
    above, below = condition.low is not None, condition.high is not None
    if above != below and (alike == len(blamed) or not complete):
        change = Change("elements", leaf.input, low=good, where=Where(below=good))
        if above:
            change = Change("elements", leaf.input, high=good, where=Where(above=good))
        part = f"the elements of {leaf.name} {'above' if above else 'below'} {good} made {good}"
        return replace(
            changed(leaf, change), what=f"the call with {part}, the others as they are", smallest=True
        )
    parts = tuple(replace_element(leaf, tuple(e.index), good) for e in blamed if e.index)
    return _joined(leaf, parts, f"made {good}") if len(parts) > 0 and len(blamed) <= MOST_CHANGED else None


def _is_bad(text: str, condition: Condition) -> bool:
    """Whether a value, as it is shown, is one for which the expression goes wrong."""
    try:
        value = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return False
    return not (
        (condition.low is not None and value < condition.low)
        or (condition.high is not None and value > condition.high)
    )


def _unmasked(leaf: Leaf, elements: Sequence[OffendingElement], tensor: Tensor | None) -> Intervention | None:
    """One element of each row of a mask that lets nothing through set the other way round."""
    bad = _BOOLEAN[elements[0].value]
    first = tuple(elements[0].index)
    if not first:
        return None
    axis, rows = len(first) - 1, [first]
    if tensor is not None:
        axis = _axis(tensor, elements, bad)
        rows = [
            index
            for index in tensor.indices()
            if index[axis] == 0 and all(tensor.value(each) == bad for each in _line(tensor, index, axis))
        ]
    if not 0 < len(rows) <= MOST_CHANGED:
        return None
    # The worker takes numbers; the code for a person is a bool.
    parts = tuple(
        replace(
            replace_element(leaf, row, int(not bad)),
            after_code=f"{leaf.name}[{', '.join(map(str, row))}] = {not bad}",
        )
        for row in rows
    )
    joined = _joined(leaf, parts, f"made {not bad}")
    if axis != len(first) - 1 or tensor is None:
        return joined
    closed = f"{leaf.name}.all(-1)" if bad else f"~{leaf.name}.any(-1)"
    return replace(joined, after_code=f"{leaf.name}[{closed}, 0] = {not bad}")  # for every such mask


def _axis(tensor: Tensor, elements: Sequence[OffendingElement], bad: bool) -> int:
    """The dimension along which the offending elements lie: all of its line are bad."""
    first, known = tuple(elements[0].index), {tuple(each.index) for each in elements}

    def closeness(axis: int) -> tuple[bool, int, int]:
        line = list(_line(tensor, first, axis))
        closed = len(line) > 1 and all(tensor.value(index) == bad for index in line)
        return closed, len(known.intersection(line)), axis

    return max(range(len(first)), key=closeness)


def _line(tensor: Tensor, through: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
    """The indices along `axis`."""
    for place in range(tensor.shape[axis]):
        yield (*through[:axis], place, *through[axis + 1 :])


def _joined(leaf: Leaf, parts: tuple[Intervention, ...], what: str) -> Intervention:
    """Several elements of an input changed at once."""
    if len(parts) == 1:
        return replace(parts[0], smallest=True)
    key = "+".join(part.key for part in parts)
    text = f"the call with {len(parts)} elements of {leaf.name} {what}"
    return replace(together(key, text, parts), before_code=leaf.name, smallest=True)
