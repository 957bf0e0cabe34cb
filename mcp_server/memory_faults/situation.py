"""One fault with everything known about it, the argument that it missed, and the terms of its address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, Literal

from mcp_server.logs.crash_reports import Access as Reported
from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, TensorFacts
from mcp_server.memory_faults import AddressPart, MissedArgument, Side
from mcp_server.package.assertion import generated_line
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.symbols import known_sizes, plain, resolve_bound, scalar_values
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.linear import Address, Limit, address_of
from mcp_server.package.terms.parts import elements
from mcp_server.package.terms.program import Access, read_program
from mcp_server.package.terms.sizes import evaluate_whole, find_asserts, index_at, reached
from mcp_server.package.terms.term import Apply, Element, Term, itemsize_of
from mcp_server.package.terms.triton_calls import constants_of
from mcp_server.package.terms.whole import Whole, constant
from mcp_server.package.view import PackageView

FOREIGN = ("proxy_executor", "fallback_shim", "extern")  # kinds of launches that run code outside the package


@dataclass(frozen=True)
class ValueRange:
    """The minimum and maximum element of an integer tensor at a launch."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Evidence:
    """What a run recorded.

    `ranges` is keyed by (launch number, variable). `inputs` are the tensors of the call. `synchronous` means
    that the run waited for each launch.
    """

    journal: Journal | None = None
    synchronous: bool = False
    ranges: Mapping[tuple[int, str], ValueRange] = field(default_factory=dict)
    inputs: tuple[GivenTensor, ...] = ()


@dataclass(frozen=True)
class Situation:
    """A fault at one launch, with derived facts. `seen` is the launch's journal entry."""

    view: PackageView
    access: Reported
    launch: Launch
    evidence: Evidence
    seen: JournalLaunch | None = None

    @cached_property
    def kernel(self) -> Kernel | None:
        return self.view.wrapper.kernels.get(self.launch.kernel)

    @cached_property
    def arguments(self) -> dict[str, JournalArgument]:
        """The recorded arguments by parameter name."""
        return {a.parameter or a.name: a for a in self.seen.arguments} if self.seen else {}

    @cached_property
    def by_parameter(self) -> dict[str, Argument]:
        return {a.name: a for a in self.launch.arguments if a.name}

    def tensor(self, parameter: str) -> TensorFacts | None:
        """The tensor passed for a parameter. None if no journal recorded it."""
        found = self.arguments.get(parameter)
        return found.tensor if found else None

    def variable(self, parameter: str) -> str:
        argument = self.by_parameter.get(parameter)
        return (argument.target or "") if argument else ""

    @cached_property
    def symbols(self) -> dict[str, int]:
        """The values of size symbols, read from tensors recorded in the call or computed from these."""
        journal, seen = self.evidence.journal, self.seen
        if journal is None or seen is None:
            return {}
        launches = [launch for launch in journal.launches if launch.run == seen.run]
        tensors = {a.name: a.tensor for launch in launches for a in launch.arguments if a.tensor}
        given: dict[str, int] = {}
        for symbol in self.view.wrapper.symbols.values():
            tensor = tensors.get(symbol.tensor or "")
            if tensor is not None and symbol.dim is not None and symbol.dim < len(tensor.shape):
                given[symbol.name] = (tensor.shape if symbol.kind == "size" else tensor.stride)[symbol.dim]
        return known_sizes(self.view.wrapper.symbols, given)

    @cached_property
    def scalars(self) -> dict[str, int]:
        """Integer arguments by parameter: from the journal, or evaluated from the symbols."""
        found = {n: int(a.value) for n, a in self.arguments.items() if isinstance(a.value, int)}
        return scalar_values(self.launch, self.symbols) | found

    @cached_property
    def accesses(self) -> tuple[SourceAccess, ...]:
        """The accesses that may have faulted: those on the reported line with the reported direction."""
        if self.kernel is None:
            return ()
        program, line = read_program(self.kernel), self.access.line
        found = list(program.accesses)
        if self.access.condition:
            # Keep only accesses that use the index of the failed assertion.
            texts = {each.line: plain(each.text) for each in find_asserts(self.kernel.source)}
            checks = [each for each in program.checks if texts[each.line] == self.access.condition]
            tensors = {a.name for a in self.launch.tensors}
            used = {place for check in checks for place in indexed_by(program, check, tensors)}
            found = [each for each in found if (each.line, each.parameter) in used]
        elif line is not None:
            above = generated_line(self.kernel, 0)
            found = [e for e in found if e.line <= line - above <= e.line + e.code.count("\n")]
        elif self.kernel.kind == "cpp":
            # Only a loaded index can leave a tensor of the compiled size.
            made = [SourceAccess(each, address_of(each.place, {})) for each in found]
            found = [each.access for each in made if each.address.elements]
        values = {**constants_of(self.kernel.source), **self.scalars}
        unique = {(each.kind, each.line, each.code, each.parameter): each for each in found}
        made = [SourceAccess(each, address_of(each.place, values)) for each in unique.values()]
        # An atomic counts as both a read and a write.
        wanted = self.access.direction
        fitting = [
            a for a in made if not wanted or a.direction == wanted or "atomic" in (wanted, a.direction)
        ]
        return tuple(fitting or made)

    @cached_property
    def indirect(self) -> SourceAccess | None:
        """The access if its address was loaded from memory, not computed from an argument; None otherwise."""
        loaded = [a for a in self.accesses if a.address.elements and not a.parameters]
        return loaded[0] if loaded and len(loaded) == len(self.accesses) else None


