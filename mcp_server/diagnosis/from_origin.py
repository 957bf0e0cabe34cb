"""Adds the facts about the origin of a bad value to suspects."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mcp_server.diagnosis.components import launch_component, launch_lines
from mcp_server.diagnosis.indices import candidates
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Trial
from mcp_server.diagnosis.origin import Condition, OffendingElement, Operation, Origin
from mcp_server.diagnosis.origin import lines as rewriting
from mcp_server.diagnosis.origin.condition import is_next_to_0
from mcp_server.diagnosis.origin.of_model import OPEN_END
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Component, Evidence, Fix, ModelLocation, rejecting
from mcp_server.package.exported import in_helpers
from mcp_server.package.terms.evaluate import DOMAINS
from mcp_server.plurals import counted, listed
from mcp_server.worker import events

MOST_ELEMENTS = MOST_LINES = 4
LONGEST = 160  # characters of an expression in a summary
LONGEST_EXPLAINED = 60  # the same, if the summary also explains the fault
ALL_LINES = 100
TOO_LARGE = "compute this result in a wider type, such as float32, or scale its operands down"


def with_origin(suspect: Suspect, case: DiagnosisState, fault_launch: int | None) -> Suspect:
    """`suspect` with the origin of the bad value seen in launch `fault_launch`. Unchanged if unknown."""
    origin = case.origin
    if origin is None or fault_launch is None:
        return suspect
    if fault_launch not in (origin.fault_launch, origin.launch_index):
        return suspect
    guilty = _with_lines_of_operation(_guilty(suspect.guilty, origin, case), origin, case)
    fix, change = case.origin_fix, _change(case)
    own = suspect.intervention if origin.launch_index is None and origin.result == "index" else None
    if own is not None and own.kind is Kind.INPUT:
        # First change all indices that are out of range, including those that were not seen.
        change = own if own.key not in case.trials or case.trials[own.key].proves else change
    if change is not None and origin.operation is not None and change.before_code == origin.operation.code:
        # Write the guard in the model lines that the kernel computes, if all of them are known. Without
        # provenance some may be unknown: then use only lines that make a bad value in eager mode.
        known = _made_in_eager(launch_lines(origin.launch_index, case, ALL_LINES), case)
        bad = _bad_in_eager(case)
        shown = [each for each in guilty.model_locations if (each.file, each.line) in bad]
        lines = [*known, *guilty.model_locations] if known else shown
        change = _in_model(change, [each.code for each in lines], origin)
    if change is not None and change.before_code == rewriting.MASK_FILL[0]:
        change = _in_mask(change, [each.code for each in guilty.model_locations])
    if fix is not None and fix.key in {trial.intervention.key for trial in _missed(case)}:
        fix = None
    # If the launch computed the index by itself, the origin repeats all that the suspect's summary says.
    same = suspect.category == "index_out_of_bounds" and bool(origin.allowed)
    told = same and origin.launch_index == origin.fault_launch
    summary = [*([] if told else [suspect.summary]), *_sentences(origin)]
    if suspect.category == "nan_or_inf" and origin.operation is not None and origin.explanation:
        summary = _of_operation(origin, guilty)
    elif suspect.category == "nan_or_inf" and origin.explanation and len(origin.expression) <= LONGEST:
        summary = [_explained(origin, guilty), *_sentences(origin, explained=True)]
    # If the expression is at fault, its correction is the fix. The change of the elements is tried as well.
    changes = [each for each in (fix, change) if each is not None]
    shipped = _limit_at_0(origin, guilty) or _fix(origin, change, case) or suspect.fix or _kept_index(origin)
    return replace(
        suspect,
        guilty=guilty,
        summary=" ".join(summary),
        evidence=(*suspect.evidence, *_evidence(origin, case)),
        fix=shipped,
        intervention=changes[0] if changes else suspect.intervention,
        parts=tuple(changes[1:]) if changes else suspect.parts,
    )


def _with_lines_of_operation(party: Component, origin: Origin, case: DiagnosisState) -> Component:
    """The launch with only those of its model lines that have the operation at fault."""
    operation = origin.operation
    at = operation.launch_index if operation is not None else origin.launch_index
    if at is None or party.launch_index != at:
        return party
    op = operation.op if operation is not None else origin.operator
    found: list[ModelLocation] = []
    # The lines of the failing check may be those of another launch.
    for known in (launch_lines(at, case, ALL_LINES), party.model_locations):
        found = found or [
            line for line in known if operation is not None and rewriting.may_leave_domain(line.code, op)
        ]
        found = found or [line for line in known if op and rewriting.may_compute(line.code, op)]
        found = found or [
            inner for line in known if op for inner in in_helpers(line, partial(rewriting.may_compute, op=op))
        ]
    found = _made_in_eager(found, case)
    return party.model_copy(update={"model_locations": found or party.model_locations[:MOST_LINES]})


def _made_in_eager(lines: list[ModelLocation], case: DiagnosisState) -> list[ModelLocation]:
    """The lines that make a bad value in eager mode, or all lines if none does."""
    made = _bad_in_eager(case)
    return [line for line in lines if (line.file, line.line) in made] or lines


def _bad_in_eager(case: DiagnosisState) -> set[tuple[str, int | None]]:
    """The places of the lines that make a bad value in eager mode: from good ones, or NaN from infinities."""
    odd = case.eager_events(events.NodeNonFinite)
    nan = {event.node: event.nan for event in odd}
    made = (e for e in odd if not e.bad_inputs or (e.nan and not any(nan.get(n, True) for n in e.bad_inputs)))
    return {(frame.file, frame.line) for event in made for frame in event.stack[:1]}


def _in_model(change: Intervention, codes: Sequence[str], origin: Origin) -> Intervention:
    """The change, written as a guard in the model lines: an idiom for the line, or a guarded operand."""
    assert origin.operation is not None
    op = origin.operation.op
    idioms = [
        idiom for code in dict.fromkeys(codes) if (idiom := rewriting.idiom_of(code, op, origin.explanation))
    ]
    lines = rewriting.guarded_lines(codes, op)
    if len(idioms) == 1 and (lines is None or "\n" not in lines[0]):
        (idiom,) = idioms
        return replace(change, before_code=idiom.before, after_code=idiom.after, action=idiom.text)
    action = rewriting.guarded_code(op, "")[2] if origin.operation.shipped else change.action
    return replace(change, before_code=lines[0], after_code=lines[1], action=action) if lines else change


def _in_mask(change: Intervention, codes: Sequence[str]) -> Intervention:
    """The change of a mask, written in the only model line that fills in minus infinity."""
    lines = {code.strip(): rewriting.masked_line(code) for code in codes if rewriting.masked_line(code)}
    if len(lines) != 1:
        return change
    ((before, after),) = lines.items()
    return replace(change, before_code=before, after_code=after)


def _of_operation(origin: Origin, guilty: Component) -> list[str]:
    """Say which operation left its domain, what the model calls its operand, and on what it depends."""
    operation = origin.operation
    assert operation is not None
    found = [f"In launch {operation.launch_index}, {origin.explanation}."]
    for line in guilty.model_locations:
        operand = rewriting.operand_text(line.code, operation.op)
        if operand and operation.value:
            computes = f"{Path(line.file).name}:{line.line} computes {operation.op}({operand})"
            found = [f"{computes}. Here {operand} is {operation.value}, so {origin.explanation}."]
            break
    else:
        lines = [
            line for line in guilty.model_locations if rewriting.may_leave_domain(line.code, operation.op)
        ]
        if len(lines) == 1 and guilty.launch_index == operation.launch_index:
            found = [_explained(origin, guilty)]
    if elements := _elements(origin):
        value, first = operation.value or "bad value", origin.elements[0].value
        # No single element explains a divisor, which may be a sum of many.
        given = operation.op != "div" and _rounded(value) == _rounded(first)
        verb = "comes from" if given else "depends on"
        found.append(f"The {value} {verb} {elements.removesuffix(f' = {first}') if given else elements}.")
    return [*found, *_beside(origin)]


def _rounded(number: str) -> str:
    """A number with the digits that all texts of the same float32 share; other texts unchanged."""
    with contextlib.suppress(ValueError):
        return f"{float(number):.6g}"
    return number


def _explained(origin: Origin, guilty: Component) -> str:
    """Say which arithmetic went wrong, and in which line of the model."""
    lines = guilty.model_locations
    where = f"launch {origin.launch_index}" if origin.launch_index is not None else "an input"
    if len(lines) == 1:
        where = f"{Path(lines[0].file).name}:{lines[0].line}"
    return f"In {where}, {origin.explanation}."


def _change(case: DiagnosisState) -> Intervention | None:
    """The first change at the origin that is not known to fail. None if all failed.

    A change that fails clears no suspect.
    """
    missed = {trial.intervention.key for trial in _missed(case)}
    return next((each for each in case.origin_changes if each.key not in missed), None)


def _missed(case: DiagnosisState) -> list[Trial]:
    """The trials of changes at the origin that did not remove the failure."""
    trials = [case.trials.get(each.key) for each in (case.origin_fix, *case.origin_changes) if each]
    return [trial for trial in trials if trial is not None and not trial.proves]


def _guilty(party: Component, origin: Origin, case: DiagnosisState) -> Component:
    """The launch that computed the value, or the input if no launch changed it."""
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
        if party.kind == "input":  # add the line that uses the index
            lines = list(dict.fromkeys([*party.model_locations, *made.model_locations]))
        own = None if party.kind == "input" else party.value  # the value of an input is not an index
        party = made.model_copy(update={"value": own, "model_locations": lines})
    if constants := _constants(origin):
        party = party.model_copy(update={"kind": "constant", "name": constants[0].label, "value": None})
    value = origin.bad_value
    if origin.allowed:
        value = f"{value or 'not seen'} (allowed: {origin.allowed})"
    if party.kind == "input" and origin.launch_index is not None:
        # For an input, show its elements: the bad value is what the launch computes from them.
        values = [each.value for each in inputs if each.input_index == party.input_index and each.value]
        value = ", ".join(dict.fromkeys(values[:MOST_ELEMENTS]))
    text = origin.expression
    if len(text) > LONGEST:  # show only the failing operation
        text = origin.operation.text if origin.operation is not None else f"{text[: LONGEST - 1]}…"
    return party.model_copy(
        update={
            "elements": [each.text() for each in (inputs or constants)[:MOST_ELEMENTS]],
            "expression": text,
            "value": party.value or value or None,
        }
    )


def _inputs(origin: Origin) -> list[OffendingElement]:
    """The offending input elements, starting with those that the condition describes."""
    label, varied = "", ""
    if origin.condition is not None:
        label, (_, bracket, place) = origin.condition.label, origin.condition.variable.partition("[")
        varied = f"{bracket}{place} ="
    found = [each for each in origin.elements if each.kind == "input" and each.input_index is not None]
    return sorted(found, key=lambda each: (each.label != label, varied not in each.text()))


def _constants(origin: Origin) -> list[OffendingElement]:
    """The offending elements if they all belong to one constant of the package."""
    found = [each for each in origin.elements if each.kind == "constant"]
    return found if not _inputs(origin) and len({each.label for each in found}) == 1 else []


def _selector(origin: Origin) -> str:
    """The first input element that selects the bad element of the constant, if any."""
    return next((each.text() for each in origin.elements if each.kind == "selector"), "")


def _elements(origin: Origin) -> str:
    """Name one or two elements, or the first and the number of others. Empty if none is known."""
    inputs = _inputs(origin)
    if constants := _constants(origin):
        selected = f", selected by {_selector(origin)}" if _selector(origin) else ""
        return f"{constants[0].text()}, a constant of the package{selected}"
    shown = inputs[: 2 if origin.element_count <= 2 else 1]
    more = origin.element_count - len(shown)
    others = f" and {counted(more, 'other element')}" if inputs and more > 0 else ""
    return " and ".join(each.text() for each in shown) + others


def _sentences(origin: Origin, *, explained: bool = False) -> list[str]:
    """Where the value was computed, one sentence for each fact."""
    short = origin.operation is not None and len(origin.expression) > LONGEST
    brief = explained and len(origin.expression) > LONGEST_EXPLAINED
    computed = _computed(origin, brief=brief)
    inputs = _inputs(origin)
    computed += f" from {_elements(origin)}" if inputs else ""
    carried = f", carried by launch {', '.join(map(str, origin.carriers[:4]))}" if origin.carriers else ""
    limit = f", but the allowed values are {origin.allowed}" if origin.allowed else ""
    found: list[str] = []
    if origin.launch_index is None:
        passed = ", as the caller passed it" if inputs or not _constants(origin) else ""
        found = [f"The bad value is {_elements(origin) or computed + limit}{passed}."]
    elif not (brief and inputs and inputs[0].label in origin.explanation):
        found = [f"Launch {origin.launch_index} computes {computed}{carried}{limit}."]
    if not inputs and not brief:
        made = [f"{each.name} is {each.label}, {each.made_by}" for each in origin.operands if each.made_by]
        found += [f"There {listed(made)}."] if made else []
    if origin.explanation and not short and not explained:
        found.append(f"There {origin.explanation}.")
    return [*found, *_beside(origin)]


def _computed(origin: Origin, *, brief: bool) -> str:
    """What is computed: the expression, the operation in it that fails, or only the name of the result."""
    long = len(origin.expression) > LONGEST
    if origin.operation is not None and long:
        return f"{origin.result}, in which {origin.explanation or origin.operation.text}"
    told = brief or not origin.bad_value or origin.bad_value == origin.expression
    if brief or long:
        return f"the {origin.result}" if told else f"the {origin.result} {origin.bad_value}"
    computed = f"{origin.result} = {origin.expression}"
    return computed if told else f"{computed} = {origin.bad_value}"


def _beside(origin: Origin) -> list[str]:
    """When the value is bad, its layer, and why the expression is at fault: one sentence for each fact."""
    found = []
    if origin.condition is not None and origin.launch_index is not None:
        letter, label = origin.condition.variable.partition("[")[0], origin.condition.label
        text = re.sub(rf"\b{re.escape(letter)}\b", label or letter, f"{origin.condition.text}.")
        found.append(f"{text[0].upper()}{text[1:]}")
    if any(part.isdigit() for part in origin.layer.split(".")):
        found.append(f"It is in layer {origin.layer}.")
    if origin.of_model:
        sure = "may be" if origin.of_model == OPEN_END else "is"
        found.append(f"The expression {sure} at fault: {origin.of_model}.")
    return found


def _evidence(origin: Origin, case: DiagnosisState) -> list[Evidence]:
    """What was seen at the origin, and the changes that did not help."""
    named = "; ".join(
        f"{each.name} is {each.label}{f', {each.made_by}' if each.made_by else ''}"
        for each in origin.operands
        if each.name != each.label
    )
    where = f" (layer {origin.layer})" if origin.layer else ""
    at = origin.launch_index if origin.launch_index is not None else origin.fault_launch
    seen = f"launch {at}{where}: {origin.result} is {origin.bad_value or 'not seen'}"
    found = [Evidence(step="dump_kernel_io", fact=f"{seen}{f'; {named}' if named else ''}")]
    for trial in _missed(case):
        why = trial.reason or trial.after.describe()
        found.append(Evidence(step="intervention", fact=f"{trial.intervention.what}: {why}"))
    return found


def _fix(origin: Origin, change: Intervention | None, case: DiagnosisState) -> Fix | None:
    """What to change in the model or the inputs. The tried change only confirms the cause."""
    found = _of_model(origin, case)
    if found is not None:
        return found
    tried = case.trials.get(change.key) if change is not None else None
    clean = change is not None and bool(change.action) and (tried is None or not tried.side_effects)
    if change is not None and clean and change.kind is Kind.INPUT:
        return Fix(text=change.action)
    if origin.operation is not None and _without_value(origin.operation):
        return Fix(text=WITHOUT_VALUE.format(op=origin.operation.op, value=origin.operation.value))
    if change is not None and clean:
        return Fix(text=change.action, before=change.before_code, after=change.after_code)
    if change is None or not change.changes:
        return None
    if origin.condition is None:
        masked = any(each.value in ("True", "False") for each in origin.elements)
        return Fix(text=OPEN_MASK) if masked and not origin.written else None
    return _past_the_end(origin, origin.condition) or _of_values(origin, origin.condition, change, case)


def _limit_at_0(origin: Origin, guilty: Component) -> Fix | None:
    """The model line with `torch.xlogy`, if the line multiplied 0 by the logarithm of 0. None otherwise."""
    op = origin.operation.op if origin.operation is not None else ""
    found = [rewriting.idiom_of(line.code, op, origin.explanation) for line in guilty.model_locations]
    right = [each for each in found if each is not None and "torch.xlogy" in each.after]
    return Fix(**vars(right[0])) if len(right) == 1 else None


def _of_model(origin: Origin, case: DiagnosisState) -> Fix | None:
    """The fix that the origin itself names: a table, a type, a constant or the line of the index."""
    numbered = any(part.isdigit() for part in origin.layer.split("."))
    where = f"layer {origin.layer}" if numbered else f"launch {origin.launch_index}"
    if origin.advice:
        return Fix(text=origin.advice)
    if origin.narrow:
        return Fix(text=f"compute the index in 64 bits: convert what is {origin.narrow} with .long() first")
    if constants := _constants(origin):
        chosen = _selector(origin)
        also = f", or keep values such as {chosen}, which select it, out of the call" if chosen else ""
        return Fix(text=f"correct {constants[0].text()} where the model gets it, then compile again{also}")
    if case.origin_fix is not None:
        text = f"correct how {where} computes the index: it must be in {origin.allowed}"
        if origin.of_model == OPEN_END and origin.condition is not None:
            valid = f"{origin.condition.label} {_limit(origin.condition)[0]}"
            text += f"; if only {valid} is valid, reject other values where they are produced"
        return Fix(text=text)
    too_large = origin.overflow is not None and origin.overflow.bound is None
    return Fix(text=TOO_LARGE) if too_large else None


def _past_the_end(origin: Origin, condition: Condition) -> Fix | None:
    """The fix of a comparison that includes the end: `<` in place of `<=`."""
    only = condition.low if condition.low == condition.high else None
    if only is None or f"<= {only:g}" not in origin.expression:
        return None
    return Fix(
        text=f"compare with `< {only:g}` in place of `<= {only:g}` in the model: the index that belongs "
        f"to {only:g} is past the end"
    )


def _of_values(
    origin: Origin, condition: Condition, change: Intervention, case: DiagnosisState
) -> Fix | None:
    """Keep the values of an input within their limit. None if the model computes the limited value."""
    if all(each.label != condition.label for each in _inputs(origin)):
        return None
    limit, passes = _limit(condition)
    places = [f"[{', '.join(map(str, each.index))}]" for each in change.changes if each.index is not None]
    kept = [f"{condition.label}{place}" for place in places[:MOST_ELEMENTS]] or [condition.label]
    text = f"keep {', '.join(kept)} {limit} where it is produced{_or_else(origin, case)}"
    # In sigmoid(x) * log(y), the limit of y does not depend on x.
    alone = origin.operation is not None and condition.label in origin.operation.code
    others = [each for each in origin.operands if not (alone or each.label.startswith(condition.label))]
    if beside := [f"{each.name}, {each.made_by or each.label}," for each in others]:
        return Fix(text=f"{text}. Another {beside[0]} has another limit: check the {origin.result} itself")
    if not passes or places or "[" not in condition.label:
        return Fix(text=text)
    check = f"not ({condition.label} {passes}).all()"
    return Fix(text=text, after=rejecting(check, f"{condition.label} must be {limit}"))


def _or_else(origin: Origin, case: DiagnosisState) -> str:
    """What to change instead if the values beyond the limit are valid."""
    if origin.operation is not None:
        return f"; if other values are valid, {origin.operation.action} in the model"
    if origin.of_model:
        return "; if other values are valid, limit the index in the model"
    table = _table(case) if origin.result == "index" else ""
    return (
        f"; if such ids are real, {table} has too few rows: compare with the ids of the data" if table else ""
    )


def _table(case: DiagnosisState) -> str:
    """The only table that the failed check guards, if it is a weight."""
    labels = {label.partition(" of shape")[0] for each in candidates(case) for label in each.indexed}
    label = labels.pop() if len(labels) == 1 else ""
    return label.removeprefix("constant ") if label.startswith("constant ") else ""


def _kept_index(origin: Origin) -> Fix | None:
    """What to do about an index that a launch computes, if no better advice is known."""
    if origin.result != "index" or not origin.allowed or origin.launch_index is None:
        return None
    if nan := next((each.label for each in _inputs(origin) if each.value == "nan"), ""):
        check = rejecting(f"{nan}.isnan().any()", f"{nan} has NaN")
        return Fix(text=f"keep NaN out of {nan} where it is produced", after=check)
    if labels := list(dict.fromkeys(each.label for each in _inputs(origin))):
        kept = f"the index that launch {origin.launch_index} computes from it must be in {origin.allowed}"
        return Fix(text=f"correct what produces {listed(labels)}: {kept}")
    return Fix(text=f"keep the index within {origin.allowed} where launch {origin.launch_index} computes it")


WITHOUT_VALUE = (
    "correct what computes {value}, for which {op} has no value; if such numbers are valid, give these "
    "elements a result of their own (torch.where). A clamp only hides them"
)
NEAR = 1e-3  # distance beyond the end of a domain that rounding may cause


def _without_value(operation: Operation) -> bool:
    """Whether the operand is so far outside its domain that no rounding explains it."""
    domain = DOMAINS[operation.op]
    try:
        value = float(operation.value)
    except ValueError:
        return False
    return not domain.nonzero and (value < domain.low - NEAR or value > domain.high + NEAR)


def _limit(condition: Condition) -> tuple[str, str]:
    """For which values the expression is valid: in words, and as a comparison or ""."""
    low, high = condition.low, condition.high
    if is_next_to_0(low, high):
        return "different from 0", ""
    if low is not None and high is not None:
        return (f"different from {low:g}" if low == high else f"outside {low:g}..{high:g}"), ""
    below, good = high is None, condition.good
    side, sign = ("below", "<") if below else ("above", ">")
    if isinstance(good, float):  # name the last bad value: the next float says little
        bad = low if below else high
        if good == 0 != bad:  # 0 is clearer than the last bad value next to it
            return f"at 0 or {side}", f"{sign}= 0"
        return f"{side} {bad:g}", f"{sign} {bad:g}"
    return f"at {good} or {side}", f"{sign}= {good}"


OPEN_MASK = (
    "let the mask keep at least one element of each row; for a fully masked row, return 0 in place of "
    "the softmax: torch.where(row_is_kept, weights, 0)"
)
