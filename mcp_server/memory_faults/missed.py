"""Finds the argument that a bad access was meant for, its distance, and the terms of its address."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from mcp_server.logs.journal import TensorFacts
from mcp_server.memory_faults.kernel_lines import LineAccess
from mcp_server.memory_faults.linear import Term
from mcp_server.memory_faults.records import AddressPart, MissedArgument, Side
from mcp_server.memory_faults.situation import Situation, ValueRange
from mcp_server.model import ModelLocation
from mcp_server.package.symbols import plain, resolve_bound


@dataclass(frozen=True)
class Extent:
    """Byte addresses [start, end) of the memory that a tensor's shape and strides reach."""

    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


def extent(tensor: TensorFacts) -> Extent:
    """The extent of a tensor's elements; empty for a tensor without elements."""
    if 0 in tensor.shape:
        return Extent(tensor.pointer, tensor.pointer)
    steps = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True)]
    low = sum(step for step in steps if step < 0)
    high = sum(step for step in steps if step > 0) + 1
    return Extent(tensor.pointer + low * tensor.itemsize, tensor.pointer + high * tensor.itemsize)


def find_missed(situation: Situation) -> tuple[MissedArgument, LineAccess | None] | None:
    """The argument that the access was meant for, and the source access if known.

    None when the launch has no tensors, or when the address was itself loaded from memory.
    """
    options = _options(situation) if situation.indirect is None else []
    if not options:
        return None
    ranked = sorted(options, key=lambda option: _rank(situation, option[0]))
    parameter, access = ranked[0]
    others = {name for name, _ in options} - {parameter}
    return describe_missed(situation, parameter, certain=not others and access is not None), access


def _options(situation: Situation) -> list[tuple[str, LineAccess | None]]:
    """The pointers on the faulting line; all tensors of the launch when the line is not known."""
    found: dict[str, LineAccess | None] = {}
    for access in situation.accesses:
        for parameter in access.parameters:
            found.setdefault(parameter, access)
    if found:
        return list(found.items())
    return [(a.name, None) for a in situation.launch.tensors if a.name]


def _rank(situation: Situation, parameter: str) -> tuple[int, int]:
    """Sort key: empty tensors and other devices, then by distance, then tensors that hold the address."""
    tensor, address = situation.tensor(parameter), situation.access.address
    if tensor is None:
        return (2, 0)
    side, distance = _side(situation, tensor)
    if side == "host" or (side == "empty" and (address is None or address < 1 << 32)):
        return (0, 0)
    if side in ("before", "after"):
        return (1, distance or 0)
    return (3, 0)


def _side(situation: Situation, tensor: TensorFacts) -> tuple[Side, int | None]:
    """Where the access lies relative to the tensor, and the gap in bytes."""
    if situation.view.package.device_type == "cuda" and tensor.device == "cpu":
        return "host", None
    span = extent(tensor)
    if span.bytes == 0:
        return "empty", None
    address = situation.access.address
    if address is None:
        return "unknown", None
    if address < span.start:
        return "before", span.start - address
    if address + (situation.access.size or 1) > span.end:
        return "after", max(0, address - span.end)
    return "inside", 0


def describe_missed(situation: Situation, parameter: str, *, certain: bool) -> MissedArgument:
    """Describe an argument of the launch and its distance from the access."""
    argument = situation.by_parameter[parameter]
    variable = argument.target or ""
    known = MissedArgument(
        parameter=parameter,
        variable=variable,
        label=situation.view.label(variable),
        kind=argument.kind,
        certain=certain,
    )
    tensor = situation.tensor(parameter)
    if tensor is None:
        return known
    side, distance = _side(situation, tensor)
    element = _element(situation, tensor, side)
    index = logical_index(element, tensor.shape, tensor.stride) if element is not None else None
    return known.model_copy(
        update={
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "stride": list(tensor.stride),
            "device": tensor.device,
            "side": side,
            "bytes_outside": distance,
            "elements_outside": None if distance is None else distance // tensor.itemsize,
            "element": element,
            "index": list(index) if index is not None and tensor.shape else None,
            "holds_bytes": extent(tensor).bytes,
            "declared_shape": _other_shape(situation, variable, tensor),
        }
    )


