"""One launch of a kernel as a function: parameters for what it reads, results for what it computes.

A tensor is a result if the launch fills it and nothing else uses it under another name. Any other write is
made in place.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mcp_server.package.pytorch.axes import Axes, Axis, Loop, NotRead, Statement, plain_name
from mcp_server.package.pytorch.expressions import Value
from mcp_server.package.pytorch.values import Values, permuted
from mcp_server.package.pytorch.views import (
    Memory,
    Step,
    Structures,
    Tensor,
    is_whole,
    listed,
    tupled,
    typical,
    view,
)
from mcp_server.package.terms.parts import parts, unwrapped
from mcp_server.package.terms.program import Check, Source, Store, read_program
from mcp_server.package.terms.term import Element, Fold, Number, Range, Size, Term
from mcp_server.package.terms.whole import Whole, named


@dataclass(frozen=True)
class Passed:
    """The tensor that a launch passes for one parameter, with the name of its variable.

    `is_result`: the launch may return a new tensor instead. `is_written_later`: a later launch writes to its
    memory.
    """

    tensor: Tensor
    is_result: bool
    is_written_later: bool = False


@dataclass(frozen=True)
class Function:
    """The statements of a launch. `reads` are the variables that it needs, `results` those it creates."""

    lines: tuple[str, ...]
    reads: tuple[str, ...]
    results: Mapping[str, str] = field(default_factory=dict)


def write_kernel(
    kernel: Source, tensors: Mapping[str, Passed], sizes: Mapping[str, Whole], where: str
) -> Function:
    """Write the launch of a kernel with these arguments. `where` names it in errors. May raise `NotRead`."""
    program = read_program(kernel)
    if not program.is_understood:
        raise NotRead("its source is not understood")
    stores = merged(program.stores)
    statements = [_statement(each, tensors) for each in stores]
    return _Writer(tensors, Axes(sizes, statements), where, stores).written(program.checks)


def _statement(store: Store, tensors: Mapping[str, Passed]) -> Statement:
    """What a store says about the dimensions of its loops."""
    roots = (store.index, store.value, *([store.test] if store.test is not None else []))
    inside = [each for root in roots for each in parts(root, inside_indices=True)]
    folds = [each for each in inside if isinstance(each, Fold)]
    loads = [(each.parameter, each.index) for each in inside if isinstance(each, Element)]
    places = [
        (index, tensors[name].tensor.strides)
        for name, index in [(store.parameter, store.index), *loads]
        if name in tensors
    ]
    ranges = (*store.ranges, *(each for fold in folds for each in fold.ranges))
    return Statement(ranges, roots, tuple(places))


class _Writer:
    def __init__(
        self, tensors: Mapping[str, Passed], axes: Axes, where: str, stores: Sequence[Store]
    ) -> None:
        self.tensors, self.axes, self.where, self.stores = tensors, axes, where, stores
        self.memory = Memory({name: passed.tensor for name, passed in tensors.items()}, stores)
        self.values = Values(self.axes, self.memory)
        self.current = {name: passed.tensor for name, passed in tensors.items()}
        self.results: dict[str, str] = {}

    def written(self, checks: Sequence[Check]) -> Function:
        stores, places = self.stores, {}
        for store in stores:
            # Outermost first: y and z, then x, then those of a reduction (r). C++ loops keep their order.
            ranges = sorted(store.ranges, key=lambda r: (r.name[0] == "r", r.name[0] not in "yz"))
            places[store] = self.axes.entered(ranges, {})
        for store in stores:
            self.values.structures.count(store.value, store.index)
        done: set[Check] = set()
        for number, store in enumerate(stores):
            for check in checks:
                if check.line < store.line and check not in done:
                    done.add(check)
                    self._check(check)
            self._store(store, places[store], stores[number + 1 :])
        self._lay_out()
        text = "\n".join(self.values.lines)
        reads = [passed.tensor.text for passed in self.tensors.values()]
        used = [each for each in dict.fromkeys(reads) if re.search(rf"\b{each}\b", text)]
        return Function(tuple(self.values.lines), tuple(used), self.results)

    def _lay_out(self) -> None:
        """Give new tensors the wrapper's strides if a later statement accesses their memory directly."""
        held = {tensor.text: tensor for states in self.memory.states.values() for _, tensor in states}
        lines, text = self.values.lines, "\n".join(self.values.lines)
        for name, tensor in held.items():
            if re.search(rf"\b(?:strided|take|put)\({name}\b|\b{name}\.view\(", text):
                at = next((n for n, each in enumerate(lines, 1) if each.startswith(f"{name} = ")), None)
                if at is not None:
                    lines.insert(at, f"{name} = laid_out({name}, {tupled(tensor.strides)})")

    # Checks.

    def _check(self, check: Check) -> None:
        """Write a line that raises if the kernel's assertion fails."""
        place = self.axes.entered(check.ranges, {})
        guards: tuple[Value, ...] = ()
        if check.test is not None and not isinstance(check.test, Number):
            test = self.values.value(check.test, place)
            guards = (self.values.named(test, "mask"),) if not test.scalar else ()
        inner = unwrapped(check.value)
        value = self.values.value(inner, place, guards)
        lower, upper = (
            self.axes.whole(end, {}) if end is not None else None for end in (check.lower, check.upper)
        )
        if value.scalar or (upper is None and lower is None):
            return
        if inner is not check.value and upper is not None:
            lower = Whole() - upper
        mask = ""
        if guards:
            axes = self.axes.ordered([*value.axes, *guards[0].axes])
            mask = f", where={self.values.aligned(guards[0], axes)}"
        line = f"check({value.text}, {lower}, {upper}, {self.where!r}{mask})"
        if line not in self.values.lines:
            self.values.lines.append(line)

    # Stores.

    def _store(self, store: Store, place: Mapping[str, Loop], later: Sequence[Store]) -> None:
        passed = self.tensors.get(store.parameter)
        if passed is None:
            raise NotRead(f"a store to {store.parameter}, which is not an argument")
        value = self.values.value(store.value, place)
        whole = self.axes.whole(store.index, place)
        found = self.values.steps(whole) if whole is not None else None
        tested = store.test is not None and not (isinstance(store.test, Number) and store.test.value)
        looped = self.axes.ordered(axis for loop in place.values() for axis in loop.axes)
        axes, steps, offset = found or ((), [], Whole())
        simple = found and store.mode == "plain" and not tested and set(value.axes) <= set(axes)
        forward = all(each.is_positive_or_zero() for each in (offset, *(each.stride for each in steps)))
        if simple and whole is not None and forward:
            if passed.is_result and is_whole(passed.tensor, steps, offset):
                name, made = self._result(store, passed.tensor, value, axes, steps)
                self.values.stored[name] = (whole, list(steps), made)
                return
            self._keep_old(store, later)
            target = view(self.current[store.parameter], steps, offset, to_write=True)
            filled = f"{target}.fill_({value.text})" if value.scalar else None
            self._in_place(store, filled or f"{target}.copy_({self.values.aligned(value, axes, alone=True)})")
            return
        self._put(store, place, value, looped, later)

    def _put(
        self,
        store: Store,
        place: Mapping[str, Loop],
        value: Value,
        looped: tuple[Axis, ...],
        later: Sequence[Store],
    ) -> None:
        """Write a store at computed places, or one that depends on a condition."""
        if self._indexed(store, place, value, looped, later):
            return
        at = self.values.index(store.index, place)
        axes = self.axes.ordered([*at.axes, *value.axes])
        if set(looped) - set(axes) and store.mode == "add":
            raise NotRead("an update that a loop repeats")
        whole = self.axes.whole(store.index, place) if store.mode != "add" else None
        if whole is not None and self.values.steps(whole) and set(value.axes) - set(at.axes):
            raise NotRead("a store of several values at one place")
        more = ", add=True" if store.mode == "add" else ""
        if store.test is not None and not isinstance(store.test, Number):
            test = self.values.value(store.test, place)
            axes = self.axes.ordered([*axes, *test.axes])
            more += f", where={self.values.aligned(test, axes)}"
        index, filled = self.values.aligned(at, axes), self.values.aligned(value, axes)
        self._keep_old(store, later)
        self._in_place(store, f"put({self.current[store.parameter].text}, {index}, {filled}{more})")

    def _indexed(
        self,
        store: Store,
        place: Mapping[str, Loop],
        value: Value,
        looped: tuple[Axis, ...],
        later: Sequence[Store],
    ) -> bool:
        """Write `table[ids] = value`, or the addition of values at ids, if the store is of this form."""
        tested = store.test is not None and not isinstance(store.test, Number)
        tensor, adds = self.current[store.parameter], store.mode == "add"
        found = self.values.indexed(tensor, store.index, place, to_write=True)
        if found is None or tested or not set(value.axes) <= set(found.axes):
            return False
        if adds and (set(looped) - set(found.axes) or any(re.match(r"\w*:", each) for each in found.parts)):
            return False
        if set(value.axes) == set(found.axes):
            value = permuted(value, found.axes)
        elif (adds and value.axes) or found.axes != self.axes.ordered(found.axes):
            return False
        self._keep_old(store, later)
        if adds:
            value = self.values.cast(self.values.as_tensor(value, tensor.dtype), tensor.dtype)
        filled, target = self.values.aligned(value, found.axes, alone=True), found.of.text
        if found.gathers is not None:
            value = self.values.cast(value, tensor.dtype)
            filled = value.text if value.scalar else self.values.over(value, found.axes)
            line = f"{target}.scatter_{'add_' * adds}({found.along}, {filled})"
        elif adds:
            line = f"{target}.index_put_(({', '.join(found.parts)},), {filled}, accumulate=True)"
        else:
            line = f"{found.text} = {filled}"
        self._in_place(store, line)
        return True

    def _result(
        self, store: Store, tensor: Tensor, value: Value, axes: tuple[Axis, ...], steps: Sequence[Step]
    ) -> tuple[str, Value]:
        """Write the whole tensor as a new value. Return its name, and the value before it was shaped."""
        sizes = listed([axis.size for axis in axes])
        if value.scalar and not axes:
            value = self.values.as_tensor(value, tensor.dtype)
        elif value.scalar:
            text = f"torch.full(({sizes},), {value.text}, dtype=torch.{tensor.dtype}, device=device)"
            value = Value(text, axes, tensor.dtype)
        elif value.axes != axes:
            text = f"{self.values.aligned(value, axes)}.expand({sizes})"
            value = Value(text, axes, value.dtype)
        if tensor.dtype:
            value = self.values.cast(value, tensor.dtype)
        if value.view_of and self._may_change(store, value.view_of):
            value = Value(f"{value.text}.clone()", value.axes, value.dtype)
        shaped = _shaped(steps, tensor)
        name = self._result_name(tensor.text)
        known = value.text.isidentifier() and value.text not in self.memory.names | set(self.results.values())
        if known:
            made = value
        else:
            made = Value(
                name if not shaped else self.values.fresh("t"),
                axes,
                tensor.dtype or value.dtype,
                view_of=value.view_of,
            )
            self.values.lines.append(f"{made.text} = {value.text}")
        if shaped:
            self.values.lines.append(f"{name} = {made.text}{shaped}")
        name = name if shaped else made.text
        self.results[store.parameter] = name
        self.current[store.parameter] = replace(tensor, text=name)
        self.memory.written(store.parameter, store.line, self.current[store.parameter])
        return name, made

    def _may_change(self, store: Store, source: str) -> bool:
        """Whether the stored tensor, or the tensor whose memory it would share, is written again."""
        if self.tensors[store.parameter].is_written_later:
            return True
        if any(each.tensor.text == source and each.is_written_later for each in self.tensors.values()):
            return True
        later = [each for each in self.stores if each.line > store.line]
        return any(
            each.parameter == store.parameter or self.current[each.parameter].text == source for each in later
        )

    def _result_name(self, text: str) -> str:
        """An unused name for the new value of a tensor: `x_out`, `x_out2`, ..."""
        name = f"{text}_out" if any(text == each.tensor.text for each in self.tensors.values()) else text
        number = 2
        while name in self.results.values():
            name = f"{text}_out{number}"
            number += 1
        return name

    def _in_place(self, store: Store, line: str) -> None:
        tensor = self.current[store.parameter]
        self.values.lines.append(line)
        for parameter in self.tensors:
            if self.current[parameter].text == tensor.text:
                self.memory.written(parameter, store.line, tensor)
        self.values.forget(tensor.text)
        self.values.stored.pop(tensor.text, None)

    def _keep_old(self, store: Store, later: Sequence[Store]) -> None:
        """Copy the values that the store overwrites but a later statement needs."""
        tensor = self.current[store.parameter]
        same = {name for name, held in self.current.items() if held.text == tensor.text}
        inside = (
            x for each in later for root in (each.value, each.index) for x in parts(root, inside_indices=True)
        )
        if any(isinstance(x, Element) and x.parameter in same and x.line <= store.line for x in inside):
            name = self.values.fresh("old")
            self.values.lines.append(f"{name} = {tensor.text}.clone()")
            self.memory.rename(same, tensor.text, name)
            self.values.forget(tensor.text)


