"""Values that do not fit: a data-dependent size, a zero divisor, a dtype that is too narrow."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.constants import KEEP_ALL, full_update
from mcp_server.diagnosis.components import (
    agreement,
    check_failed,
    component,
    confirming,
    depends_on,
    input_component,
    is_whole,
    launch_component,
    leaf_of,
    lines_of,
    name_of,
    raising_lines,
    reported,
    said,
    seen,
)
from mcp_server.diagnosis.indices import input_index
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Seen, Trial, judged_elsewhere
from mcp_server.diagnosis.interventions.input import keep_in_range, replace_where
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedDrift, CapturedPartialLoad
from mcp_server.model import Category, Component, Evidence, Fix, ModelLocation
from mcp_server.package.assertion import Division
from mcp_server.package.exported import DIVIDES
from mcp_server.package.symbols import names_in, origins
from mcp_server.package.terms.linear import affine
from mcp_server.plurals import capitalized, counted, listed, quoted
from mcp_server.worker import events
from mcp_server.worker.protocol import InputSlice, Where
from mcp_server.worker.report import TensorFacts

_ABOVE = re.compile(r"(?:(?P<name>\w+) (?P<sign><=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s>>=?) (?P<v>\w+))")
_BELOW = re.compile(r"(?:(?P<name>\w+) (?P<sign>>=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s><=?) (?P<v>\w+))")
WIDEN = "widen the bound where the model states it (torch._check, the size of a tensor) and export again"
LARGEST = 2**31 - 1  # limit of a size without a limit of its own


def detect_size(case: DiagnosisState) -> Iterator[Suspect]:
    """The source of a data-dependent value (`.item()`, a length of `nonzero`) that fails a check."""
    error = next((root for _, root in case.roots if root.family.id == "runtime_assert"), None)
    if error is None or case.view is None or case.package is None:
        return
    symbols = case.view.wrapper.symbols
    for name in names_in(error.fields["condition"]):
        sources = origins(name, symbols) if name in symbols and symbols[name].unbacked else []
        tensor = next((source.tensor for source in sources if source.tensor), None)
        if tensor is None:
            continue
        condition, value = error.fields["condition"], error.fields.get("value")
        ends = limits(condition)
        sides = (("least", "low"), ("most", "high"))
        bound = listed([f"at {side} {ends[end]}" for side, end in sides if end in ends]) or condition
        assumed = f"{value}, but {bound} is assumed" if value else f"not as assumed ({bound})"
        item = next((i for i in case.package.inputs if i.name == tensor), None)
        if item is not None:
            guilty = input_component(item, raising_lines(case) or case.call_locations, assumed)
            kept = keep_in_range(leaf_of(item), ends.get("low", -LARGEST), ends.get("high", LARGEST))
            kept = replace(kept, what=f"the call with {leaf_of(item).name} changed to be {bound}")
            fact = f"the value that is checked is read from {item.label}"
            yield Suspect(
                category="shape_out_of_range",
                guilty=guilty,
                summary=f"The model reads the value of {item.label} as a number. It is {assumed}.",
                level=CausalLevel.CALL,
                evidence=(said(error), seen("inspect_package", fact)),
                fix=Fix(text=f"pass a value of {bound}, or {WIDEN}"),
                intervention=kept if ends else None,
            )
        # A launch computed the value, or a tensor of this length.
        for number in case.view.writers_of_name.get(tensor, ())[:1] if item is None else ():
            depends, kernel = depends_on(number, case, ", from"), case.launches[number].kernel
            fact = f"the size comes from launch {number}{depends}"
            yield Suspect(
                category="shape_out_of_range",
                guilty=launch_component(number, kernel, case),
                summary=f"A size that launch {number} ({kernel}) computes from data{depends} is {assumed}.",
                level=CausalLevel.BAD_VALUE,
                evidence=(said(error), seen("inspect_package", fact)),
                fix=Fix(text=f"pass data that give {bound}, or {WIDEN}"),
            )
        return


def limits(condition: str) -> dict[str, int]:
    """`low` and `high`, inclusive, allowed by a comparison with one number. Empty for other comparisons."""
    found = {}
    for name, pattern, step in (("high", _ABOVE, -1), ("low", _BELOW, 1)):
        match = pattern.fullmatch(condition.strip())
        if match is not None:
            strict = len(match["sign"] or match["s"]) == 1
            found[name] = int(match["number"] or match["n"]) + (step if strict else 0)
    return found


_BY_ZERO = ("ZeroDivision", "by zero")


def division_failure(case: DiagnosisState) -> Evidence | None:
    """Evidence of a division by zero: the error or signal of the run, or wrong outputs that are finite."""
    plain = case.plain_run
    if may_hide_infinity(case):
        return seen("run", "the outputs are finite, and not as expected")
    if plain is not None and plain.finished.signal == "SIGFPE":
        return Evidence(step="run", fact="the process died with SIGFPE: a division was impossible")
    found = ((source, root) for source, root in case.roots if root.family.id == "kernel_division")
    return next((reported(root, source) for source, root in found), None)


def may_hide_infinity(case: DiagnosisState) -> bool:
    """Whether the outputs are finite but wrong, so that a clamp, say, may hide a division by zero."""
    return case.plain_diverges and not case.outputs_nonfinite


def failed_divisions(case: DiagnosisState) -> tuple[Division, ...]:
    """The divisions that may have failed: those that raise in eager mode, or all if none does.

    If the outputs are finite but wrong, only float divisions are considered.
    """
    view = case.view
    if view is None or division_failure(case) is None:
        return ()
    found = view.tracer.float_divisions if may_hide_infinity(case) else view.tracer.divisions
    return tuple(division for division in found if raised(division, case) is not None) or found


def raised(division: Division, case: DiagnosisState) -> events.NodeRaised | None:
    """The operator at a line of the division that also raises a division by zero in eager mode."""
    known = case.view.provenance(division.launch).locations if case.view is not None else ()
    lines = {(at.file, at.line) for at in known}
    for event in case.eager_events(events.NodeRaised):
        by_zero = any(text in event.text for text in _BY_ZERO)
        if by_zero and (not lines or any((frame.file, frame.line) in lines for frame in event.stack)):
            return event
    return None


def divisor_parts(division: Division, case: DiagnosisState) -> list[InputSlice]:
    """The input elements that are used unchanged as divisors."""
    direct = [source for source in division.sources if source.direct and division.plain]
    placed = [(input_index(source, case), affine(source.load.index) or (0, 1)) for source in direct]
    return [InputSlice(index, *place, 0, 0, unlike=0) for index, place in placed if index is not None]


def detect_division(case: DiagnosisState) -> Iterator[Suspect]:
    """A division by zero: each input with a zero that is a divisor, or each division that may have failed."""
    error = division_failure(case)
    found = failed_divisions(case)
    divisors = [(division, divisor_parts(division, case)) for division in found]
    looked_at = case.call is None or case.given is None or "look_at_indices" in case.done
    if error is None or (any(parts for _, parts in divisors) and not looked_at):
        return
    pairs = [(division, part) for division, parts in divisors for part in parts]
    zeros = [(d, p) for d, p in pairs if p in case.index_values and case.index_values[p].outside]
    hidden = may_hide_infinity(case)
    for division, part in zeros:
        by_input = _by_input(division, part, error, case)
        yield _hidden(by_input, case) if hidden else by_input
    for division, parts in divisors if not zeros and not hidden else ():
        if not parts or any(part not in case.index_values for part in parts):
            yield _computed(division, len(found) == 1, error, case)


WITHOUT_ZEROS = Where(equals=0)
ANOTHER_NUMBER = "divide by 1 where the divisor is 0 (torch.where)"


def _code(lines: Sequence[ModelLocation]) -> str | None:
    return lines[0].code if lines else None


def _by_input(division: Division, part: InputSlice, error: Evidence, case: DiagnosisState) -> Suspect:
    item, facts, party = case.compiled_inputs[part.input], case.index_values[part], _party(division, case)
    at, lines = f"element {facts.index}", party.model_locations
    fact = f"{at} of {item.label} is 0; {facts.outside} of {facts.elements} are"
    return Suspect(
        category="input_mismatch",
        guilty=input_component(item, lines, f"0 at {facts.index}"),
        summary=f"{capitalized(at)} of {item.label} is 0, and launch {division.launch.index} divides by it.",
        level=CausalLevel.CALL,
        evidence=(error, seen("look_at_indices", fact), *_shown(division, case)),
        crashing=party,
        fix=Fix(text=f"keep zeros out of {name_of(item)}, or {ANOTHER_NUMBER}", before=_code(lines)),
        intervention=replace_where(leaf_of(item), WITHOUT_ZEROS, 1),
    )


def _hidden(suspect: Suspect, case: DiagnosisState) -> Suspect:
    """The suspect for a division of floats. No call fails, so the trial can only confirm it."""
    return replace(
        suspect,
        category="nan_or_inf",
        summary=f"{suspect.summary} The outputs are finite: what follows hides the infinity.",
        level=CausalLevel.FAULT_SITE,
        intervention=confirming(suspect.intervention, case) if suspect.intervention is not None else None,
        observed=False,
    )


def _computed(division: Division, single: bool, error: Evidence, case: DiagnosisState) -> Suspect:
    """A zero divisor that is not an input element, but a constant or computed by the model."""
    party, source = _party(division, case), division.sources[0] if division.plain else None
    guilty, lines, at = party, party.model_locations, division.launch.index
    known = case.package.constants if case.package is not None and not division.inputs else ()
    fqn = next((c.fqn for c in known if source is not None and c.name == source.tensor), None)
    if fqn:  # all divisors are elements of this constant
        guilty = component("constant", fqn, lines, launch=at)
    constants = [source.label for source in division.sources if source.kind == "constant"]
    category: Category = "script_error"
    origin = "comes from no input: it is a constant of the model, written into the code"
    if division.inputs:
        how = "an element of" if division.plain else "computed from"
        category, origin = "input_mismatch", f"is {how} {', '.join(division.inputs[:3])}"
    elif constants:
        category, origin = "constants", f"comes from {', '.join(dict.fromkeys(constants))}"
    # The trial only confirms: the model may also compute a zero from other numbers.
    item = next((item for item in case.compiled_inputs if division.inputs == (item.label,)), None)
    test = None
    if item is not None and is_whole(item):
        test = confirming(replace_where(leaf_of(item), WITHOUT_ZEROS, 1), case)
    return Suspect(
        category=category,
        guilty=guilty,
        summary=f"Launch {at} ({division.launch.kernel}) divides an integer by zero; the divisor {origin}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(error, *_shown(division, case)),
        crashing=party,
        fix=Fix(text=ANOTHER_NUMBER, before=_code(lines)),
        intervention=test,
        observed=single,
        weak=not single,
    )


def _party(division: Division, case: DiagnosisState) -> Component:
    """The launch, with the line that raises in eager mode, else its lines that divide, else all lines."""
    party = launch_component(division.launch.index, division.launch.kernel, case)
    event, own = raised(division, case), party.model_locations
    lines = lines_of(event) if event is not None else []
    lines = lines or [line for line in own if DIVIDES.search(line.code)] or own
    return party.model_copy(update={"generated_location": division.location, "model_locations": lines})


def _shown(division: Division, case: DiagnosisState) -> Iterator[Evidence]:
    yield seen("inspect_package", f"{division.location}: {division.code[:200]}")
    event = raised(division, case)
    if event is not None:
        yield seen("interpret", f"{event.node} ({event.op}) also divides by zero in eager mode")


# Keys of trials that replace a form of an operator that may be unintended, though eager mode has it too.
EXACT, EVALUATION, WEIGHTS, CONTIGUOUS = "int64", "evaluation", "weights", "contiguous"
ABSENT, SUMMED = "absent", "summed"


def detect_form(case: DiagnosisState) -> Iterator[Suspect]:
    """Operators in an unintended form, if the user's expectation failed and package and program agree."""
    if case.failure_of("plain") != "differs" and not check_failed(case):
        return
    overflowed, exact = case.eager_events(events.NodeOverflow), case.trials.get(EXACT)
    cured = exact is not None and exact.gone  # decides even if runs of the program differ
    if overflowed and (case.equals_eager or cured or case.undefined is not None):
        event = case.undefined or next((each for each in overflowed if not each.modular), overflowed[0])
        suspect = of_overflow(event, case)
        tried = _tried(EXACT, case) if cured or not event.undefined else None
        yield replace(suspect, intervention=tried, harmful=case.failed)
    for strided in case.eager_events(events.NodeStrided)[:1]:
        yield replace(_strided(strided, case), intervention=_tried(CONTIGUOUS, case), harmful=case.failed)
    for key, found in [
        *((ABSENT, _from_end(each, case)) for each in case.eager_events(events.NodeFromEnd)[:1]),
        *((SUMMED, _repeated(each, case)) for each in case.eager_events(events.NodeRepeated)[:1]),
    ]:
        tried = _tried(key, case)
        yield replace(found, intervention=tried, harmful=case.failed, observed=tried is not None)
    training, tried = case.eager_events(events.NodeTraining), _tried(EVALUATION, case)
    if training and (case.equals_eager or tried is not None):
        yield replace(_training(training, case), intervention=tried, harmful=case.failed)
    drift, trial = own_drift(case) or next(iter(case.captured.drifts), None), case.trials.get(WEIGHTS)
    cured = trial is not None and trial.gone
    if drift is not None:
        found, tried = replace(_drifted(drift, case), harmful=case.failed), _tried(WEIGHTS, case)
        # Later updates of constants may have given the package the new weights. Another model where the check
        # failed may have nothing to do with the package.
        if cured or (trial is None if drift.of else trial is not None or not case.captured.updates):
            yield replace(found, intervention=tried, observed=cured or not drift.of)

    for load in case.captured.partial_loads[-1:]:
        yield replace(_not_loaded(load, case), harmful=case.failed)


