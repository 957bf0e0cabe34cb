"""One fault with all that is known of it, the argument that it missed, and the terms of its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Literal

from mcp_server.logs.crash_reports import Access
from mcp_server.logs.journal import Journal, JournalArgument, JournalLaunch, TensorFacts
from mcp_server.memory_faults import kernel_lines
from mcp_server.memory_faults.kernel_lines import KernelUse, LineAccess, Term
from mcp_server.memory_faults.records import AddressPart, MissedArgument, Side
from mcp_server.package.assertion import generated_line
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.kernels import Kernel, constants_of
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.statements import evaluate_whole
from mcp_server.package.symbols import known_sizes, plain, resolve_bound, scalar_values
from mcp_server.package.terms.program import indexed_by
from mcp_server.package.view import PackageView

FOREIGN = ("proxy_executor", "fallback_shim", "extern")  # launches that run code outside the package


@dataclass(frozen=True)
class ValueRange:
    """Least and greatest element of an integer tensor at a launch."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Evidence:
    """What a run recorded.

    `ranges` is keyed by (launch number, variable). `inputs` are the tensors of the call. `sites` maps offsets
    of launching calls in the package's library to launch numbers. `synchronous`: each launch was waited for.
    """

    journal: Journal | None = None
    synchronous: bool = False
    ranges: Mapping[tuple[int, str], ValueRange] = field(default_factory=dict)
    inputs: tuple[GivenTensor, ...] = ()
    sites: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """A fault at one launch, with derived facts. `seen` is the launch's journal entry."""

    view: PackageView
    access: Access
    launch: Launch
    evidence: Evidence
    seen: JournalLaunch | None = None

    @cached_property
    def kernel(self) -> Kernel | None:
        return self.view.wrapper.kernels.get(self.launch.kernel)

    @cached_property
    def arguments(self) -> dict[str, JournalArgument]:
        """Recorded arguments by parameter name."""
        return {a.parameter or a.name: a for a in self.seen.arguments} if self.seen else {}

    @cached_property
    def by_parameter(self) -> dict[str, Argument]:
        return {a.name: a for a in self.launch.arguments if a.name}

    def tensor(self, parameter: str) -> TensorFacts | None:
        """The tensor passed for a parameter; None without a journal."""
        found = self.arguments.get(parameter)
        return found.tensor if found else None

    def variable(self, parameter: str) -> str:
        argument = self.by_parameter.get(parameter)
        return (argument.target or "") if argument else ""

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Values of size symbols: from tensors recorded in the same call, then of computed symbols."""
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
        """Integer arguments by parameter: from the journal, else evaluated from the symbols."""
        found = {n: int(a.value) for n, a in self.arguments.items() if isinstance(a.value, int)}
        return scalar_values(self.launch, self.symbols) | found

    @cached_property
    def accesses(self) -> tuple[LineAccess, ...]:
        """Candidate source accesses: on the reported line and of the reported direction."""
        if self.kernel is None:
            return ()
        tensors = frozenset(a.name for a in self.launch.tensors if a.name)
        values = {**constants_of(self.kernel.source), **self.scalars}
        use = KernelUse(self.kernel, tensors, frozenset(self.scalars), values)
        cpp, reported = self.kernel.kind == "cpp", self.access.direction
        on_line = kernel_lines.cpp_accesses_on if cpp else kernel_lines.triton_accesses_on
        found: tuple[LineAccess, ...] = ()
        if self.access.condition:
            # The lines that use the index which the failed assertion checks.
            lines = [
                generated_line(self.kernel, line)
                for check in find_asserts(self.kernel.source)
                if plain(check.text) == self.access.condition
                for line, _ in indexed_by(self.kernel, check, tensors)
            ]
            unique = {(a.line, a.code): a for line in lines for a in on_line(use, line)}
            found = tuple(unique.values())
        elif self.access.line is not None:
            found = on_line(use, self.access.line)
        elif not cpp:
            found = kernel_lines.triton_accesses_on(use, None)
        # An atomic counts as a read and as a write.
        fitting = [
            a for a in found if not reported or a.direction == reported or "atomic" in (a.direction, reported)
        ]
        return tuple(fitting or found)

    @cached_property
    def indirect(self) -> LineAccess | None:
        """The access if its address was itself loaded from memory, not computed from an argument."""
        loaded = [a for a in self.accesses if a.address.of("load") and not a.parameters]
        return loaded[0] if loaded and len(loaded) == len(self.accesses) else None


def extent(tensor: TensorFacts) -> tuple[int, int]:
    """Byte addresses [start, end) that the tensor's shape and strides reach; empty without elements."""
    if 0 in tensor.shape:
        return tensor.pointer, tensor.pointer
    steps = [(size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True)]
    low = sum(step for step in steps if step < 0)
    high = sum(step for step in steps if step > 0) + 1
    return tensor.pointer + low * tensor.itemsize, tensor.pointer + high * tensor.itemsize


