"""Back from a value through the launches that only carry it, to the one that computed it or to an input.

A kernel carries a value where its term chooses one of the loaded elements: a copy, a cast that keeps the
value, `where`, a minimum, a gather. A NaN is followed through arithmetic as well: it was made where it has no
NaN operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.origin.carriers import carried_by, same_value
from mcp_server.diagnosis.origin.values import Tensor, Values
from mcp_server.package.dataflow import SOURCES, Dataflow, Step
from mcp_server.package.launches import Argument, Launch, shifted
from mcp_server.package.statements import whole_number
from mcp_server.package.terms.evaluate import Evaluator, Read, UnknownValue
from mcp_server.package.terms.program import Program, Store, position_of, read_program
from mcp_server.package.terms.term import Apply, Element, Fold, Scalar, Term, elements
from mcp_server.package.view import PackageView

_HOPS = 40
_SELECT = frozenset({"minimum", "maximum"})


@dataclass(frozen=True)
class Place:
    """An element that a launch reads: `offset` counts elements from the pointer of the argument."""

    launch: Launch
    argument: Argument
    offset: int


@dataclass(frozen=True)
class Computed:
    """A value that a kernel computes at one point of its loops."""

    launch: Launch
    term: Term
    evaluator: Evaluator


@dataclass(frozen=True)
class Produced:
    """An element that an operator outside of the generated code made: `name` is the variable it is in."""

    launch: Launch
    argument: Argument
    offset: int


@dataclass(frozen=True)
class Given:
    """An element of an input or a constant, or of memory that nothing has set. `index` is None if unknown."""

    kind: str
    name: str
    index: tuple[int, ...] | None
    place: Place


Source = Computed | Produced | Given


@dataclass(frozen=True)
class Walked:
    """Where a value comes from, and the launches that carried it, the last one first."""

    source: Source
    carriers: tuple[int, ...] = ()


class Walker:
    """Walks in one package, with the values of one failing call."""

    def __init__(self, view: PackageView, values: Values) -> None:
        self.view, self.values = view, values
        self._elements: dict[tuple[int, str, int, int], Scalar | None] = {}
        self._scalars: dict[int, Mapping[str, int]] = {}

    def program(self, launch: Launch) -> Program | None:
        """The program of a launch's kernel; None for an operator outside of the generated code."""
        kernel = self.view.wrapper.kernels.get(launch.kernel)
        return read_program(kernel) if kernel and kernel.source else None

    def flow(self, launch: Launch) -> Dataflow:
        return self.view.flow_of(launch)

    def evaluator(self, launch: Launch, positions: Mapping[str, int]) -> Evaluator:
        """Evaluates terms of a launch at one point of its loops."""
        return Evaluator(positions, self.scalars(launch), self.reader(launch))

    def scalars(self, launch: Launch) -> Mapping[str, int]:
        """The values of a launch's scalar arguments."""
        if launch.index not in self._scalars:
            self._scalars[launch.index] = self.values.scalars(launch)
        return self._scalars[launch.index]

    def reader(self, launch: Launch) -> Read:
        return lambda element, offset: self.element(launch, element, offset)

    def element(self, launch: Launch, element: Element, offset: int) -> Scalar | None:
        """What a launch loads, from memory or from what it stored above; None when that is not known."""
        key = (launch.index, element.parameter, offset, element.line)
        if key not in self._elements:
            self._elements[key] = None  # a store that needs itself is not known
            self._elements[key] = self._element(launch, element, offset)
        return self._elements[key]

    def _element(self, launch: Launch, element: Element, offset: int) -> Scalar | None:
        inner = self.stored(launch, element.parameter, offset, element.line)
        if inner is not None:
            try:
                return inner.evaluator.value(inner.term)
            except UnknownValue:
                return None
        tensor = self.tensor(Place(launch, argument_of(launch, element.parameter), offset))
        return tensor.value_at(offset) if tensor else None

    def tensor(self, place: Place) -> Tensor | None:
        """The tensor that a launch reads at a place."""
        return self.values.tensor(place.launch.index, place.argument, "before")

    def stored(self, launch: Launch, parameter: str, offset: int, before: int | None) -> Computed | None:
        """What a launch stores at an offset, above a line if given. Raises `UnknownValue`."""
        program = self.program(launch)
        for store in program.stores_to(parameter, before) if program else ():
            position = self._position(launch, store, offset)
            if position is not None:
                return Computed(launch, store.value, self.evaluator(launch, position))
        return None

    def _position(self, launch: Launch, store: Store, offset: int) -> dict[str, int] | None:
        sizes = self.scalars(launch)
        found = position_of(store.index, offset, store.ranges, sizes, self.reader(launch))
        if found is not None and store.mode == "add":
            raise UnknownValue("several values are added up there")
        return found

    def back(self, start: Computed | Place) -> Walked:
        """Where a value was computed. Ends where something is not known."""
        at: Computed | Place = start
        carriers: list[int] = []
        for _ in range(_HOPS):
            try:
                following = self.next(at)
            except UnknownValue:
                following = None
            if following is None:
                break
            carriers.append(following.launch.index)
            at = following
        return Walked(at if isinstance(at, Computed) else self.source(at), tuple(dict.fromkeys(carriers)))

    def next(self, at: Computed | Place) -> Computed | Place | None:
        """One step back; None where the value was computed, or given."""
        if isinstance(at, Computed):
            found = self.loaded(at)
            if found is None:
                return None
            inner = self.stored(at.launch, found[0].parameter, found[1], found[0].line)
            return inner or Place(at.launch, argument_of(at.launch, found[0].parameter), found[1])
        source = self.source(at)
        if isinstance(source, Computed):
            return source
        if isinstance(source, Produced):
            return self.through(source)
        return None

    def through(self, produced: Produced) -> Place | None:
        """The element that an operator carried there, or the NaN that it made another of."""
        value = self.produced_value(produced)
        if value is None:
            return None
        for argument, offset in carried_by(
            produced.launch, produced.argument, produced.offset, value, self.values
        ):
            return Place(produced.launch, argument, offset)
        return None

    def produced_value(self, produced: Produced) -> Scalar | None:
        """The value that an operator left at an element."""
        tensor = self.values.tensor(produced.launch.index, produced.argument, "after")
        return tensor.value_at(produced.offset) if tensor else None

    def loaded(self, at: Computed) -> tuple[Element, int] | None:
        """The element that a term passes on as it is, with its offset; None when it computes a new value."""
        term, evaluator = at.term, at.evaluator
        for _ in range(_HOPS):
            if isinstance(term, Element):
                return term, int(evaluator.value(term.index))
            chosen = _selected(term, evaluator)
            if chosen is None:
                return self._bad_operand(term, evaluator)
            term, evaluator = chosen
        return None

    def _bad_operand(self, term: Term, evaluator: Evaluator) -> tuple[Element, int] | None:
        """A NaN that a NaN was computed from."""
        if not _is_nan(_known(term, evaluator)):
            return None
        for element, place in leaves(term, evaluator):
            try:
                offset = int(place.value(element.index))
            except UnknownValue:
                continue
            if _is_nan(_known(element, place)):
                return element, offset
        return None

    def source(self, place: Place) -> Source:
        """Who left the element that a launch reads."""
        flow = self.flow(place.launch)
        name = place.argument.target or ""
        start = base_offset(flow, place.argument)
        for step in flow.last_writers(name, place.launch.index):
            found = self._written(step, flow, name, start + place.offset)
            if found is not None:
                return found
        return self._given(flow, name, place)

    def _written(self, step: Step, flow: Dataflow, name: str, offset: int) -> Source | None:
        """What a step left at an offset of the storage of `name`; None when it did not write there."""
        if not isinstance(step.node, Launch):
            return None
        storage = flow.body.buffers[name].storage
        for argument in step.node.arguments:
            buffer = flow.body.buffers.get(argument.target or "")
            if not argument.is_tensor or argument.role == "read" or not buffer or buffer.storage != storage:
                continue
            inner = offset - base_offset(flow, argument)
            if self.program(step.node) is None:
                tensor = self.values.tensor(step.node.index, argument, "after")
                if tensor is None or tensor.index(inner) is not None:
                    return Produced(step.node, argument, inner)
                continue
            found = self.stored(step.node, argument.name, inner, None)
            if found is not None:
                return found
        return None

    def _given(self, flow: Dataflow, name: str, place: Place) -> Given:
        root = flow.root(name) if name in flow.body.buffers else None
        kind = root.kind if root is not None and root.kind in SOURCES else "unset"
        offset = base_offset(flow, place.argument) + place.offset
        index = self._index(kind, root.name if root else name, offset) if root else None
        if index is None and (tensor := self.tensor(place)) is not None:
            index = tensor.index(place.offset)
        return Given(kind, root.name if root else name, index, place)

    def _index(self, kind: str, name: str, offset: int) -> tuple[int, ...] | None:
        """The index in an input or constant, by its strides."""
        if kind == "constant":
            for constant in self.view.package.constants:
                if constant.name == name:
                    return _unraveled(offset, constant.shape, constant.stride)
        for compiled in self.view.package.inputs:
            strides = [stride for stride in compiled.strides if isinstance(stride, int)]
            if compiled.name == name and compiled.described and len(strides) == len(compiled.dims):
                return _unraveled(offset, [dim.size or 1 << 40 for dim in compiled.dims], strides)
        return None