def own_drift(case: DiagnosisState) -> CapturedDrift | None:
    """The changed weights, if the examined package has them. None if they belong to another model."""
    names = {each.fqn for each in case.package.constants} if case.package is not None else set()
    names |= set(case.exported.state) if case.exported is not None else set()  # includes folded weights
    return next((each for each in case.captured.drifts if names.intersection(each.names)), None)


def _tried(key: str, case: DiagnosisState) -> Intervention | None:
    trial = case.trials.get(key)
    return trial.intervention if trial is not None else None


def of_overflow(event: events.NodeOverflow, case: DiagnosisState) -> Suspect:
    """Suspect the first operator whose integers do not fit its dtype.

    A healthy program may intend this: hashes are computed modulo the range of their dtype.
    """
    op, dtype = event.op, event.dtype
    element = f"element {event.index}" if event.index else "it"
    place = f"{element} is {event.value}, and the exact value is {event.exact}"
    fix = f"convert the operands of {op} to a wider dtype first, for example with .long()"
    same = "Eager mode does the same."
    if event.undefined:
        fix = f"choose the scale so that all values fit {dtype}, or limit them to its range first"
        same = "C++ does not define what the conversion gives: eager mode and the package may differ."
    if "float" in dtype:
        fix = f"subtract the integers before they are converted to {dtype}, or convert them with .double()"
    fact = f"{event.node} ({op}) computes in {dtype}: {place}"
    several = f"; {counted(event.count, 'element')} of it do not fit" if event.count > 1 else ""
    suspect = _of_node(event, f"{event.value} in place of {event.exact}", fact + several, fix, case)
    summary = f"{op} computes in {dtype}, and its result does not fit: {place}. {same}"
    return replace(suspect, summary=summary, observed=not event.modular)


