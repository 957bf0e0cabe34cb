"""Traces a value back through launches that only carry it, to an input or the launch that computed it.

A kernel carries a value if its term chooses one of the loaded elements: a copy, a cast that keeps the value,
`where`, a minimum, a gather. A NaN is also followed through arithmetic, and an infinity through sums and
products, until no operand has it. An operator outside the generated code is assumed to carry the element
that has exactly the same value.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mcp_server.diagnosis.origin.values import Phase, ProbedValues, Tensor
from mcp_server.package.dataflow import SOURCES, Dataflow, Step
from mcp_server.package.launches import Argument, Launch, shifted, shim_operator, whole_number
from mcp_server.package.terms.accesses import places, position_of, used
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.parts import elements, parts
from mcp_server.package.terms.program import Program, Store, read_program
from mcp_server.package.terms.term import Apply, Element, Fold, Scalar, Term
from mcp_server.package.view import PackageView

_HOPS = 40
_SEARCHED = 1 << 18  # most elements of a tensor that is searched
_FOLDED = 4096  # most points of a reduction that is evaluated

# Operators whose first result holds values of an input, by their names in the wrapper's shims
# (`aoti_torch_cpu_sort_stable`), torch 2.8 to 2.15. Their other results (positions) are computed.
_SUFFIX = re.compile(r"(?:_out|_default|_Tensor|_dim|_values|_src|_stable|_int|_self|_using_ints)+$")
_CARRIERS = re.compile(
    r"as_strided|cat|clone|concat|constant_pad_nd|contiguous|copy_?|cummax|cummin|diagonal|embedding|expand"
    r"|flatten|flip|gather|index|index_copy|index_fill|index_put_?|index_select|kthvalue|masked_fill_?"
    r"|masked_scatter|masked_select|max|median|min|mode|narrow|pad|permute|repeat|repeat_interleave|reshape"
    r"|roll|scatter_?|select|slice|sort|squeeze|stack|t|take|take_along_dim|topk|transpose|tril|triu|unfold"
    r"|unique|unique_consecutive|unsqueeze|view|where"
)


def operator_name(launch: Launch) -> str:
    """`sort` for the shim `aoti_torch_cpu_sort_stable`."""
    return _SUFFIX.sub("", shim_operator(launch.callee or launch.kernel)).strip("_")


def operator_label(launch: Launch, view: PackageView) -> str:
    """A readable operator name: `pricing::tier` for a call by the proxy executor."""
    return view.package.proxy_target(launch.proxy_index) or operator_name(launch)


def is_carrier(launch: Launch) -> bool:
    """Whether an operator outside the generated code only moves values."""
    return _CARRIERS.fullmatch(operator_name(launch)) is not None


class AddedUpError(UnknownValue):
    """The value is a sum of finite values that atomic additions made."""


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
    """An element made by an operator outside the generated code."""

    launch: Launch
    argument: Argument
    offset: int


@dataclass(frozen=True)
class Given:
    """An element of an input or constant, or of unset memory. `index` is None if unknown."""

    kind: str
    name: str
    index: tuple[int, ...] | None
    place: Place


Source = Computed | Produced | Given


@dataclass(frozen=True)
class Walked:
    """Where a value comes from, and the launches that carried it, the last one first.

    `chosen` is the last term on the way that reads an element at an index from another tensor.
    """

    source: Source
    carriers: tuple[int, ...] = ()
    chosen: Computed | None = None


class Walker:
    """Walks through one package with the values of one failing call."""

    def __init__(self, view: PackageView, values: ProbedValues) -> None:
        self.view, self.values = view, values
        self._elements: dict[tuple[int, str, int, int], Scalar | None] = {}
        self._scalars: dict[int, Mapping[str, int]] = {}

    def program(self, launch: Launch) -> Program | None:
        """The program of a launch's kernel. None for an operator outside the generated code."""
        kernel = self.view.wrapper.kernels.get(launch.kernel)
        return read_program(kernel) if kernel and kernel.source else None

    def evaluator(self, launch: Launch, positions: Mapping[str, int]) -> Evaluator:
        """An evaluator of terms of a launch at one point of its loops."""
        return Evaluator(positions, self.scalars(launch), partial(self.element, launch))

    def scalars(self, launch: Launch) -> Mapping[str, int]:
        if launch.index not in self._scalars:
            self._scalars[launch.index] = self.values.scalars(launch)
        return self._scalars[launch.index]

    def element(self, launch: Launch, element: Element, offset: int) -> Scalar | None:
        """The element that a launch loads, perhaps from its own store. None if unknown."""
        key = (launch.index, element.parameter, offset, element.line)
        if key not in self._elements:
            self._elements[key] = None  # stays unknown for a store that depends on itself
            place = Place(launch, argument_of(launch, element.parameter), offset)
            try:
                inner = self.stored(launch, element.parameter, offset, element.line)
                self._elements[key] = self.value_at(place if inner is None else inner)
            except AddedUpError:
                self._elements[key] = self._sum_at(place, element.line)
        return self._elements[key]

    def _sum_at(self, place: Place, line: int) -> Scalar | None:
        """The sum that a launch had added up before a line, if it stores nothing after that line."""
        program, parameter = self.program(place.launch), place.argument.name
        if program is None or program.stores_to(parameter) != program.stores_to(parameter, line):
            return None
        return self.value_at(Produced(place.launch, place.argument, place.offset))

    def value_at(self, place: Place | Produced | Computed) -> Scalar | None:
        """The value that a launch reads (`Place`), computes (`Computed`) or left in memory (`Produced`)."""
        if isinstance(place, Computed):
            return value_of(place.term, place.evaluator)
        when: Phase = "after" if isinstance(place, Produced) else "before"
        tensor = self.values.tensor(place.launch.index, place.argument, when)
        return tensor.value_at(place.offset) if tensor else None

    def stored(self, launch: Launch, parameter: str, offset: int, before: int | None) -> Computed | None:
        """What a launch stores at an offset, only above line `before` if given.

        None if it stores nothing. May raise `UnknownValue`.
        """
        program = self.program(launch)
        if program is None:
            return None
        read, scalars = partial(self.element, launch), self.scalars(launch)
        known = self._same_memory(launch, parameter)
        for store, place in (
            (s, offset + more) for name, more in known for s in program.stores_to(name, before)
        ):
            if store.mode == "add":
                return self._added(launch, store, place)
            position = position_of(store.index, place, store.ranges, scalars, read)
            if position is None:
                continue
            at = self.evaluator(launch, position)
            if store.test is not None and not at.value(store.test):
                continue
            return Computed(launch, store.value, at)
        return None

    def _same_memory(self, launch: Launch, parameter: str) -> Iterator[tuple[str, int]]:
        """Yield the parameters that point into the same memory, each with what to add to an offset."""
        yield parameter, 0
        flow, own = self.view.flow_of(launch), argument_of(launch, parameter)
        held = {each.name: flow.body.buffers.get(each.target or "") for each in launch.tensors}
        for each in launch.tensors:
            one, other = held[each.name], held.get(parameter)
            if each.name != parameter and one and other and one.storage == other.storage:
                yield each.name, _base_offset(flow, own) - _base_offset(flow, each)

    def _added(self, launch: Launch, store: Store, offset: int) -> Computed | None:
        """The first non-finite value that a launch adds at an offset. None if it adds nothing."""
        every, complete = places(used(store.index, store.ranges), self.scalars(launch))
        points = (self.evaluator(launch, place) for place in every)
        here = [at for at in points if at.value(store.index) == offset]
        here = [at for at in here if store.test is None or at.value(store.test)]
        for at in here:
            value = value_of(store.value, at)
            if isinstance(value, float) and not math.isfinite(value):
                return Computed(launch, store.value, at)
        if here or not complete:
            raise AddedUpError("several values are added up there")
        return None

    def back(self, start: Computed | Place) -> Walked:
        """Trace a value back to where it was computed, stopping at anything unknown."""
        at: Computed | Place = start
        carriers: list[int] = []
        chosen: Computed | None = None
        for _ in range(_HOPS):
            if isinstance(at, Computed) and any(elements(each.index) for each in elements(at.term)):
                chosen = at
            try:
                following = self._next(at)
            except UnknownValue:
                following = None
            if following is None:
                break
            carriers.append(following.launch.index)
            at = following
        source = at if isinstance(at, Computed) else self.source(at)
        return Walked(source, tuple(dict.fromkeys(carriers)), chosen)

    def _next(self, at: Computed | Place) -> Computed | Place | None:
        """Go one step back. None if the value was computed or given there."""
        if isinstance(at, Computed):
            found = self._loaded(at)
            if found is None:
                return None
            element, offset = found
            inner = self.stored(at.launch, element.parameter, offset, element.line)
            return inner or Place(at.launch, argument_of(at.launch, element.parameter), offset)
        source = self.source(at)
        if isinstance(source, Produced):
            return self.through(source)
        return source if isinstance(source, Computed) else None

    def through(self, produced: Produced) -> Place | None:
        """The element that an operator read and that may have become its result.

        For an operator that computes, only NaN and infinities are followed, NaN first. Of equal elements, the
        one whose index has the most in common with that of the result is taken.
        """
        launch, value = produced.launch, self.value_at(produced)
        carrier = is_carrier(launch) and produced.argument.name not in ("ret1", "indices")
        if value is None or (not carrier and (not isinstance(value, float) or math.isfinite(value))):
            return None
        made = self.values.tensor(launch.index, produced.argument, "after")
        index = made.index(produced.offset) if made else None
        for argument in launch.tensors:
            given = argument.role != "written"
            read = self.values.tensor(launch.index, argument, "before") if given else None
            if read is None or read.count > _SEARCHED:
                continue
            places = [n for n in range(read.count) if _matches(read.at(n), value, exactly=carrier)]
            if places:
                best = min(places, key=lambda place: _distance(read, place, value, index))
                if not carrier and math.isinf(value) and not _distance(read, best, value, index)[1]:
                    continue  # in another row and column: the result may have overflowed
                return Place(launch, argument, read.offset(read.unraveled(best)))
        return None

    def _loaded(self, at: Computed) -> tuple[Element, int] | None:
        """The element that a term passes on, with its offset. None if the term computes a value."""
        term, evaluator = at.term, at.evaluator
        for _ in range(_HOPS):
            if isinstance(term, Element):
                return term, int(evaluator.value(term.index))
            chosen = _selected(term, evaluator)
            if chosen is None:
                break
            term, evaluator = chosen
        value, linear = value_of(term, evaluator), _is_linear(term)
        adds = all(each.op != "mul" for each in parts(term) if isinstance(each, Apply))
        loaded = list(leaves(term, evaluator)) if _is_nan(value) or (is_infinite(value) and linear) else []
        for wanted in (_is_nan, is_infinite) if linear else (_is_nan,):
            for element, place in loaded:
                offset = value_of(element.index, place)
                if offset is None or not wanted(value_of(element, place)):
                    continue
                # If the model computed an infinity that made a NaN, the NaN is explained here: `0 * log(0)`.
                # In a sum of infinities of both signs, the positive one is followed.
                added = adds and value_of(element, place) == math.inf
                followed = wanted is _is_nan or not _is_nan(value) or added
                if followed or self._as_given(at.launch, element, int(offset)):
                    return element, int(offset)
        return None

    def _as_given(self, launch: Launch, element: Element, offset: int) -> bool:
        """Whether a launch reads an element of an input as the caller gave it."""
        if self.stored(launch, element.parameter, offset, element.line) is not None:
            return False
        source = self.source(Place(launch, argument_of(launch, element.parameter), offset))
        return isinstance(source, Given) and source.kind == "input"

    def source(self, place: Place) -> Source:
        """The last write to an element that a launch reads; else input, constant or unset memory."""
        flow = self.view.flow_of(place.launch)
        name = place.argument.target or ""
        offset = _base_offset(flow, place.argument) + place.offset
        for step in flow.last_writers(name, place.launch.index):
            found = self._written(step, flow, name, offset)
            if found is not None:
                return found
        root = flow.root(name) if name in flow.body.buffers else None
        kind = root.kind if root is not None and root.kind in SOURCES else "unset"
        index = self._index(kind, root.name, offset) if root is not None else None
        tensor = self.values.tensor(place.launch.index, place.argument, "before")
        if index is None and tensor is not None:
            index = tensor.index(place.offset)
        return Given(kind, root.name if root else name, index, place)

    def _written(self, step: Step, flow: Dataflow, name: str, offset: int) -> Source | None:
        """The value that a step left at an offset of the storage of `name`. None if it left none."""
        if not isinstance(step.node, Launch):
            return None
        storage = flow.body.buffers[name].storage
        for argument in step.node.arguments:
            buffer = flow.body.buffers.get(argument.target or "")
            if not argument.is_tensor or argument.role == "read" or not buffer or buffer.storage != storage:
                continue
            inner = offset - _base_offset(flow, argument)
            if self.program(step.node) is None:
                tensor = self.values.tensor(step.node.index, argument, "after")
                if tensor is None or tensor.index(inner) is not None:
                    return Produced(step.node, argument, inner)
                continue
            try:
                found = self.stored(step.node, argument.name, inner, None)
            except AddedUpError:
                return Produced(step.node, argument, inner)
            if found is not None:
                return found
        return None

    def _index(self, kind: str, name: str, offset: int) -> tuple[int, ...] | None:
        """The index in an input or constant, by its strides."""
        layouts = [(c.name, c.shape, c.stride) for c in self.view.package.constants if kind == "constant"]
        for compiled in self.view.package.inputs:
            strides = tuple(stride for stride in compiled.strides if isinstance(stride, int))
            if compiled.described and len(strides) == len(compiled.dims):
                layouts.append((compiled.name, tuple(d.size or 1 << 40 for d in compiled.dims), strides))
        layout = next(
            (Tensor(shape, stride, lambda _: None) for n, shape, stride in layouts if n == name), None
        )
        return layout.index(offset) if layout is not None else None


