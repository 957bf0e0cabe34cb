"""The values that went into an address, and how far they reach."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from mcp_server.evidence.journal import TensorFacts
from mcp_server.faults.linear import Term
from mcp_server.faults.missed import extent
from mcp_server.faults.records import AddressPart
from mcp_server.faults.situation import Situation, ValueRange
from mcp_server.faults.use import LineAccess
from mcp_server.model import ModelLocation
from mcp_server.package.bounds import plain, resolve_bound


def find_parts(situation: Situation, access: LineAccess, missed: TensorFacts | None) -> list[AddressPart]:
    """Indices first, then scalars; `missed` is the tensor that they address."""
    indices = [_index(situation, access, term, missed) for term in access.loads]
    scalars = [_scalar(situation, access, term, missed) for term in access.scalars]
    return [*_unique(indices), *scalars]


def _unique(parts: list[AddressPart]) -> list[AddressPart]:
    return list({(part.parameter, part.factor): part for part in parts}.values())


def _index(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    variable = situation.variable(term.name)
    launch = situation.launch
    behind = situation.view.flow.backward(variable, launch.index) if variable else None
    writers = situation.view.flow.last_writers(variable, launch.index) if variable else ()
    producers = [step.launch for step in writers if step.launch is not None]
    values = situation.evidence.ranges.get((launch.index, variable))
    factor = access.address.terms[term]
    lowest, limit = _room(missed, factor, wraps=access.address.wraps)
    inputs = behind.inputs if behind else ()
    direct = inputs[0] if len(inputs) == 1 else None
    return AddressPart(
        kind="index",
        parameter=term.name,
        label=situation.view.label(inputs[0] if direct and not producers else variable),
        minimum=values.minimum if values else None,
        maximum=values.maximum if values else None,
        lowest=lowest,
        limit=limit,
        factor=_whole(factor),
        beyond=_index_beyond(values, lowest, limit, missed),
        producers=producers,
        producer_kernels=[situation.view.wrapper.launches[n].kernel for n in producers],
        inputs=[situation.view.label(name) for name in inputs],
        input_index=_input_index(situation, direct),
        model=_model(situation, producers),
    )


def _model(situation: Situation, producers: list[int]) -> list[ModelLocation]:
    found = [
        place
        for number in producers
        for place in situation.view.provenance(situation.view.wrapper.launches[number]).locations
    ]
    return list({(p.file, p.line): p for p in found}.values())


def _input_index(situation: Situation, name: str | None) -> int | None:
    return next((i.index for i in situation.view.package.inputs if i.name == name), None)


def _scalar(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    argument = situation.by_parameter[term.name]
    value = situation.scalars.get(term.name)
    factor = access.address.terms[term]
    lowest, limit = _room(missed, factor, wraps=False)
    view = situation.view
    bound = resolve_bound(term.name, situation.launch, view.wrapper.symbols, view.package.inputs)
    size = next((s for s in bound.sizes if s.input_index is not None), None)
    return AddressPart(
        kind="scalar",
        parameter=term.name,
        label=bound.describe(),
        expression=plain(argument.expression),
        minimum=value,
        maximum=value,
        lowest=lowest,
        limit=limit,
        factor=_whole(factor),
        beyond=_beyond(value, value, lowest, limit),
        input_index=size.input_index if size else None,
        dim=size.dim if size else None,
    )


def _index_beyond(
    values: ValueRange | None, lowest: int | None, limit: int | None, missed: TensorFacts | None
) -> bool | None:
    """Without a known factor, an index beyond the number of elements is beyond all the same."""
    if values is None:
        return None
    if limit is None and missed is not None:
        elements = extent(missed).bytes // missed.itemsize
        return True if elements and values.maximum >= elements else None
    return _beyond(values.minimum, values.maximum, lowest, limit)


def _room(
    missed: TensorFacts | None, factor: Fraction | None, *, wraps: bool
) -> tuple[int | None, int | None]:
    """Values of a term from which on every access is outside: below the first, or from the second on.

    The other terms of an address are taken to move within the tensor. A selection may move negative values up
    by a bound, so that none is known to be too low.
    """
    elements = extent(missed).bytes // missed.itemsize if missed is not None else 0
    if not elements or factor is None or factor <= 0:
        return None, None
    limit = ceil(Fraction(elements) / factor)
    return (-limit if wraps else 0), limit


def _beyond(low: int | None, high: int | None, lowest: int | None, limit: int | None) -> bool | None:
    if limit is None or lowest is None or low is None or high is None:
        return None
    return low < lowest or high >= limit


def _whole(factor: Fraction | None) -> int | None:
    return int(factor) if factor is not None and factor.denominator == 1 else None