def _of_node(event: events.OfNode, value: str, fact: str, fix: str, case: DiagnosisState) -> Suspect:
    """An operator that does in eager mode, too, what the user may not have meant."""
    return Suspect(
        category="wrong_output",
        guilty=component("op", event.op, lines_of(event), value=value),
        summary=f"{fact}. Eager mode does the same.",
        level=CausalLevel.BAD_VALUE,
        evidence=(seen("interpret", fact), *agreement(case)),
        fix=Fix(text=fix),
    )


def _strided(event: events.NodeStrided, case: DiagnosisState) -> Suspect:
    """The user's operator that ignores a tensor's strides."""
    op = f"torch.ops.{event.op}"
    fact = f"{op} gives other values for contiguous copies of its arguments"
    return Suspect(
        category="custom_op",
        guilty=component("op", op, lines_of(event), value="a tensor that is not contiguous"),
        summary=f"{fact}: it does not use the strides of the tensor that it gets here.",
        level=CausalLevel.BAD_VALUE,
        evidence=(seen("interpret", fact), *agreement(case)),
        fix=Fix(
            text=f"let {event.op.rpartition('.')[0]} copy its arguments (x.contiguous()) before it reads "
            "their memory, or use their strides"
        ),
    )


def _from_end(event: events.NodeFromEnd, case: DiagnosisState) -> Suspect:
    """The negative index that may mean that there is no row."""
    place = f"{event.of}{event.index or ''}"
    fact = f"{place} is {event.value}, and {event.op} counts negative indices from the end"
    fix = f"if {event.value} stands for no row, give 0 there (torch.where), or add a row for it"
    suspect = _of_node(event, f"{place} = {event.value}", fact, fix, case)
    summary = f"{fact}, without an error. Eager mode does the same."
    return replace(suspect, category="index_out_of_bounds", summary=summary)