def argument_of(launch: Launch, parameter: str) -> Argument:
    """The argument of a launch for a parameter of its kernel."""
    return next(argument for argument in launch.arguments if argument.name == parameter)


def _base_offset(flow: Dataflow, argument: Argument) -> int:
    """The offset of an argument's pointer in its storage, in elements. 0 if it is not known."""
    buffer = flow.body.buffers.get(argument.target or "")
    start = buffer.offset if buffer else None
    if argument.view is not None:
        start = shifted(start, argument.view.offset)
    return whole_number((start or "0").rstrip("L")) or 0


def value_of(term: Term, evaluator: Evaluator) -> Scalar | None:
    """The value of a term. None if unknown."""
    try:
        return evaluator.value(term)
    except UnknownValue:
        return None


def _is_nan(value: Scalar | None) -> bool:
    return isinstance(value, float) and math.isnan(value)


def is_infinite(value: Scalar | None) -> bool:
    return isinstance(value, float) and math.isinf(value)


_LINEAR = frozenset({"add", "sub", "mul", "neg", "cast", "where"})


def _is_linear(term: Term) -> bool:
    """Whether a term only adds and multiplies, so that an infinite element makes it infinite."""
    made = [each for each in parts(term) if isinstance(each, Apply | Fold)]
    return all(
        each.op in _LINEAR if isinstance(each, Apply) else each.kind in ("sum", "mean") for each in made
    )