def span(tensor: TensorFacts) -> int:
    """Elements between the first and the last byte that the tensor reaches."""
    start, end = extent(tensor)
    return (end - start) // tensor.itemsize


def locate(situation: Situation) -> tuple[MissedArgument | None, LineAccess | None, list[AddressPart]]:
    """The argument that the access was meant for, the access in the source, and the terms of its address.

    No argument when the launch has no tensors, or when the address was itself loaded from memory.
    """
    if situation.indirect is not None:
        return None, situation.indirect, find_parts(situation, situation.indirect, None)
    # The pointers on the faulting line; all tensors of the launch when the line is not known.
    options: dict[str, LineAccess | None] = {}
    for access in situation.accesses:
        for parameter in access.parameters:
            options.setdefault(parameter, access)
    options = options or {a.name: None for a in situation.launch.tensors if a.name}
    if not options:
        return None, None, []
    address = situation.access.address

    def rank(parameter: str) -> tuple[int, int]:
        """Empty tensors and other devices, then by distance, then tensors that hold the address."""
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
        # The argument whose index or scalar values lie outside it.
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
    element = index = declared = None
    if address is not None and side in ("before", "after", "inside"):
        element = (address - tensor.pointer) // tensor.itemsize
        index = logical_index(element, tensor.shape, tensor.stride)
    # The wrapper's sizes of the variable in this call. Numbers of elements are compared because a launch may
    # get a view with another number of dimensions.
    first = next((a for a in situation.launch.tensors if a.target == variable), None)
    buffer = situation.view.wrapper.buffers.get(variable)
    if buffer is not None and buffer.sizes is not None and first is not None and first.view is None:
        sizes = [evaluate_whole(size, situation.symbols) for size in buffer.sizes]
        declared = [size for size in sizes if size is not None]
        if len(declared) < len(sizes) or prod(declared) == prod(tensor.shape):
            declared = None
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
        declared_shape=declared,
    )


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
    indices = [_index(situation, access, term, missed) for term in access.address.of("load")]
    scalars = [_scalar(situation, access, term, missed) for term in access.address.of("scalar")]
    unique = {(part.parameter, part.factor): part for part in indices}
    return [*unique.values(), *scalars]


def _index(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    view, launch = situation.view, situation.launch
    variable = situation.variable(term.name)
    inputs = view.flow.backward(variable, launch.index).inputs
    producers = view.flow.writing_launches(variable, launch.index)
    made_by = [view.wrapper.launches[number] for number in producers]
    locations = [place for maker in made_by for place in view.provenance(maker).locations]
    values = situation.evidence.ranges.get((launch.index, variable))
    direct = inputs[0] if len(inputs) == 1 else None
    low, high = (values.minimum, values.maximum) if values else (None, None)
    return _part("index", access, term, missed, low, high)(
        label=view.label(inputs[0] if direct and not producers else variable),
        producers=producers,
        producer_kernels=[maker.kernel for maker in made_by],
        inputs=[view.label(name) for name in inputs],
        input_index=next((i.index for i in view.package.inputs if i.name == direct), None),
        model=list({(place.file, place.line): place for place in locations}.values()),
    )


def _scalar(situation: Situation, access: LineAccess, term: Term, missed: TensorFacts | None) -> AddressPart:
    view, value = situation.view, situation.scalars.get(term.name)
    bound = resolve_bound(term.name, situation.launch, view.wrapper.symbols, view.package.inputs)
    size = next((s for s in bound.sizes if s.input_index is not None), None)
    return _part("scalar", access, term, missed, value, value)(
        label=bound.describe(),
        expression=plain(situation.by_parameter[term.name].expression),
        input_index=size.input_index if size else None,
        dim=size.dim if size else None,
    )


def _part(
    kind: Literal["index", "scalar"],
    access: LineAccess,
    term: Term,
    missed: TensorFacts | None,
    low: int | None,
    high: int | None,
) -> partial[AddressPart]:
    """A term and the range [lowest, limit) outside which every access is out of bounds.

    Assumes that the other terms stay within the tensor. An index that wraps may be as low as -limit.
    """
    address, factor = access.address, access.address.terms[term]
    elements = span(missed) if missed is not None else 0
    lowest = limit = beyond = None
    if elements and factor is not None and factor > 0:
        wraps = kind == "index" and address.wraps
        moved = (address.constant or 0) if kind == "index" and not wraps else 0
        limit = -((moved - elements) // factor)  # rounded up
        lowest = -limit if wraps else -(moved // factor)
        if low is not None and high is not None:
            beyond = low < lowest or high >= limit
    elif kind == "index" and high is not None:
        # Without a known factor the index is compared with the number of elements.
        beyond = True if 0 < elements <= high else None
    return partial(
        AddressPart,
        kind=kind,
        parameter=term.name,
        minimum=low,
        maximum=high,
        lowest=lowest,
        limit=limit,
        factor=factor,
        beyond=beyond,
    )
