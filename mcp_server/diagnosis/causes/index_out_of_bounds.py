"""An index outside its bound: in a kernel, in an operator, or while the compiler tried a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mcp_server.diagnosis.causes.eager import raising_lines
from mcp_server.diagnosis.components import said
from mcp_server.diagnosis.interventions.base import Intervention, Where
from mcp_server.diagnosis.interventions.input import Leaf, Places, keep_in_range, replace_where
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import (
    CheckedInput,
    InputSlice,
    OperatorIndex,
    bound_value,
    candidates,
    checked_inputs,
    index_error,
    operator_indices,
    refused_index,
    whole_slice,
)
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.assertion import Candidate
from mcp_server.package.launches import Launch
from mcp_server.package.signature import CompiledInput
from mcp_server.plurals import counted, is_, share


def detect_index(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs with a value that fails the very assertion; else the candidates that the package admits."""
    error = index_error(case)
    if error is None:
        return
    bad = [suspect for suspect in checked_inputs(case) if _outside(suspect.part, case)]
    for suspect in bad:
        yield _index_by_input(suspect, error, case)
    if not bad:
        yield from _by_nan(error, case)
        yield from _by_kernel(error, case)


def _by_nan(error: ErrorFact, case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs with NaN from which an index is computed: as an integer, NaN is the least there is."""
    labels = {label for c in candidates(case) for source in c.sources for label in source.inputs}
    for item in case.package.inputs if case.package is not None else ():
        count = _nan(item, case)
        if item.label in labels and count:
            yield _of_nan(item, count, error, case)


def _nan(item: CompiledInput, case: DiagnosisState) -> int:
    """How many NaN the call gives for that input."""
    paths = case.given.paths if case.given is not None else ()
    place = paths.index(item.path) if item.path in paths else len(case.leaves)
    return int(case.leaves[place].get("nan") or 0) if place < len(case.leaves) else 0


def _of_nan(item: CompiledInput, count: int, error: ErrorFact, case: DiagnosisState) -> Suspect:
    fact = f"{item.label} holds {count} NaN, and the index that is out of its bound is computed from it"
    return Suspect(
        category="index_out_of_bounds",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=f"{count} NaN",
            model_locations=raising_lines(case) or case.call_locations,
        ),
        summary=f"{fact[:1].upper()}{fact[1:]}.",
        level=CausalLevel.CALL,
        evidence=(
            said(error),
            Evidence(step="check_devices", fact=fact),
        ),
        fix=Fix(action=f"reject or clean NaN in {item.path or item.name} before the call"),
        intervention=replace_where(Leaf(item.index, item.path or item.name), Where(non_finite=True), 0.0),
        observed=False,
    )


def _outside(part: InputSlice, case: DiagnosisState) -> int:
    return int(case.index_values.get(part, {}).get("outside", 0))


def _index_by_input(suspect: CheckedInput, error: ErrorFact, case: DiagnosisState) -> Suspect:
    facts = case.index_values[suspect.part]
    assert case.package is not None
    item = case.package.inputs[suspect.part.input]
    low, high = suspect.part.low, suspect.part.high
    where = f"element {facts['index']} of {item.label} is {facts['value']}"
    indexed = ", ".join(suspect.candidate.indexed) or "a tensor"
    return Suspect(
        category="index_out_of_bounds",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=f"{facts['value']} at {facts['index']} (allowed: {low}..{high})",
            elements=[f"{item.path or item.name}{facts['index']} = {facts['value']}"],
            model_locations=_model_lines(suspect.candidate, case) or case.call_locations,
        ),
        summary=f"{where[:1].upper()}{where[1:]}. It indexes {indexed}, where {low} to {high} are allowed.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(
                step="look_at_indices",
                fact=f"{where}; {share(facts['outside'], facts['elements'], 'value')} outside {low}..{high}",
                source=_looked_at(suspect.part),
            ),
            Evidence(
                step="inspect_package",
                fact=f"launch {suspect.candidate.launch.index} ({suspect.candidate.kernel.name}) checks it "
                f"at {suspect.candidate.location}",
            ),
        ),
        crashing=crashing(suspect.candidate),
        fix=_fix(item.path or f"inputs[{item.index}]", suspect, facts),
        intervention=clamp(suspect.part, case),
    )


def _looked_at(part: InputSlice) -> str:
    """Which elements of the inputs were read; the kernel may index with some of them only."""
    if part.stride == 1 and part.offset == 0:
        return "the values of the inputs"
    return f"the values of the inputs, flattened [{part.offset}::{part.stride}]"


def clamp(part: InputSlice, case: DiagnosisState) -> Intervention:
    """The call with the elements of `part` that are outside made the nearest bound; all others stay."""
    assert case.package is not None
    item = case.package.inputs[part.input]
    places = Places(part.stride, part.offset) if (part.stride, part.offset) != (1, 0) else Places()
    return keep_in_range(Leaf(part.input, item.path or item.name), part.low, part.high, places)


def _fix(name: str, suspect: CheckedInput, facts: dict[str, Any]) -> Fix:
    low, high = suspect.part.low, suspect.part.high
    larger = f", or make the indexed dimension larger than {facts['max']}" if facts["max"] > high else ""
    return Fix(
        action=f"keep the values of {name} in {low}..{high} where they are made{larger}",
        before=name,
        after=f"{name}.clamp({low}, {high})  # or reject the request",
    )


def _by_kernel(error: ErrorFact, case: DiagnosisState) -> Iterator[Suspect]:
    """No input value is to blame as far as is known: the launches that hold the check."""
    found = candidates(case)
    single = len({(c.launch.index, c.check.line) for c in found}) == 1
    for candidate in found[:4]:
        if not _cleared(candidate, case):
            yield _computed(candidate, error, single, case)


def _cleared(candidate: Candidate, case: DiagnosisState) -> bool:
    """Whether every input element that this check can see was looked at and is inside."""
    parts = [
        s.part
        for s in checked_inputs(case)
        if s.candidate.launch == candidate.launch and s.candidate == candidate
    ]
    return bool(parts) and all(part in case.index_values and not _outside(part, case) for part in parts)


def _computed(candidate: Candidate, error: ErrorFact, single: bool, case: DiagnosisState) -> Suspect:
    producers = [p for source in candidate.sources for p in source.producers]
    inputs = list(dict.fromkeys(label for source in candidate.sources for label in source.inputs))
    bound = bound_value(candidate, case)
    behind = f"; the index comes from launch {producers[0]}" if producers else ""
    part = whole_slice(candidate, case)
    outside = part is not None and _outside(part, case) > 0
    guilty = _guilty(candidate, producers, case)
    return Suspect(
        category="index_out_of_bounds",
        guilty=guilty.model_copy(update={"value": _first(part, case)}) if part and outside else guilty,
        summary=f"Launch {candidate.launch.index} ({candidate.kernel.name}) got an index outside "
        f"{candidate.lowest}..{bound - 1 if bound is not None else f'{candidate.check.upper} - 1'}{behind}"
        f"{'; it depends on ' + ', '.join(inputs[:3]) if inputs else ''}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="inspect_package", fact=f"the check is at {candidate.location}"),
            *((Evidence(step="look_at_indices", fact=_first(part, case)),) if part and outside else ()),
        ),
        crashing=crashing(candidate),
        fix=Fix(action=f"keep these values in {part.low}..{part.high}") if part and outside else None,
        intervention=_clamp_whole(part, case) if part and outside else None,
        observed=single,
        weak=not single,
    )


def _first(part: InputSlice, case: DiagnosisState) -> str:
    """The first element outside the bound of the index that is made of it."""
    facts = case.index_values[part]
    return f"{facts['value']} at {facts['index']} (the index needs {part.low}..{part.high})"


def _clamp_whole(part: InputSlice, case: DiagnosisState) -> Intervention | None:
    """A test that can only confirm: what the kernel does to the elements may need other values."""
    test = clamp(part, case)
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None


def _guilty(candidate: Candidate, producers: list[int], case: DiagnosisState) -> Component:
    """The launch that computed the index; the input or constant behind it where nothing computed it."""
    if producers and case.view is not None:
        launch = case.view.wrapper.launches[producers[0]]
        lines = case.view.provenance(launch).locations
        return Component(
            kind="kernel", name=launch.kernel, launch_index=launch.index, model_locations=list(lines[:2])
        )
    source = candidate.sources[0] if candidate.sources else None
    kinds = {"input": "input", "constant": "constant"}
    name = source.label if source and source.kind in kinds else candidate.kernel.name
    item = next((i for i in case.package.inputs if i.label == name), None) if case.package else None
    return Component(
        kind=kinds.get(source.kind if source else "", "kernel"),  # type: ignore[arg-type]
        name=(item.path or item.name) if item is not None else name,
        input_index=item.index if item is not None else None,
        launch_index=candidate.launch.index,
        model_locations=_model_lines(candidate, case),
    )


def crashing(candidate: Candidate) -> Component:
    """The kernel whose check failed, with the line of the check."""
    return Component(
        kind="kernel",
        name=candidate.kernel.name,
        launch_index=candidate.launch.index,
        generated_location=candidate.location,
        model_locations=_index_lines(candidate),
    )


def _model_lines(candidate: Candidate, case: DiagnosisState) -> list[ModelLocation]:
    """The line that raises in eager mode where that is known, else those of the kernel."""
    return raising_lines(case) or _index_lines(candidate)


def _index_lines(candidate: Candidate) -> list[ModelLocation]:
    return list(candidate.provenance.locations[:6])


def detect_operator_index(case: DiagnosisState) -> Iterator[Suspect]:
    """Inputs with a value outside the bound; launches that computed an index where no input did."""
    error = refused_index(case)
    if error is None:
        return
    found = operator_indices(case)
    computed = [index for index in found if index.producers]
    for index in found:
        if index.part is not None and case.index_values.get(index.part, {}).get("outside"):
            yield _operator_index_by_input(index, error, case)
    if len(computed) == len(found) == 1:
        yield _by_launch(computed[0], error, case)


def _operator_index_by_input(index: OperatorIndex, error: ErrorFact, case: DiagnosisState) -> Suspect:
    assert index.part is not None and case.package is not None
    facts = case.index_values[index.part]
    item = case.package.inputs[index.part.input]
    where = f"element {facts['index']} of {item.label} is {facts['value']}"
    return Suspect(
        category="index_out_of_bounds",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=f"{facts['value']} at {facts['index']} (allowed: 0..{index.part.high})",
            model_locations=_operator_index_lines(index.launch, case),
        ),
        summary=f"{where[:1].upper()}{where[1:]}, and {index.launch.callee} allows 0 to {index.part.high}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(
                step="look_at_indices",
                fact=f"{where}; {counted(facts['outside'], 'value')} {is_(facts['outside'])} outside",
            ),
        ),
        crashing=_launch(index.launch, case),
        fix=Fix(action=f"keep these values in 0..{index.part.high} where they are made"),
        intervention=clamp(index.part, case),
    )


def _by_launch(index: OperatorIndex, error: ErrorFact, case: DiagnosisState) -> Suspect:
    assert case.view is not None
    maker = case.view.wrapper.launches[index.producers[-1]]
    behind = case.view.inputs_behind(maker.index)
    inputs = f"; it depends on {', '.join(behind[:3])}" if behind else ""
    value = error.fields.get("value", "")
    given = f"{value}, where 0 to {index.bound - 1} are allowed" if value else ""
    return Suspect(
        category="index_out_of_bounds",
        guilty=_maker(maker, case).model_copy(update={"value": given or None}),
        summary=f"Launch {maker.index} ({maker.kernel}) computes the index of {index.launch.callee}"
        f"{': ' if given else ''}{given}{inputs}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="inspect_package", fact=f"launch {maker.index} writes {index.argument.target}"),
        ),
        crashing=_launch(index.launch, case),
        fix=Fix(action=f"keep what {maker.kernel} computes in 0..{index.bound - 1}"),
    )


def _maker(launch: Launch, case: DiagnosisState) -> Component:
    """The launch with its own lines, too: the one that eager mode refuses only uses the index."""
    assert case.view is not None
    lines = [*_operator_index_lines(launch, case), *case.view.provenance(launch).locations[:3]]
    known = list({(line.file, line.line): line for line in lines}.values())
    return _launch(launch, case).model_copy(update={"model_locations": known})


def _launch(launch: Launch, case: DiagnosisState) -> Component:
    return Component(
        kind="kernel",
        name=launch.kernel,
        launch_index=launch.index,
        model_locations=_operator_index_lines(launch, case),
    )


def _operator_index_lines(launch: Launch, case: DiagnosisState) -> list[ModelLocation]:
    assert case.view is not None
    own = list(case.view.provenance(launch).locations[:3])
    return raising_lines(case) or own or case.call_locations


def detect_generated(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the kernel whose generated file holds the failed assertion."""
    error, kernel = index_error(case), case.generated
    if error is None or kernel is None:
        return
    party = Component(
        kind="kernel",
        name=kernel.name,
        generated_location=f"{kernel.file}:{kernel.line}",
        model_locations=[*kernel.model, *case.failing_locations],
    )
    yield Suspect(
        category="index_out_of_bounds",
        guilty=party,
        summary=f"{kernel.name} met an index outside its bound while the compiler tried it on synthetic "
        "tensors: the model can compute such an index from values that its inputs may have.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="read_generated_kernel", fact=kernel.code, source=f"{kernel.file}:{kernel.line}"),
        ),
        crashing=party,
        fix=Fix(
            action="keep the computed index within the size of what it indexes, in the model; to compile all "
            "the same, set triton.autotune_at_compile_time to False",
        ),
    )
