"""An index outside its bound: in a kernel, in an operator, or while the compiler tests a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from mcp_server.diagnosis.causes.value_constraints import of_overflow
from mcp_server.diagnosis.components import (
    component,
    confirming,
    depends_on,
    first_line,
    input_component,
    launch_component,
    launch_lines,
    leaf_of,
    lines_of,
    name_of,
    raising_lines,
    said,
    seen,
)
from mcp_server.diagnosis.from_origin import with_origin
from mcp_server.diagnosis.indices import (
    INDEXING,
    Index,
    bound_value,
    candidates,
    checked_inputs,
    further_inputs,
    index_error,
    operator_indices,
    parts_of,
    refused_index,
    watched_indices,
    whole_slice,
)
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import EVERYWHERE, keep_in_range, slice_text, together, whole
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix, ModelLocation, outside
from mcp_server.package.assertion import Candidate
from mcp_server.package.terms.sizes import in_words
from mcp_server.plurals import capitalized, share
from mcp_server.worker import events
from mcp_server.worker.protocol import InputSlice

_Index = partial(Suspect, category="index_out_of_bounds", level=CausalLevel.BAD_VALUE)


def detect_index(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs with values that fail the assertion that was seen; if none, launches that may have failed it."""
    error = index_error(case)
    if error is None:
        return
    checked = checked_inputs(case)
    bad = [each for each in checked if _outside(each.part, case)]
    if any(each.part is not None and each.part.input in case.unowned for each in bad):
        return
    if bad:
        more = {each.part: each for each in further_inputs(case) if _outside(each.part, case)}
        every = parts_of([*bad, *more.values()])
        yield from (_by_input(each, error, case, every) for each in bad)
        yield from (_by_input(each, None, case, every) for each in more.values())
        return
    # Launches with the check, except those whose input elements are all known to be in range.
    found = candidates(case)
    if case.origin is not None and case.origin.bad_value:  # the launch with the bad value is known
        seen_at = case.origin.fault_launch
        found = tuple(each for each in found if each.launch.index == seen_at) or found
    single = len({(c.launch.index, c.check.line) for c in found}) == 1
    for candidate in found[:4]:
        parts = [each.part for each in checked if each.candidate == candidate]
        cleared = all(part in case.index_values and not _outside(part, case) for part in parts)
        if not parts or not cleared:
            yield with_origin(_computed(candidate, error, single, case), case, candidate.launch.index)


def _outside(part: InputSlice | None, case: DiagnosisState) -> int:
    """The number of elements of the slice that are out of range. 0 if the slice was not checked."""
    return case.index_values[part].outside if part in case.index_values else 0


def _clamp(part: InputSlice, case: DiagnosisState) -> Intervention:
    """The call with out-of-range elements of `part` set to the nearest bound. All others stay."""
    return keep_in_range(leaf_of(case.compiled_inputs[part.input]), part.low, part.high, _flat(part))


def _flat(part: InputSlice) -> slice:
    """The slice of the flat input that has the indices."""
    whole = (part.stride, part.offset, part.end) == (1, 0, None)
    return EVERYWHERE if whole else slice(part.offset, part.end, part.stride)


def _reads_all(index: Index, case: DiagnosisState) -> bool:
    """Whether every element of the input indexes the same tensor, for example column by column."""
    part = index.part
    assert part is not None, "asked for an index that is an input as given"
    alike = [
        each.part
        for each in (*checked_inputs(case), *further_inputs(case))
        if each.part is not None and _Indexed.of(each) == _Indexed.of(index)
        if (each.part.input, each.part.stride, each.part.end) == (part.input, part.stride, None)
    ]
    return {each.offset for each in alike} >= set(range(part.stride))