def _repeated(event: events.NodeRepeated, case: DiagnosisState) -> Suspect:
    """The write by index that loses values, because several go to one place."""
    both = f"{event.of}{event.index} and {event.of}{event.other}"
    place = event.place[0] if len(event.place) == 1 else event.place
    fact = f"{both} are both {place}, and {event.op} keeps only one of the values that it writes there"
    fix = (
        "if such values add up, use index_add, scatter_add, or index_put with accumulate=True; otherwise "
        "keep the index free of duplicates"
    )
    return _of_node(event, f"{both} = {place}", fact, fix, case)


def _training(found: Sequence[events.NodeTraining], case: DiagnosisState) -> Suspect:
    """The operators of a model that was exported in training mode."""
    names = ", ".join(dict.fromkeys(each.op for each in found))
    does = "drops values at random" if "dropout" in found[0].op else "takes the statistics of each batch"
    return Suspect(
        category="wrong_output",
        guilty=component("op", found[0].op, lines_of(found[0]), value="training mode"),
        summary=f"The model was exported in training mode, in which {found[0].op} {does}.",
        level=CausalLevel.STATE,
        evidence=(seen("interpret", f"{names} is exported with training=True"), *agreement(case)),
        fix=Fix(
            text="put the model into evaluation mode before the export",
            before="torch.export.export(model, ...)",
            after="torch.export.export(model.eval(), ...)",
        ),
    )


