"""Values that break what the package assumes of them: a size that only the data tells, a divisor of zero."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.causes.common import (
    confirming,
    depends_on,
    input_component,
    leaf_of,
    lines_of,
    name_of,
    raising_lines,
    seen,
)
from mcp_server.diagnosis.components import launch_component, said
from mcp_server.diagnosis.interventions.base import Intervention, Where
from mcp_server.diagnosis.interventions.input import keep_in_range, replace_where
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import InputSlice, divisor_parts, failed_divisions, failure, raised
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Category, Component, Evidence, Fix, ModelLocation
from mcp_server.package.assertion import Division
from mcp_server.package.provenance import DIVIDES
from mcp_server.package.signature import CompiledInput
from mcp_server.package.symbols import names_in, origins

_ABOVE = re.compile(r"(?:(?P<name>\w+) (?P<sign><=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s>>=?) (?P<v>\w+))")
_BELOW = re.compile(r"(?:(?P<name>\w+) (?P<sign>>=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s><=?) (?P<v>\w+))")
LARGEST = 2**31 - 1  # of a size, where the check has no limit of its own


def detect_size(case: DiagnosisState) -> Iterator[Suspect]:
    """A failed check of a value that only the data tells (`.item()`, the length of a `nonzero`).

    Who gave that value, for the first symbol of the check that is read from a tensor.
    """
    roots = [facts.root for _, facts in case.logs if facts.root is not None]
    error = next((root for root in roots if root.family.id == "runtime_assert"), None)
    if error is None or case.view is None or case.package is None:
        return
    symbols = case.view.wrapper.symbols
    for name in names_in(error.fields["condition"]):
        sources = origins(name, symbols) if name in symbols and symbols[name].unbacked else []
        tensor = next((source.tensor for source in sources if source.tensor), None)
        if tensor is None:
            continue
        item = next((i for i in case.package.inputs if i.name == tensor), None)
        writers = case.view.writers_of_name.get(tensor, ())
        if item is not None:
            yield _size_of_input(item, error, case)
        elif writers:
            yield _size_of_launch(writers[0], error, case)
        return


def _assumed(error: ErrorFact) -> str:
    value, condition = error.fields.get("value"), error.fields["condition"]
    return f"{value} where {condition} is assumed" if value else f"not as assumed ({condition})"


def _size_of_input(item: CompiledInput, error: ErrorFact, case: DiagnosisState) -> Suspect:
    condition = error.fields["condition"]
    ends = limits(condition)
    kept = keep_in_range(leaf_of(item), ends.get("low", -LARGEST), ends.get("high", LARGEST))
    return Suspect(
        category="shape_out_of_range",
        guilty=input_component(item, raising_lines(case) or case.call_locations, _assumed(error)),
        summary=f"The value of {item.label} is used as a size, and it is {_assumed(error)}.",
        level=CausalLevel.CALL,
        evidence=(
            said(error),
            seen("inspect_package", f"the value that is checked is read from {item.label}"),
        ),
        fix=Fix(action=f"pass a value that keeps {condition}, or export with a wider range"),
        intervention=kept if ends else None,
    )


def _size_of_launch(number: int, error: ErrorFact, case: DiagnosisState) -> Suspect:
    """What a launch computed is the value, or has it as its length."""
    assert case.view is not None
    launch = case.view.wrapper.launches[number]
    depends = depends_on(number, case, ", from")
    return Suspect(
        category="shape_out_of_range",
        guilty=launch_component(number, launch.kernel, case),
        summary=f"A size that launch {number} ({launch.kernel}) makes of data{depends} is {_assumed(error)}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(said(error), seen("inspect_package", f"the size comes from launch {number}{depends}")),
        fix=Fix(
            action=f"check the data for {error.fields['condition']} before the call, or allow it at export"
        ),
    )


def limits(condition: str) -> dict[str, int]:
    """`low` and `high`, inclusive, that a comparison with one number allows; empty for any other."""
    found = {}
    for name, pattern, step in (("high", _ABOVE, -1), ("low", _BELOW, 1)):
        match = pattern.fullmatch(condition.strip())
        if match is not None:
            strict = len(match["sign"] or match["s"]) == 1
            found[name] = int(match["number"] or match["n"]) + (step if strict else 0)
    return found


def detect_division(case: DiagnosisState) -> Iterator[Suspect]:
    """A whole number divided by zero: each input with a zero that is a divisor, else each such division."""
    error = failure(case)
    found = failed_divisions(case)
    divisors = [(division, divisor_parts(division, case)) for division in found]
    looked_at = case.call is None or case.given is None or "look_at_indices" in case.done
    if error is None or (any(parts for _, parts in divisors) and not looked_at):
        return
    zeros = [(d, p) for d, parts in divisors for p in parts if case.index_values.get(p, {}).get("outside", 0)]
    for division, part in zeros:
        yield _by_input(division, part, error, case)
    for division, parts in divisors if not zeros else ():
        if not parts or any(part not in case.index_values for part in parts):
            yield _computed(division, len(found) == 1, error, case)


def _by_input(division: Division, part: InputSlice, error: Evidence, case: DiagnosisState) -> Suspect:
    assert case.package is not None
    item, facts = case.package.inputs[part.input], case.index_values[part]
    at, lines = f"element {facts['index']}", _lines(division, case)
    fact = f"{at} of {item.label} is 0; {facts['outside']} of {facts['elements']} are"
    return Suspect(
        category="input_mismatch",
        guilty=input_component(item, lines, f"0 at {facts['index']}"),
        summary=f"{at[:1].upper()}{at[1:]} of {item.label} is 0, and {_launch(division)} divides by it.",
        level=CausalLevel.CALL,
        evidence=(error, seen("look_at_indices", fact), *_shown(division, case)),
        crashing=_party(division, case),
        fix=Fix(
            action=f"keep zeros out of {name_of(item)}, or let the model divide by another number where it "
            "is 0",
            before=lines[0].code if lines else None,
        ),
        intervention=_without_zeros(item),
    )


def _computed(division: Division, single: bool, error: Evidence, case: DiagnosisState) -> Suspect:
    """No element of an input is the divisor itself: a constant is, or the model computes it."""
    party, lines = _party(division, case), _lines(division, case)
    constants = [source.label for source in division.sources if source.kind == "constant"]
    category: Category = "script_error"
    origin = "comes from no input: it is a number of the model, written into the code"
    if division.inputs:
        how = "an element of" if division.plain else "computed from"
        category, origin = "input_mismatch", f"is {how} {', '.join(division.inputs[:3])}"
    elif constants:
        category, origin = "constants", f"comes from {', '.join(dict.fromkeys(constants))}"
    # It can only confirm: the model may compute a zero of other numbers as well.
    inputs = case.package.inputs if case.package is not None else ()
    item = next((item for item in inputs if division.inputs == (item.label,)), None)
    whole = item is not None and (item.dtype or "").startswith(("int", "uint"))
    test = confirming(_without_zeros(item), case) if item is not None and whole else None
    return Suspect(
        category=category,
        guilty=_constant(division, lines, case) or party,
        summary=f"{_launch(division).capitalize()} divides a whole number by zero; the divisor {origin}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(error, *_shown(division, case)),
        crashing=party,
        fix=Fix(
            action="let the model divide by another number where the divisor is 0",
            before=lines[0].code if lines else None,
        ),
        intervention=test,
        observed=single,
        weak=not single,
    )


def _constant(division: Division, lines: list[ModelLocation], case: DiagnosisState) -> Component | None:
    """The only constant that the divisors are elements of."""
    source = division.sources[0] if division.plain else None
    known = case.package.constants if case.package is not None else ()
    fqn = next((c.fqn for c in known if source is not None and c.name == source.tensor), None)
    if not fqn or division.inputs:
        return None
    return Component(kind="constant", name=fqn, launch_index=division.launch.index, model_locations=lines)


def _party(division: Division, case: DiagnosisState) -> Component:
    party = launch_component(division.launch.index, division.launch.kernel, case)
    return party.model_copy(
        update={"generated_location": division.location, "model_locations": _lines(division, case)}
    )


def _lines(division: Division, case: DiagnosisState) -> list[ModelLocation]:
    """The line that raises in eager mode where that is known, else the launch's, first those that divide."""
    event = raised(case)
    own = launch_component(division.launch.index, division.launch.kernel, case).model_locations
    known = lines_of(event) if event is not None else []
    return known or sorted(own, key=lambda line: DIVIDES.search(line.code) is None)


def _launch(division: Division) -> str:
    return f"launch {division.launch.index} ({division.launch.kernel})"


def _shown(division: Division, case: DiagnosisState) -> Iterator[Evidence]:
    yield seen("inspect_package", f"{division.location}: {division.code[:200]}")
    event = raised(case)
    if event is not None:
        yield seen("interpret", f"{event['node']} ({event['op']}) divides by zero in eager mode, too")


def _without_zeros(item: CompiledInput) -> Intervention:
    return replace_where(leaf_of(item), Where(equals=0), 1)