def _unraveled(offset: int, sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    return Tensor(tuple(sizes), tuple(strides), lambda _place: None).index(offset)


def argument_of(launch: Launch, parameter: str) -> Argument:
    """The argument of a launch for a parameter of its kernel."""
    return next(argument for argument in launch.arguments if argument.name == parameter)


def base_offset(flow: Dataflow, argument: Argument) -> int:
    """Where an argument's pointer lies in its storage, in elements; 0 when the wrapper does not say."""
    buffer = flow.body.buffers.get(argument.target or "")
    start = buffer.offset if buffer else None
    if argument.view is not None:
        start = shifted(start, argument.view.offset)
    return whole_number((start or "0").rstrip("L")) or 0


def _known(term: Term, evaluator: Evaluator) -> Scalar | None:
    try:
        return evaluator.value(term)
    except UnknownValue:
        return None


def _is_nan(value: Scalar | None) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _selected(term: Term, evaluator: Evaluator) -> tuple[Term, Evaluator] | None:
    """The part of a term whose value it takes over; None when it computes one. Raises `UnknownValue`."""
    match term:
        case Apply(op="cast", args=(inner,)):
            before, after = evaluator.value(inner), evaluator.value(term)
            return (inner, evaluator) if same_value(before, after) else None
        case Apply(op="where", args=(test, first, second)):
            return (first if evaluator.value(test) else second), evaluator
        case Apply(op=op, args=args) if op in _SELECT:
            result = evaluator.value(term)
            chosen = next((a for a in args if same_value(_known(a, evaluator), result) and elements(a)), None)
            return (chosen, evaluator) if chosen is not None else None
        case Fold(kind=("max" | "min"), body=body, ranges=ranges):
            result = evaluator.value(term)
            for place in evaluator.places(ranges):
                inner_evaluator = Evaluator({**evaluator.positions, **place}, evaluator.sizes, evaluator.read)
                if same_value(_known(body, inner_evaluator), result):
                    return body, inner_evaluator
    return None


def leaves(term: Term, evaluator: Evaluator) -> Iterator[tuple[Element, Evaluator]]:
    """The elements behind a term, those of a reduction at every point of its loops."""

    def visit(each: Term, at: Evaluator, seen: set[int]) -> Iterator[tuple[Element, Evaluator]]:
        if id(each) in seen:
            return
        seen.add(id(each))
        match each:
            case Element():
                yield each, at
            case Apply(args=args):
                for argument in args:
                    yield from visit(argument, at, seen)
            case Fold(body=body, ranges=ranges):
                try:
                    every = list(at.places(ranges, 4096))
                except UnknownValue:
                    return
                for place in every:
                    inner = Evaluator({**at.positions, **place}, at.sizes, at.read)
                    yield from visit(body, inner, set())

    yield from visit(term, evaluator, set())