def _drifted(drift: CapturedDrift, case: DiagnosisState) -> Suspect:
    """The weights that the program changed after the export, or that are not those of a compared model."""
    names, model = drift.names, drift.of or "the model"
    of = f"{counted(len(names), 'weight')} of {model} ({names[0]}{' and others' if names[1:] else ''})"
    made = [compiled.stack[0] for compiled in case.captured.compiles if compiled.stack]
    kept = {each.fqn for each in case.package.constants} if case.package is not None else set(names)
    fact = f"{of} changed after the export"
    summary = f"The program changed {of} after the export, but the package still has the old values."
    text, more = "compile the package again after the last change of its weights", ", or give it the new ones"
    if drift.of:
        fact = f"the package has other values than {of}"
        made += [line for update in case.updates for line in update.stack[:1]]
        summary = f"{capitalized(fact)}, which the program had where its check failed."
        text, more = f"give the package the weights of {model}, if these are the right ones", ""
    after = None
    if folded := next((name for name in names if name not in kept), ""):
        text += f"; to update {folded}, whose values are written into the code, {KEEP_ALL}"
    else:
        text, after = text + more, full_update(drift.of or "model")
    return Suspect(
        category="constants",
        guilty=component("constant", names[0], made[-1:], value=fact.removeprefix(f"{of} ")),
        summary=summary,
        level=CausalLevel.STATE,
        evidence=(seen("capture", fact), *agreement(case)),
        fix=Fix(text=text, after=after),
    )