def _element(situation: Situation, tensor: TensorFacts, side: Side) -> int | None:
    address = situation.access.address
    if address is None or side not in ("before", "after", "inside"):
        return None
    return (address - tensor.pointer) // tensor.itemsize


def _other_shape(situation: Situation, variable: str, tensor: TensorFacts) -> list[int] | None:
    """The wrapper's shape of the variable if its number of elements differs from the real tensor's.

    Element counts are compared because a launch may get a view with another number of dimensions.
    """
    argument = next((a for a in situation.launch.tensors if a.target == variable), None)
    declared = situation.declared_shape(variable)
    if declared is None or argument is None or argument.view is not None:
        return None
    return list(declared) if prod(declared) != prod(tensor.shape) else None


def logical_index(element: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """Convert an element offset to an index. The dimension of largest stride may exceed its size.

    None when a dimension of more than one element has no positive stride, or when the offset falls between
    elements.
    """
    if any(step <= 0 and size > 1 for size, step in zip(shape, stride, strict=True)):
        return None
    index = [0] * len(shape)
    rest = element
    for dim in sorted(range(len(shape)), key=lambda d: -stride[d]):
        if shape[dim] > 1:
            index[dim], rest = divmod(rest, stride[dim])
    return None if rest else tuple(index)


def find_parts(situation: Situation, access: LineAccess, missed: TensorFacts | None) -> list[AddressPart]:
    """The terms of an address, indices before scalars. `missed` is the addressed tensor."""
    indices = [_index(situation, access, term, missed) for term in access.loads]
    scalars = [_scalar(situation, access, term, missed) for term in access.scalars]
    unique = {(part.parameter, part.factor): part for part in indices}
    return [*unique.values(), *scalars]


def _index(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    variable = situation.variable(term.name)
    launch = situation.launch
    behind = situation.view.flow.backward(variable, launch.index) if variable else None
    writers = situation.view.flow.last_writers(variable, launch.index) if variable else ()
    producers = [step.launch for step in writers if step.launch is not None]
    values = situation.evidence.ranges.get((launch.index, variable))
    factor = access.address.terms[term]
    lowest, limit = _index_range(missed, factor, wraps=access.address.wraps)
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
        factor=_as_int(factor),
        beyond=_index_beyond(values, lowest, limit, missed),
        producers=producers,
        producer_kernels=[situation.view.wrapper.launches[n].kernel for n in producers],
        inputs=[situation.view.label(name) for name in inputs],
        input_index=next((i.index for i in situation.view.package.inputs if i.name == direct), None),
        model=_model(situation, producers),
    )


def _model(situation: Situation, producers: list[int]) -> list[ModelLocation]:
    found = [
        location
        for number in producers
        for location in situation.view.provenance(situation.view.wrapper.launches[number]).locations
    ]
    return list({(p.file, p.line): p for p in found}.values())


def _scalar(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    argument = situation.by_parameter[term.name]
    value = situation.scalars.get(term.name)
    factor = access.address.terms[term]
    lowest, limit = _index_range(missed, factor, wraps=False)
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
        factor=_as_int(factor),
        beyond=_beyond(value, value, lowest, limit),
        input_index=size.input_index if size else None,
        dim=size.dim if size else None,
    )


def _index_beyond(
    values: ValueRange | None, lowest: int | None, limit: int | None, missed: TensorFacts | None
) -> bool | None:
    """Whether an index is out of range. Without a known factor it is compared with the element count."""
    if values is None:
        return None
    if limit is None and missed is not None:
        elements = extent(missed).bytes // missed.itemsize
        return True if elements and values.maximum >= elements else None
    return _beyond(values.minimum, values.maximum, lowest, limit)


def _index_range(
    missed: TensorFacts | None, factor: Fraction | None, *, wraps: bool
) -> tuple[int | None, int | None]:
    """The range [lowest, limit) of a term outside which every access is out of bounds.

    Assumes that the other terms stay within the tensor. A wrapping index may be as low as -limit.
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


def _as_int(factor: Fraction | None) -> int | None:
    return int(factor) if factor is not None and factor.denominator == 1 else None