_DIRECTIONS = {"load": "read", "store": "write", "update": "atomic"}
Bounded = Literal["low", "high"]


@dataclass(frozen=True)
class SourceAccess:
    """An access in the source of a kernel, with its address at one launch."""

    access: Access
    address: Address

    @property
    def direction(self) -> str:
        return _DIRECTIONS[self.access.kind]

    @property
    def code(self) -> str:
        return " ".join(self.access.code.split())[:500]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the tensors that the access may be meant for."""
        place = self.access.place
        return (place.parameter, *place.others) if place.parameter else ()

    @property
    def bounded(self) -> frozenset[Bounded]:
        """The sides on which the mask bounds a loaded index."""
        return _bounded(self.access.test, frozenset(self.address.elements))


def _bounded(test: Term | None, loads: frozenset[Element]) -> frozenset[Bounded]:
    """The sides on which a test bounds an index made of `loads`. Only tests joined by `&` count."""
    match test:
        case Apply(op="and" | "bitand", args=(left, right)):
            return _bounded(left, loads) | _bounded(right, loads)
        case Apply(op="lt" | "le", args=(small, large)) | Apply(op="gt" | "ge", args=(large, small)):
            sides: list[tuple[Term, Bounded]] = [(small, "high"), (large, "low")]
            return frozenset(side for part, side in sides if loads & set(elements(part)))
    return frozenset()


def extent(tensor: TensorFacts) -> tuple[int, int]:
    """The byte addresses [start, end) that the tensor reaches; start equals end if it is empty."""
    first, end = reached(tensor.shape, tensor.stride)
    return tensor.pointer + first * itemsize_of(tensor.dtype), tensor.pointer + end * itemsize_of(
        tensor.dtype
    )


def span(tensor: TensorFacts) -> int:
    """Count the elements between the first and the last byte that the tensor reaches."""
    start, end = extent(tensor)
    return (end - start) // itemsize_of(tensor.dtype)


def locate(situation: Situation) -> tuple[MissedArgument | None, SourceAccess | None, list[AddressPart]]:
    """Find the argument that the access was meant for, the source access, and the terms of its address.

    The argument is None if the launch has no tensors, or if the address was itself loaded from memory.
    """
    if situation.indirect is not None:
        return None, situation.indirect, find_parts(situation, situation.indirect, None)
    # The pointers on the faulting line; if the line is unknown, all tensors of the launch.
    options: dict[str, SourceAccess | None] = {}
    for access in situation.accesses:
        for parameter in access.parameters:
            options.setdefault(parameter, access)
    options = options or {a.name: None for a in situation.launch.tensors if a.name}
    if not options:
        return None, None, []
    address = situation.access.address

    def rank(parameter: str) -> tuple[int, int]:
        """Sort key: tensors that are empty or on another device first, those with the address last."""
        tensor = situation.tensor(parameter)
        if tensor is None:
            return (2, 0)
        side, distance = _side(situation, tensor)
        if side == "host" or (side == "empty" and (address is None or address < 1 << 32)):
            return (0, 0)
        return (1, distance or 0) if side in ("before", "after") else (3, 0)

    chosen = min(options, key=rank)
    used = options[chosen]
    missed = describe_missed(situation, chosen, certain=len(options) == 1 and used is not None)
    if address is None and missed.side not in ("empty", "host"):
        # Prefer an argument whose limits an index or scalar is seen to exceed.
        for access in situation.accesses:
            for parameter in access.parameters:
                tensor = situation.tensor(parameter)
                found = find_parts(situation, access, tensor)
                if tensor is not None and any(part.beyond for part in found):
                    return describe_missed(situation, parameter, certain=False), access, found
    return missed, used, find_parts(situation, used, situation.tensor(chosen)) if used is not None else []


def _side(situation: Situation, tensor: TensorFacts) -> tuple[Side, int | None]:
    """Where the access lies relative to the tensor, and the gap in bytes."""
    if situation.view.package.device_type == "cuda" and tensor.device == "cpu":
        return "host", None
    start, end = extent(tensor)
    if start == end:
        return "empty", None
    address = situation.access.address
    if address is None:
        return "unknown", None
    if address < start:
        return "before", start - address
    if address + (situation.access.size or 1) > end:
        return "after", max(0, address - end)
    return "inside", 0


def describe_missed(situation: Situation, parameter: str, *, certain: bool) -> MissedArgument:
    """Describe an argument of the launch and its distance from the access."""
    argument = situation.by_parameter[parameter]
    variable = argument.target or ""
    known = partial(
        MissedArgument,
        parameter=parameter,
        variable=variable,
        label=situation.view.label(variable),
        kind=argument.kind,
        certain=certain,
    )
    tensor, address = situation.tensor(parameter), situation.access.address
    if tensor is None:
        return known()
    side, distance = _side(situation, tensor)
    element = index = None
    if address is not None and side in ("before", "after", "inside"):
        element = (address - tensor.pointer) // itemsize_of(tensor.dtype)
        index = index_at(element, tensor.shape, tensor.stride, beyond=True)
    start, end = extent(tensor)
    return known(
        dtype=tensor.dtype,
        shape=list(tensor.shape),
        stride=list(tensor.stride),
        device=tensor.device,
        side=side,
        bytes_outside=distance,
        element=element,
        index=list(index) if index is not None and tensor.shape else None,
        holds_bytes=end - start,
        declared_shape=_declared(situation, variable, tensor.shape),
    )


def _declared(situation: Situation, variable: str, shape: Sequence[int]) -> list[int] | None:
    """The wrapper's sizes of a variable in this call, if `shape` has another number of elements.

    Only the numbers of elements are compared: a launch may get a view with other dimensions.
    """
    first = next((a for a in situation.launch.tensors if a.target == variable), None)
    buffer = situation.view.wrapper.buffers.get(variable)
    if buffer is None or buffer.sizes is None or first is None or first.view is not None:
        return None
    sizes = [evaluate_whole(size, situation.symbols) for size in buffer.sizes]
    declared = [size for size in sizes if size is not None]
    return None if len(declared) < len(sizes) or prod(declared) == prod(shape) else declared


def find_parts(situation: Situation, access: SourceAccess, missed: TensorFacts | None) -> list[AddressPart]:
    """List the terms of an address, indices before scalars. `missed` is the addressed tensor."""
    address = access.address
    indices = [_index(situation, address, each, missed) for each in address.elements]
    scalars = [
        _scalar(situation, address, name, missed) for name in address.scalars if name in situation.scalars
    ]
    unique = {(part.parameter, part.factor): part for part in indices}
    return [*unique.values(), *scalars]


def _index(
    situation: Situation, address: Address, element: Element, missed: TensorFacts | None
) -> AddressPart:
    view, launch = situation.view, situation.launch
    source = view.tracer.source(element, launch)
    made_by = [view.wrapper.launches[number] for number in source.producers]
    locations = [place for maker in made_by for place in view.provenance(maker).locations]
    direct = source.inputs[0] if len(source.inputs) == 1 else None
    values = situation.evidence.ranges.get((launch.index, source.tensor))
    factor, moved = address.elements[element], 0 if address.wraps else address.constant or 0
    return AddressPart(
        kind="index",
        parameter=element.parameter,
        factor=factor,
        label=source.label,
        producers=list(source.producers),
        producer_kernels=[maker.kernel for maker in made_by],
        inputs=list(source.inputs),
        input_index=next((i.index for i in view.package.inputs if i.label == direct), None),
        model=list({(place.file, place.line): place for place in locations}.values()),
        **_room(factor, moved, missed, values, wraps=address.wraps, plain=True),
    )


def _scalar(situation: Situation, address: Address, name: str, missed: TensorFacts | None) -> AddressPart:
    view, value, factor = situation.view, situation.scalars[name], address.scalars[name]
    bound = resolve_bound(name, situation.launch, view.wrapper.symbols, view.package.inputs)
    size = next((s for s in bound.sizes if s.input_index is not None), None)
    return AddressPart(
        kind="scalar",
        parameter=name,
        factor=factor,
        label=bound.describe(),
        expression=plain(situation.by_parameter[name].expression),
        input_index=size.input_index if size else None,
        dim=size.dim if size else None,
        **_room(factor, 0, missed, ValueRange(value, value), wraps=False, plain=False),
    )


def _room(
    factor: int | None,
    moved: int,
    missed: TensorFacts | None,
    seen: ValueRange | None,
    *,
    wraps: bool,
    plain: bool,
) -> dict[str, Any]:
    """The range seen, and the range [lowest, limit) outside which every access is out of bounds.

    The other terms are assumed to stay within the tensor. An index that wraps may be as low as -limit. If the
    factor is unknown, a `plain` index is compared with the number of elements.
    """
    count = span(missed) if missed is not None else 0
    found = {"minimum": seen.minimum, "maximum": seen.maximum} if seen is not None else {}
    if count and factor is not None and factor > 0:
        allowed = Limit(Whole(), constant(count - 1)).of_element(factor, constant(moved)).numbers({})
        assert allowed is not None, "no name is in it"
        low, high = allowed
        low = -(high + 1) if wraps else low
        beyond = None if seen is None else seen.minimum < low or seen.maximum > high
        return {**found, "lowest": low, "limit": high + 1, "beyond": beyond}
    beyond = True if plain and seen is not None and 0 < count <= seen.maximum else None
    return {**found, "beyond": beyond}