def _by_input(
    index: Index, error: ErrorFact | None, case: DiagnosisState, parts: Sequence[InputSlice] = ()
) -> Suspect:
    """Input elements that a check or operator rejects. `error` is None if the call ended before that check.

    `parts` are all bad elements of the call. Those of one input are changed together.
    """
    part, candidate, launch = index.part, index.candidate, index.launch
    assert part is not None, "asked for an index that is an input as given"
    item, facts = case.compiled_inputs[part.input], case.index_values[part]
    where, name = f"element {facts.index} of {item.label} is {facts.value}", name_of(item)
    flat, low, high = _flat(part), part.low, part.high
    row = _row(part, case)
    read = f"{name}[{row}]" if row is not None else f"{name}.flatten(){slice_text(flat)}"
    read = name if flat == EVERYWHERE or index.offsets else read
    all_read = name if _reads_all(index, case) else read
    indexed, beyond = _Indexed.of(index), share(facts.outside, facts.elements, "value")
    at = f" at {candidate.location}" if candidate is not None else ""
    own = _lines(candidate) if candidate is not None else launch_lines(launch.index, case)
    lines = raising_lines(case) or own or case.call_locations
    if facts.as_int32:
        return _narrow(index, case)
    guilty = input_component(item, lines, f"{facts.value} at {facts.index} (allowed: {low}..{high})")
    elements = [f"{name}{place} = {value}" for place, value in facts.first]
    return _Index(
        guilty=guilty.model_copy(update={"elements": elements}),
        summary=f"{capitalized(where)}. {indexed.limits(low, high)}{indexed.doubt(part, facts, case)}",
        evidence=(
            *([said(error)] if error is not None else []),
            seen("look_at_indices", f"{where}; {beyond} outside {low}..{high}", f"the values of {read}"),
            seen("inspect_package", f"launch {launch.index} ({launch.kernel}) checks it{at}"),
        ),
        crashing=crashing(candidate) if candidate is not None else _launch(index, case),
        fix=Fix(
            text=indexed.advice(all_read, part, facts),
            after=None if index.offsets else outside(all_read, first_row(part, facts), high),
        ),
        intervention=_replaced([each for each in parts if each.input == part.input], part, indexed, case),
    )


def first_row(part: InputSlice, facts: events.IndexValues) -> int:
    """The lowest value to accept. Negative values count from the end; few programs mean that."""
    return 0 if part.low < 0 <= (facts.min or 0) else part.low


def _narrow(index: Index, case: DiagnosisState) -> Suspect:
    """An int32 buffer that the program declares as int64, so that two values are read as one."""
    part = index.part
    assert part is not None, "asked for an index that is an input as given"
    item, facts = case.compiled_inputs[part.input], case.index_values[part]
    high, low = divmod(int(facts.value), 1 << 32)
    made = case.taken.made_at.get(item.index) if case.taken is not None else None
    lines = [*([made] if made is not None else []), *case.call_locations]
    pair = f"element {facts.index} is {facts.value} = {low} + {high} * 2^32"
    return Suspect(
        category="input_mismatch",
        guilty=input_component(item, lines, f"int32 memory declared as int64: {pair}"),
        summary=f"The memory of {item.label} has int32 values, but the program declares it as int64, so that "
        f"two values are read as one: {pair}. As int32, all are in {part.low}..{part.high}.",
        level=CausalLevel.CALL,
        evidence=(
            seen("look_at_indices", f"{pair}; read as int32, all values are in {part.low}..{part.high}"),
        ),
        fix=Fix(
            text=f"declare the memory of {name_of(item)} as int32 where the tensor is made, and convert it"
        ),
        intervention=whole(leaf_of(item), "reread", "int32"),
    )


def _row(part: InputSlice, case: DiagnosisState) -> int | None:
    """The row number if the elements are exactly one row, as `edges[1]`. None otherwise."""
    shape = case.given.tensors[part.input].shape if case.given is not None else []
    size = prod(shape[1:])
    end = part.end if part.end is not None else prod(shape)
    whole = part.stride == 1 and len(shape) > 1 and end - part.offset == size and part.offset % size == 0
    return part.offset // size if whole else None


STARTS = "0, and then the lengths of all bags before it added up (torch.cat([zero, lengths.cumsum(0)[:-1]]))"
NO_ROW = 1 << 31  # larger than the row number of any table