def _shaped(steps: Sequence[Step], tensor: Tensor) -> str:
    """The code that shapes the stored values into the tensor: a permutation, a reshape, or nothing."""
    dims = list(zip(tensor.sizes, tensor.strides, strict=True))
    real = [(size, stride) for size, stride in dims if size.number != 1]
    mine = [(each.size, each.stride) for each in steps]
    order = sorted(range(len(steps)), key=lambda number: -typical(steps[number].stride))
    if len(set(mine)) == len(mine) and sorted(mine, key=str) == sorted(real, key=str):
        order = [mine.index(each) for each in real]
    in_order = order == list(range(len(steps)))
    permuted = "" if in_order else f".permute({', '.join(map(str, order))})"
    return permuted if [mine[at] for at in order] == dims else f"{permuted}.reshape({listed(tensor.sizes)})"


def merged(stores: Sequence[Store]) -> list[Store]:
    """The stores in order. The parts into which a vector loop divides one store are merged."""
    identity = Structures(Memory({})).identity
    found: list[Store] = []
    for store in stores:
        for number, other in enumerate(found):
            joined = _joined(other, store, identity)
            if joined is not None:
                found[number] = joined
                break
        else:
            found.append(store)
    return found


def _joined(first: Store, second: Store, same: Callable[[Term], int]) -> Store | None:
    def built(store: Store) -> tuple[object, ...]:
        terms = (store.index, store.value, *([store.test] if store.test is not None else []))
        return store.parameter, store.mode, len(store.ranges), *map(same, terms)

    if built(first) != built(second):
        return None
    ranges: list[Range] = []
    joined = 0
    for one, two in zip(first.ranges, second.ranges, strict=True):
        if plain_name(one.name) != plain_name(two.name):
            return None
        if same(one.start) == same(two.start) and same(one.stop) == same(two.stop):
            ranges.append(one)
        elif _same_end(one.stop, two.start):
            ranges.append(Range(plain_name(one.name), one.start, two.stop))
            joined += 1
        else:
            return None
    return replace(first, ranges=tuple(ranges), line=second.line) if joined == 1 else None


def _same_end(stop: Term, start: Term) -> bool:
    names = {each.name for term in (stop, start) for each in parts(term) if isinstance(each, Size)}
    axes = Axes({name: named(name) for name in names})
    ends = axes.whole(stop, {}), axes.whole(start, {})
    return ends[0] is not None and ends[0] == ends[1]