def _not_loaded(load: CapturedPartialLoad, case: DiagnosisState) -> Suspect:
    """The weights that a load without `strict` did not find in the file."""
    what = f"{load.missing} of the model's {load.of} weights"
    found = next((pair for name in load.unexpected for pair in _prefixes(name, load.names)), None)
    named, after = f"the file has {quoted(', '.join(load.unexpected))}", None
    if found is not None:
        of_file, of_model = found
        named = f"names in the file begin with {of_file!r}" if of_file else f"its names lack {of_model!r}"
        new = f"name.removeprefix({of_file!r})"
        if of_model:
            new = f"name if name in model.state_dict() else {of_model!r} + name"
        after = f"state = {{{new}: value for name, value in state.items()}}"
    fact = f"load_state_dict did not find {what}: {', '.join(load.names)}"
    return Suspect(
        category="constants",
        guilty=component("constant", load.names[0], load.stack[:1], value="not in the loaded file"),
        summary=f"{fact}. They keep their initial values{f'; {named}' if load.unexpected else ''}.",
        level=CausalLevel.STATE,
        evidence=(seen("capture", fact), *agreement(case)),
        fix=Fix(text="load the weights with strict=True, under the names that the model has", after=after),
        observed=found is not None or load.missing == load.of,
    )


def _prefixes(name: str, missing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the prefix that only the name in the file has, and that of a missing name; one is empty."""
    for each in missing:
        if name.endswith(f".{each}"):
            yield name.removesuffix(each), ""
        elif each.endswith(f".{name}"):
            yield "", each.removesuffix(name)


def form_trials(case: DiagnosisState) -> Iterator[Trial]:
    """Yield trials of the program with operators in another form, if it fails without that form."""
    for compared in case.interpreted.all(events.ComparedForm) if case.interpreted is not None else []:
        before, changed, again = compared.equal
        if before or again:
            continue
        words, kind = FORMS[compared.form]
        change = Intervention(
            compared.form,
            Kind.CONSTANT if compared.form == WEIGHTS else Kind.OPERATOR,
            f"the call with {words.format(', '.join(dict.fromkeys(e.op for e in case.eager_events(kind))))}",
            not_for_shipping="That was done in a copy of the exported program, in eager mode.",
        )
        effect, reason = (
            (Effect.GONE, "the call returned the expected values") if changed else (Effect.SAME, "")
        )
        yield judged_elsewhere(change, effect, Seen("ok", differs="other values than expected"), reason)


# What another form of a program changes, in words, and the events of its operators.
FORMS: dict[str, tuple[str, type[events.OfNode]]] = {
    EXACT: ("{} in 64 bits", events.NodeOverflow),
    EVALUATION: ("{} in evaluation mode", events.NodeTraining),
    CONTIGUOUS: ("{} on contiguous copies", events.NodeStrided),
    ABSENT: ("zeros for what negative indices read", events.NodeFromEnd),
    SUMMED: ("all values of one place added up by {}", events.NodeRepeated),
    WEIGHTS: ("the weights that this model has at the end", events.OfNode),
}


EXTREME = 10**12  # float32 overflows in products of few such numbers, and sums lose small terms


def is_extreme(leaf: TensorFacts) -> bool:
    """Whether a tensor of floats has a finite number of extreme size."""
    return "float" in (leaf.dtype or "") and max(abs(leaf.min or 0), abs(leaf.max or 0)) > EXTREME


def extreme_parts(case: DiagnosisState) -> list[InputSlice]:
    """The inputs with extreme or infinite numbers, if the outputs are not as expected."""
    if not case.plain_diverges or len(case.named_leaves) != len(case.compiled_inputs):
        return []
    leaves = [(item, leaf) for item, (_, leaf) in zip(case.compiled_inputs, case.named_leaves, strict=True)]
    found = [item for item, leaf in leaves if leaf.inf or is_extreme(leaf)]
    return [InputSlice(item.index, 0, 1, -EXTREME, EXTREME) for item in found]