@dataclass(frozen=True)
class _Indexed:
    """The tensor that an index selects from: a constant, whose rows belong to ids, or another tensor."""

    label: str
    name: str
    is_table: bool
    shift: int | None
    offsets: bool

    @classmethod
    def of(cls, index: Index) -> _Indexed:
        """Read the label: `constant city.weight of shape [48, 32]`, `input 0 (args[0])` or `buf1`."""
        first = index.indexed[0] if index.indexed else ""
        name = first.removeprefix("constant ").partition(" of shape")[0]
        computed = first.isidentifier()
        label = f"{first}, which the package computes" if computed else ", ".join(index.indexed)
        name = name if name and not computed else "the tensor"
        return cls(label or "a tensor", name, first.startswith("constant "), index.shift, index.offsets)

    def limits(self, low: int, high: int) -> str:
        """Say which values are allowed, and what they select."""
        if self.offsets:
            return "The first offset of the bags must be 0." if high == 0 else f"The most allowed is {high}."
        return f"This value indexes {self.label}, where {low} to {high} are allowed."

    def past(self, part: InputSlice, facts: events.IndexValues) -> bool:
        """Whether the largest value is one past the end, like a length used as a position."""
        return not self.is_table and facts.max == part.high + 1 and (facts.min or 0) >= part.low

    def doubt(self, part: InputSlice, facts: events.IndexValues, case: DiagnosisState) -> str:
        """Say what else may be wrong: inputs that do not fit together, or a position one past the end."""
        if self.is_table:
            return ""  # its fix says that the table may be too short
        # The dimensions of other inputs that are as long as the indexed tensor, each with the input's label.
        tensors = case.given.tensors if case.given is not None else ()
        sizes = [
            (dim, item.label)
            for item in case.compiled_inputs
            if item.index != part.input and item.index < len(tensors)
            for dim, size in enumerate(tensors[item.index].shape)
            if size == part.high + 1
        ]
        also = f" Dimension {sizes[0][0]} of {sizes[0][1]} has this size." if len(sizes) == 1 else ""
        return f"{also} {facts.max} is one past the end." if self.past(part, facts) else also

    def advice(self, read: str, part: InputSlice, facts: events.IndexValues) -> str:
        """Say what to change: the ids or the table, or the code that computes the positions."""
        low, high, most = first_row(part, facts), part.high, facts.max or 0
        if self.offsets:
            return f"let {read} say where each bag starts: {STARTS}"
        if self.is_table:
            reject = f"reject values of {read} outside {low}..{high}, or map them to a row for unknown ids"
            if most > NO_ROW:
                return f"{reject}; a hash must be reduced to the number of rows"
            if most <= high or self.shift is None:
                return reject
            rows = most - self.shift + 1
            if most == high + 1:  # ids that count from 1, or one id that was not counted
                real = f"if {most} is a real id, give {self.name} {rows} rows"
                return f"if the ids count from 1, subtract 1; {real}; otherwise {reject}"
            return f"{reject}; if the training data has the id {most}, {self.name} needs at least {rows} rows"
        text = f"correct what produces {read}: each value must be a position in {self.name}, {low}..{high}"
        if facts.min == -1 and most <= high:
            text += ". If -1 means no position, index with .clamp(min=0) and mask these results (torch.where)"
        return f"{text}; if it is a length, or counts from 1, subtract 1" if self.past(part, facts) else text

    def wrongly_read(self, row: int) -> str:
        """Say why the nearest allowed value is not a fix."""
        if self.offsets:
            return "start another bag than was meant"
        if self.shift is None:
            return f"be another value, for another part of {self.name}"
        if self.is_table:
            return f"use row {row - self.shift} of {self.name}, which belongs to a different id"
        return f"be position {row - self.shift} of {self.name}, whatever position was meant"


def _replaced(
    parts: Sequence[InputSlice], part: InputSlice, indexed: _Indexed, case: DiagnosisState
) -> Intervention:
    """Clamp all `parts`. The text names the first bad element of `part`, and the row that it then selects."""
    made, facts = _clamp(part, case), case.index_values[part]
    name = name_of(case.compiled_inputs[part.input])
    row = part.high if facts.value > part.high else part.low
    what = f"{name}{facts.index} = {row} instead of {facts.value}"
    if facts.outside > 1:
        what = (
            f"the {facts.outside} values of {name} outside {part.low}..{part.high} moved to the nearest limit"
        )
    if parts[1:]:
        outside_all = sum(case.index_values[each].outside for each in parts)
        what = f"the {outside_all} values of {name} outside their limits moved to the nearest limit"
        made = together(f"input:limits:{part.input}", what, [_clamp(each, case) for each in parts])
    wrong = f"{name}{facts.index} would then {indexed.wrongly_read(row)}"
    return replace(made, what=f"the call with {what}", not_for_shipping=f"A test, not the fix: {wrong}.")


