"""An operator that refused an index: the input that holds it, or the launch that computed it."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.eager import raising_lines
from mcp_server.diagnosis.detectors.index import clamp
from mcp_server.diagnosis.operator_index import OperatorIndex, operator_indices, refused_index
from mcp_server.diagnosis.quoting import said
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence, Fix, ModelLocation, Party
from mcp_server.package.launches import Launch


def detect(case: Case) -> Iterator[Suspect]:
    """Inputs with a value outside the bound; launches that computed an index where no input did."""
    error = refused_index(case)
    if error is None:
        return
    found = operator_indices(case)
    computed = [index for index in found if index.producers]
    for index in found:
        if index.part is not None and case.index_values.get(index.part, {}).get("outside"):
            yield _by_input(index, error, case)
    if len(computed) == len(found) == 1:
        yield _by_launch(computed[0], error, case)


def _by_input(index: OperatorIndex, error: ErrorFact, case: Case) -> Suspect:
    assert index.part is not None and case.package is not None
    facts = case.index_values[index.part]
    item = case.package.inputs[index.part.input]
    where = f"element {facts['index']} of {item.label} is {facts['value']}"
    return Suspect(
        category="index_out_of_bounds",
        guilty=Party(
            kind="input",
            name=item.path or item.name,
            input_index=item.index,
            value=f"{facts['value']} at {facts['index']} (allowed: 0..{index.part.high})",
            model_locations=_lines(index.launch, case),
        ),
        summary=f"{where[:1].upper()}{where[1:]}, and {index.launch.callee} allows 0 to {index.part.high}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            said(error),
            Evidence(step="look_at_indices", fact=f"{where}; {facts['outside']} are outside"),
        ),
        crashing=_launch(index.launch, case),
        fix=Fix(action=f"keep these values in 0..{index.part.high} where they are made"),
        intervention=clamp(index.part, case),
    )


def _by_launch(index: OperatorIndex, error: ErrorFact, case: Case) -> Suspect:
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


def _maker(launch: Launch, case: Case) -> Party:
    """The launch with its own lines, too: the one that eager mode refuses only uses the index."""
    assert case.view is not None
    lines = [*_lines(launch, case), *case.view.provenance(launch).locations[:3]]
    known = list({(line.file, line.line): line for line in lines}.values())
    return _launch(launch, case).model_copy(update={"model_locations": known})


def _launch(launch: Launch, case: Case) -> Party:
    return Party(
        kind="kernel",
        name=launch.kernel,
        launch_index=launch.index,
        model_locations=_lines(launch, case),
    )


def _lines(launch: Launch, case: Case) -> list[ModelLocation]:
    assert case.view is not None
    own = list(case.view.provenance(launch).locations[:3])
    return raising_lines(case) or own or case.call_locations
