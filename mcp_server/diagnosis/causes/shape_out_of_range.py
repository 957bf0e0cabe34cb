"""A check of a value that only the data tells (`.item()`, the length of a `nonzero`): who gave that value."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.causes.eager import raising_lines
from mcp_server.diagnosis.components import launch_component, said
from mcp_server.diagnosis.interventions.input import Leaf, keep_in_range
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.signature import CompiledInput
from mcp_server.package.symbols import Symbol, names_in, origins

_ABOVE = re.compile(r"(?:(?P<name>\w+) (?P<sign><=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s>>=?) (?P<v>\w+))")
_BELOW = re.compile(r"(?:(?P<name>\w+) (?P<sign>>=?) (?P<number>-?\d+)|(?P<n>-?\d+) (?P<s><=?) (?P<v>\w+))")
LARGEST = 2**31 - 1  # of a size, where the check has no limit of its own


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, for the first symbol of the check that is read from a tensor."""
    error = _broken(case)
    if error is None or case.view is None:
        return
    symbols = case.view.wrapper.symbols
    for name in names_in(error.fields["condition"]):
        source = next((s for s in origins(name, symbols) if s.tensor and symbols[name].unbacked), None)
        if source is not None:
            yield from _from(source, error, case)
            return


def _broken(case: DiagnosisState) -> ErrorFact | None:
    """The first check of that kind that failed."""
    roots = (facts.root for _, facts in case.logs)
    return next((root for root in roots if root is not None and root.family.id == "runtime_assert"), None)


def _from(source: Symbol, error: ErrorFact, case: DiagnosisState) -> Iterator[Suspect]:
    assert case.view is not None and case.package is not None and source.tensor is not None
    item = next((i for i in case.package.inputs if i.name == source.tensor), None)
    writers = case.view.writers_of_name.get(source.tensor, ())
    if item is not None:
        yield _by_input(item, error, case)
    elif writers:
        yield _by_launch(writers[0], error, case)


def _by_input(item: CompiledInput, error: ErrorFact, case: DiagnosisState) -> Suspect:
    told = _told(error)
    ends = limits(error.fields["condition"])
    leaf = Leaf(item.index, item.path or item.name)
    return Suspect(
        category="shape_out_of_range",
        guilty=Component(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=told,
            model_locations=raising_lines(case) or case.call_locations,
        ),
        summary=f"The value of {item.label} is used as a size, and it is {told}.",
        level=CausalLevel.CALL,
        evidence=(
            said(error),
            Evidence(step="inspect_package", fact=f"the value that is checked is read from {item.label}"),
        ),
        fix=Fix(action=f"pass a value that keeps {error.fields['condition']}, or export with a wider range"),
        intervention=keep_in_range(leaf, ends.get("low", -LARGEST), ends.get("high", LARGEST))
        if ends
        else None,
    )


def _by_launch(number: int, error: ErrorFact, case: DiagnosisState) -> Suspect:
    """What a launch computed is the value, or has it as its length."""
    assert case.view is not None
    launch = case.view.wrapper.launches[number]
    behind = case.view.inputs_behind(number)
    depends = f", from {', '.join(behind[:3])}" if behind else ""
    return Suspect(
        category="shape_out_of_range",
        guilty=launch_component(number, launch.kernel, case),
        summary=f"A size that launch {number} ({launch.kernel}) makes of data{depends} is {_told(error)}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="inspect_package", fact=f"the size comes from launch {number}{depends}"),
        ),
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


def _told(error: ErrorFact) -> str:
    value = error.fields.get("value")
    condition = error.fields["condition"]
    return f"{value} where {condition} is assumed" if value else f"not as assumed ({condition})"