def _computed(candidate: Candidate, error: ErrorFact, single: bool, case: DiagnosisState) -> Suspect:
    producers = [p for source in candidate.sources for p in source.producers]
    inputs = list(dict.fromkeys(label for source in candidate.sources for label in source.inputs))
    guilty = _source(candidate, producers, case)
    part = whole_slice(candidate, case)
    evidence = [said(error), seen("inspect_package", f"the check is at {candidate.location}")]
    fix = test = None
    if part is not None and _outside(part, case):
        facts = case.index_values[part]
        read, allowed = case.compiled_inputs[part.input], f"{part.low}..{part.high}"
        guilty = guilty.model_copy(update={"value": f"{facts.value} at {facts.index}"})
        fact = f"element {facts.index} of {read.label} is {facts.value}; the index that the kernel computes"
        evidence.append(seen("look_at_indices", f"{fact} from it must be in {allowed}"))
        text = f"keep {name_of(read)} to values for which the index that the kernel computes is in {allowed}"
        fix = Fix(text=text)
        # The trial only confirms: the kernel may need other values of these elements.
        test = confirming(_clamp(part, case), case)
    summary = f"Launch {candidate.launch.index} ({candidate.kernel.name}) got an index "
    if case.origin is not None and case.origin.fault_launch == candidate.launch.index:
        summary += "out of bounds"  # the origin adds value, limit, expression and elements
    else:
        summary += f"outside {_range(candidate, case)}"
        summary += f"; the index comes from launch {producers[0]}" if producers else ""
        summary += f"; it depends on {', '.join(inputs[:3])}" if inputs else ""
    return _Index(
        guilty=guilty,
        summary=f"{summary}.",
        evidence=tuple(evidence),
        crashing=crashing(candidate),
        fix=fix,
        intervention=test,
        observed=single,
        weak=not single,
    )


def _source(candidate: Candidate, producers: Sequence[int], case: DiagnosisState) -> Component:
    """The launch that computed the index, or the input or constant that supplied it."""
    at, lines = candidate.launch.index, raising_lines(case) or _lines(candidate)
    if producers:
        maker = case.launches[producers[0]]
        guilty = launch_component(maker.index, maker.kernel, case)
        return guilty.model_copy(update={"model_locations": guilty.model_locations or lines})
    source = candidate.sources[0] if candidate.sources else None
    label = source.label if source is not None and source.kind in ("input", "constant") else ""
    item = next((item for item in case.compiled_inputs if label and item.label == label), None)
    if item is not None:
        return input_component(item, lines, launch=at)
    return component("constant" if label else "kernel", label or candidate.kernel.name, lines, launch=at)


def _range(candidate: Candidate, case: DiagnosisState) -> str:
    """The allowed indices in this call in words, with the value of a size that varies by call."""
    value, bound = bound_value(candidate, case), candidate.bound
    wraps = candidate.wraps
    if bound is None or bound.value is not None:
        return f"{candidate.lowest}..{value - 1 if value is not None else f'{candidate.check.upper} - 1'}"
    words = in_words(bound.expression)
    low = in_words(candidate.check.lower or "0")
    if value is None:
        return f"{f'-({words})' if wraps else low}..{words} - 1"
    size = "; ".join([f"{value} is {words}", *map(str, bound.sizes)])
    return f"{-value if wraps else low}..{value - 1} ({size})"


def crashing(candidate: Candidate) -> Component:
    """The kernel whose check failed, with the line of that check."""
    launch, lines = candidate.launch.index, _lines(candidate)
    return component("kernel", candidate.kernel.name, lines, launch=launch, at=candidate.location)


def _lines(candidate: Candidate) -> list[ModelLocation]:
    return list(candidate.provenance.locations[:6])


