"""A whole number divided by zero in a kernel: which launch divides by what, and who gave the zero."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.causes.eager import lines_of
from mcp_server.diagnosis.components import launch_component
from mcp_server.diagnosis.interventions.base import Intervention, Where
from mcp_server.diagnosis.interventions.input import Leaf, replace_where
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import InputSlice, divisor_parts, failed_divisions, failure, raised
from mcp_server.model import Category, Component, Evidence, Fix, ModelLocation
from mcp_server.package.assertion import Division
from mcp_server.package.provenance import DIVIDES
from mcp_server.package.signature import CompiledInput


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for each input with a zero that is a divisor; else for each division that it may be."""
    seen = failure(case)
    found = failed_divisions(case)
    if seen is None or not found or _unlooked(found, case):
        return
    zeros = [(d, p) for d in found for p in divisor_parts(d, case) if _zeros(p, case)]
    for division, part in zeros:
        yield _by_input(division, part, seen, case)
    if not zeros:
        for division in found:
            if not _cleared(division, case):
                yield _computed(division, len(found) == 1, seen, case)


def _unlooked(found: tuple[Division, ...], case: DiagnosisState) -> bool:
    """Whether elements that are divisors are still to be looked at."""
    seen = case.call is None or case.given is None or "look_at_indices" in case.done
    return not seen and any(divisor_parts(division, case) for division in found)


def _zeros(part: InputSlice, case: DiagnosisState) -> int:
    return int(case.index_values.get(part, {}).get("outside", 0))


def _cleared(division: Division, case: DiagnosisState) -> bool:
    """Whether the divisors are elements of an input that were all seen to be no zero."""
    parts = divisor_parts(division, case)
    return bool(parts) and all(part in case.index_values for part in parts)


def _by_input(division: Division, part: InputSlice, seen: Evidence, case: DiagnosisState) -> Suspect:
    assert case.package is not None
    item, facts = case.package.inputs[part.input], case.index_values[part]
    name, at = item.path or item.name, f"element {facts['index']}"
    fact = f"{at} of {item.label} is 0; {facts['outside']} of {facts['elements']} are"
    return Suspect(
        category="input_mismatch",
        guilty=Component(
            kind="input",
            name=name,
            input_index=item.index,
            value=f"0 at {facts['index']}",
            model_locations=_lines(division, case),
        ),
        summary=f"{at[:1].upper()}{at[1:]} of {item.label} is 0, and {_launch(division)} divides by it.",
        level=CausalLevel.CALL,
        evidence=(seen, Evidence(step="look_at_indices", fact=fact), *_shown(division, case)),
        crashing=_party(division, case),
        fix=Fix(
            action=f"keep zeros out of {name}, or let the model divide by another number where it is 0",
            before=lines[0].code if (lines := _lines(division, case)) else None,
        ),
        intervention=_without_zeros(item),
    )


def _computed(division: Division, single: bool, seen: Evidence, case: DiagnosisState) -> Suspect:
    """No element of an input is the divisor itself: a constant is, or the model computes it."""
    category, origin = _origin(division)
    party = _party(division, case)
    return Suspect(
        category=category,
        guilty=_constant(division, case) or party,
        summary=f"{_launch(division).capitalize()} divides a whole number by zero; the divisor {origin}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(seen, *_shown(division, case)),
        crashing=party,
        fix=Fix(
            action="let the model divide by another number where the divisor is 0",
            before=lines[0].code if (lines := _lines(division, case)) else None,
        ),
        intervention=_confirming(division, case),
        observed=single,
        weak=not single,
    )


def _origin(division: Division) -> tuple[Category, str]:
    """The category, and where the divisor comes from in words."""
    constants = [source.label for source in division.sources if source.kind == "constant"]
    if division.inputs:
        how = "an element of" if division.plain else "computed from"
        return "input_mismatch", f"is {how} {', '.join(division.inputs[:3])}"
    if constants:
        return "constants", f"comes from {', '.join(dict.fromkeys(constants))}"
    return "script_error", "comes from no input: it is a number of the model, written into the code"


def _constant(division: Division, case: DiagnosisState) -> Component | None:
    """The only constant that the divisors are elements of."""
    source = division.sources[0] if division.plain else None
    known = case.package.constants if case.package is not None else ()
    fqn = next((c.fqn for c in known if source is not None and c.name == source.tensor), None)
    if not fqn or division.inputs:
        return None
    return Component(
        kind="constant",
        name=fqn,
        launch_index=division.launch.index,
        model_locations=_lines(division, case),
    )


def _party(division: Division, case: DiagnosisState) -> Component:
    party = launch_component(division.launch.index, division.launch.kernel, case)
    return party.model_copy(
        update={"generated_location": division.location, "model_locations": _lines(division, case)}
    )


def _lines(division: Division, case: DiagnosisState) -> list[ModelLocation]:
    """The line that raises in eager mode where that is known, else the launch's, first those that divide."""
    event = raised(case)
    known = lines_of(event) if event is not None else []
    own = launch_component(division.launch.index, division.launch.kernel, case).model_locations
    return known or sorted(own, key=lambda line: DIVIDES.search(line.code) is None)


def _launch(division: Division) -> str:
    return f"launch {division.launch.index} ({division.launch.kernel})"


def _shown(division: Division, case: DiagnosisState) -> Iterator[Evidence]:
    yield Evidence(step="inspect_package", fact=f"{division.location}: {division.code[:200]}")
    event = raised(case)
    if event is not None:
        fact = f"{event['node']} ({event['op']}) divides by zero in eager mode, too"
        yield Evidence(step="interpret", fact=fact)


def _confirming(division: Division, case: DiagnosisState) -> Intervention | None:
    """A test that can only confirm: the model may compute a zero of other numbers as well."""
    inputs = case.package.inputs if case.package is not None else ()
    item = next((item for item in inputs if division.inputs == (item.label,)), None)
    if item is None or not (item.dtype or "").startswith(("int", "uint")):
        return None
    test = _without_zeros(item)
    trial = case.trials.get(test.key)
    return test if trial is None or trial.proves else None


def _without_zeros(item: CompiledInput) -> Intervention:
    return replace_where(Leaf(item.index, item.path or item.name), Where(equals=0), 1)