def _same_value(a: Scalar | None, b: Scalar | None) -> bool:
    """Whether values are equal, or both NaN. An unknown value equals no other."""
    if a is None or b is None:
        return False
    return a == b or (a != a and b != b)


def _matches(seen: Scalar | None, value: Scalar, *, exactly: bool) -> bool:
    if seen is None or isinstance(seen, bool) != isinstance(value, bool):
        return False
    if _is_nan(value):
        return isinstance(seen, float) and (math.isnan(seen) or (not exactly and math.isinf(seen)))
    if not exactly and isinstance(value, float) and math.isinf(value):
        return isinstance(seen, float) and math.isinf(seen)  # a negative factor changes the sign
    return seen == value


def _distance(tensor: Tensor, place: int, value: Scalar, index: tuple[int, ...] | None) -> tuple[bool, int]:
    """How far a matching element is from the result at `index`: first by value, then by place."""
    here, shared = tensor.unraveled(place), 0
    if index is not None and len(here) == len(index):
        shared = sum(a == b for a, b in zip(here, index, strict=True))
    elif index is not None:
        pairs = enumerate(zip(here, index, strict=False))
        shared = next((n for n, (a, b) in pairs if a != b), len(here))
    return not _same_value(tensor.at(place), value), -shared


def _selected(term: Term, evaluator: Evaluator) -> tuple[Term, Evaluator] | None:
    """The part whose value a term passes on. None if it computes one. May raise `UnknownValue`."""
    match term:
        case Apply(op="cast", args=(inner,)):
            kept = _same_value(evaluator.value(inner), evaluator.value(term))
            return (inner, evaluator) if kept else None
        case Apply(op="where", args=(test, first, second)):
            return (first if evaluator.value(test) else second), evaluator
        case Apply(op=("minimum" | "maximum"), args=args):
            result = evaluator.value(term)
            for argument in args:
                if _same_value(value_of(argument, evaluator), result) and elements(argument):
                    return argument, evaluator
        case Fold(kind=("max" | "min"), body=body, ranges=ranges):
            result = evaluator.value(term)
            for place in evaluator.places(ranges):
                inner_evaluator = Evaluator({**evaluator.positions, **place}, evaluator.sizes, evaluator.read)
                if _same_value(value_of(body, inner_evaluator), result):
                    return body, inner_evaluator
    return None


def leaves(term: Term, evaluator: Evaluator) -> Iterator[tuple[Element, Evaluator]]:
    """Yield the elements that a term reads; for a reduction, those of every point of its loops."""

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
                    every = list(at.places(ranges, _FOLDED))
                except UnknownValue:
                    return
                for place in every:
                    yield from visit(body, Evaluator({**at.positions, **place}, at.sizes, at.read), set())

    yield from visit(term, evaluator, set())