def detect_operator_index(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs with values outside an operator's bound, and launches that computed such an index."""
    error = refused_index(case)
    found = operator_indices(case) if error is not None else []
    for index in found:
        if error is not None and _outside(index.part, case):
            yield _by_input(index, error, case)
    # A device assertion may come from an operator that the program itself calls.
    if error is not None and not error.family.late and len(found) == 1 and found[0].maker is not None:
        suspect = _by_maker(found[0], said(error), raising_lines(case), case)
        yield with_origin(suspect, case, found[0].launch.index)


def detect_beyond(case: DiagnosisState) -> Iterator[Suspect]:
    """A suspect for each watched launch that got an index beyond the tensor that it writes."""
    # If the wrapper names no lines, use those of the operator that raises in eager mode.
    refused = [event.op for event in case.eager_events(events.NodeRaised)[:1]]
    same = any(word in op for word in INDEXING for op in refused)
    for index in watched_indices(case):
        lines = launch_lines(index.launch.index, case) or (raising_lines(case) if same else [])
        fact = f"{index.variable} holds {index.holds}; {index.low} to {index.high} can be written"
        yield with_origin(
            _by_maker(index, seen("dump_kernel_io", fact), lines, case), case, index.launch.index
        )


def _by_maker(index: Index, shown: Evidence, lines: Sequence[ModelLocation], case: DiagnosisState) -> Suspect:
    """An operator's index outside its limit. Blame the input, or the launch that computed the index."""
    launch, maker, made = index.launch, index.maker, ""
    allowed = f"{index.low}..{index.high}"
    value = f"{index.holds} (allowed: {allowed})" if index.holds else None
    item = next((item for item in case.compiled_inputs if item.name == index.variable), None)
    if item is not None:
        guilty = input_component(item, lines or case.call_locations, value, launch.index)
    elif maker is not None:
        party = launch_component(maker.index, maker.kernel, case)
        known = list(dict.fromkeys([*lines, *party.model_locations])) or case.call_locations
        guilty = party.model_copy(update={"model_locations": known, "value": value})
        made = f"; launch {maker.index} ({maker.kernel}) computed it{depends_on(maker.index, case, ' from')}"
    else:
        at = lines or case.call_locations
        guilty = component("kernel", index.variable, at, value=value, launch=launch.index)
    holder = name_of(item) if item is not None else index.variable
    told = f"{holder} holds {index.holds}, but" if index.holds else f"for {holder}, only"
    lost = "" if launch.checked else ", and its error is ignored"
    return _Index(
        guilty=guilty,
        summary=f"Launch {launch.index} ({launch.kernel}) got an index outside its limit{lost}: "
        f"{told} {index.low} to {index.high} are allowed{made}.",
        evidence=(
            shown,
            seen("inspect_package", f"launch {launch.index} takes {holder} as an index{lost}{made}"),
        ),
        crashing=_launch(index, case),
        fix=Fix(text=f"keep {holder} in {allowed}{'; torch >= 2.14 raises' if lost else ''}"),
    )


def _launch(index: Index, case: DiagnosisState) -> Component:
    """The launch whose operator got an index, with the line that raises in eager mode, if known."""
    launch = index.launch
    lines = raising_lines(case) or launch_lines(launch.index, case) or case.call_locations
    return component("kernel", launch.kernel, lines, launch=launch.index)


_IN_EAGER = (
    "index out of range",
    "out of bounds",
    "index_select",
    "indices should be",
    "out of range in self",
    "valid range [",
    "< index_size to be true",
)


_IN_OPERATOR = "correct how the operator computes this index, or let it reject the values that lead to it"


def detect_raised(case: DiagnosisState) -> Iterator[Suspect]:
    """An index that the model also rejects in eager mode: the fault is in the model or its inputs."""
    for event in case.eager_events(events.NodeRaised)[:1]:
        text = first_line(event)
        if not any(part in text for part in _IN_EAGER) or "tuple index" in text:
            continue
        wrapped = (each for each in case.eager_events(events.NodeOverflow) if each.node in event.overflowed)
        if (overflow := next(wrapped, None)) is not None:
            suspect = of_overflow(overflow, case)
            index = f" The index of {event.op} is computed from it."
            yield replace(suspect, category="index_out_of_bounds", summary=suspect.summary + index)
            return
        of_torch = event.op.startswith("aten.")  # another operator computes the index itself
        yield _Index(
            guilty=component("op", event.op, lines_of(event), value=text),
            summary=f"{event.op} uses an index outside its tensor, in eager mode too: {text}.",
            level=CausalLevel.FAULT_SITE if of_torch else CausalLevel.BAD_VALUE,
            evidence=(seen("interpret", f"{event.node} ({event.op}) raised: {text}"),),
            fix=None if of_torch else Fix(text=_IN_OPERATOR),
        )
