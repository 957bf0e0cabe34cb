"""The axes over which a kernel computes: its loops, and the parts into which it divides an index.

If a loop over `x0` uses `x0 // 32` and `x0 % 32`, these are two axes. The index of a tensor is then a sum of
axes times strides, which describes a view of the tensor.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.package.terms.parts import free_positions, parts, uncast
from mcp_server.package.terms.term import (
    QUOTIENTS,
    REMAINDERS,
    Apply,
    Number,
    Position,
    Range,
    Size,
    Term,
    is_float,
)
from mcp_server.package.terms.whole import Whole, constant, divided, named, whole_of

_ABOVE = ("ge", "gt", "le", "lt")


class NotRead(Exception):
    """A kernel operation cannot be written as PyTorch; the text says why."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of `size` values, beginning at `start`. In a sum it is called `@name`."""

    name: str
    start: Whole
    size: Whole

    @property
    def symbol(self) -> str:
        return f"@{self.name}"

    @property
    def last(self) -> Whole:
        return self.start + self.size - constant(1)


Box = Mapping[Axis, tuple[Whole, Whole]]
"""Parts of axes: where each begins and ends. An axis without an entry is whole."""
Place = Mapping[str, "Loop"]
"""The loops around a term, by the name of their variable."""


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop variable as a sum of axes."""

    value: Whole
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class Statement:
    """A store of a kernel: its loops, its terms, and each index with the strides of the indexed tensor."""

    ranges: tuple[Range, ...]
    roots: tuple[Term, ...]
    places: tuple[tuple[Term, tuple[Whole, ...]], ...]


@dataclass
class Axes:
    """All axes of a kernel, in the order of the tensors' dimensions. `sizes` are its scalar arguments.

    A flat loop is divided into the dimensions of its `statements` and of their tensors.
    """

    sizes: Mapping[str, Whole]
    statements: Sequence[Statement] = ()
    loops: dict[tuple[str, Whole, Whole], Loop] = field(default_factory=dict)
    inner: dict[tuple[Loop, Axis, Whole, Whole], Loop] = field(default_factory=dict)
    by_symbol: dict[str, Axis] = field(default_factory=dict)

    def ordered(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Each axis once, the outermost first."""
        wanted = set(axes)
        return tuple(axis for axis in self.by_symbol.values() if axis in wanted)

    def of(self, value: Whole) -> tuple[Axis, ...]:
        """The axes that a sum depends on."""
        names = value.names
        return tuple(axis for symbol, axis in self.by_symbol.items() if symbol in names)

    def bounds(self, value: Whole) -> tuple[Whole, Whole] | None:
        """The least and greatest value over all axes. None if unknown."""
        low = high = value
        for axis in self.of(value):
            step = value.coefficient(axis.symbol)
            if any(axis.symbol in atom and atom != axis.symbol for atom in value.atoms):
                return None
            if step.is_positive_or_zero():
                least, most = axis.start, axis.last
            elif (constant(0) - step).is_positive_or_zero():
                least, most = axis.last, axis.start
            else:
                return None
            low, high = low.replaced({axis.symbol: least}), high.replaced({axis.symbol: most})
        return low, high

    # Integers of a kernel.

    def whole(self, term: Term, place: Place) -> Whole | None:
        """A term as a sum over sizes and axes. None if it contains a load or is not a sum."""

        def atom(each: Term) -> Whole | None:
            if isinstance(each, Size) and not is_float(each.dtype):
                return self.sizes.get(each.name)
            loop = place.get(plain_name(each.name)) if isinstance(each, Position) else None
            return loop.value if loop is not None else None

        if is_float(term.dtype) or term.dtype == "bool":
            return None
        return whole_of(term, atom, self._combined)

    def _combined(self, op: str, left: Whole, right: Whole) -> Whole | None:
        if op == "mul":
            return left * right
        if op in ("minimum", "maximum") and "@" not in f"{left}{right}":
            return named(f"{op[:3]}({left}, {right})")
        if op in QUOTIENTS | REMAINDERS and (right - constant(1)).is_positive_or_zero():
            # Truncation and rounding down agree if `left` is not negative.
            ends = self.bounds(left)
            if op not in ("mod", "floordiv") and (ends is None or not ends[0].is_positive_or_zero()):
                return None
            quotient, remainder = divided(left, right, self.bounds)
            return quotient if op in QUOTIENTS else remainder
        return None

    # Loops.

    def entered(self, ranges: Iterable[Range], place: Place) -> dict[str, Loop]:
        """Extend `place` by the loops of `ranges`. Raise `NotRead` if a loop bound is not a sum of sizes."""
        inside = dict(place)
        for each in ranges:
            start, stop = self.whole(each.start, inside), self.whole(each.stop, inside)
            if start is None or stop is None:
                raise NotRead(f"a loop over {each.name} whose end is computed")
            name = plain_name(each.name)
            key = (name, start, stop)
            if key not in self.loops:
                self.loops[key] = self._loop(name, start, stop)
            inside[name] = self.loops[key]
        return inside

    def within(self, place: Place, box: Box) -> tuple[dict[str, Loop], dict[Axis, Axis]]:
        """The loops limited to `box`, and for each limited axis the axis that it is a part of."""
        inside = {name: self._part(loop, box) for name, loop in place.items()}
        pairs = [
            pair for name, loop in place.items() for pair in zip(inside[name].axes, loop.axes, strict=True)
        ]
        return inside, {part: whole for part, whole in pairs if part is not whole}

    def _part(self, loop: Loop, box: Box) -> Loop:
        for axis, (start, stop) in box.items():
            if axis not in loop.axes:
                continue
            key = (loop, axis, start, stop)
            if key not in self.inner:
                part = self._axis(axis.name, start, stop - start)
                symbols = list(self.by_symbol)
                symbols.insert(symbols.index(axis.symbol) + 1, symbols.pop())
                self.by_symbol = {symbol: self.by_symbol[symbol] for symbol in symbols}
                value = loop.value.replaced({axis.symbol: named(part.symbol)})
                self.inner[key] = Loop(value, tuple(part if each is axis else each for each in loop.axes))
            loop = self.inner[key]
        return loop

    def box(self, test: Term, place: Place) -> Box | None:
        """The part of the axes where a test holds.

        None if the test is more than limits of axes, or never holds.
        """
        match test:
            case Number(value=value):
                return {} if value else None
            case Apply(op="and", args=(left, right)):
                boxes = self.box(left, place), self.box(right, place)
                return None if boxes[0] is None or boxes[1] is None else self._both(boxes[0], boxes[1])
            case Apply(op=op, args=(left, right)) if op in _ABOVE:
                wholes = self.whole(left, place), self.whole(right, place)
                if wholes[0] is None or wholes[1] is None:
                    return None
                above = wholes[0] - wholes[1] if op in ("ge", "gt") else wholes[1] - wholes[0]
                return self._above(above - constant(op in ("gt", "lt")))
        return None

    def _above(self, value: Whole) -> Box | None:
        """The part of one axis in which a sum is not negative. None if it depends on several axes."""
        ends = self.bounds(value)
        if ends is not None and ends[0].is_positive_or_zero():
            return {}
        if len(axes := self.of(value)) != 1:
            return None
        (axis,) = axes
        step = value.coefficient(axis.symbol)
        rest = value - step * named(axis.symbol)
        if not step.number or self.of(rest) or (abs(step.number) != 1 and rest.number is None):
            return None
        if rest.number is not None:
            rest = constant(rest.number // abs(step.number))
        start, stop = axis.start, axis.last + constant(1)
        start, stop = (Whole() - rest, stop) if step.number > 0 else (start, rest + constant(1))
        inside = (start - axis.start, axis.last + constant(1) - stop)
        if not all(each.is_positive_or_zero() for each in inside):
            return None
        return {axis: (start, stop)}

    def _both(self, one: Box, two: Box) -> Box | None:
        """The common part of two boxes. None if it is not known which of two limits is narrower."""
        found = {**one, **two}
        for axis in one.keys() & two.keys():
            starts, stops = zip(one[axis], two[axis], strict=True)
            start = next((a for a in starts if all((a - b).is_positive_or_zero() for b in starts)), None)
            stop = next((a for a in stops if all((b - a).is_positive_or_zero() for b in stops)), None)
            if start is None or stop is None:
                return None
            found[axis] = start, stop
        return found

    def _loop(self, name: str, start: Whole, stop: Whole) -> Loop:
        base = re.sub(r"\W+", "_", name).strip("_").removesuffix("index").strip("_") or "i"
        size = stop - start
        cuts = self._cuts(name, stop) if start == Whole() else []
        if not cuts:
            axis = self._axis(base, start, size)
            return Loop(named(axis.symbol), (axis,))
        axes: list[Axis] = []
        value = Whole()
        for inner, outer in zip([constant(1), *cuts], [*cuts, size], strict=True):
            length = outer.over(inner)
            assert length is not None, "only such cuts are kept"
            if length.number != 1:
                axis = self._axis(f"{base}{len(axes)}", Whole(), length)
                axes.append(axis)
                value = value + inner * named(axis.symbol)
        for axis in reversed(axes):  # the outermost first
            self.by_symbol[axis.symbol] = self.by_symbol.pop(axis.symbol)
        return Loop(value, tuple(reversed(axes)))

    def _axis(self, base: str, start: Whole, size: Whole) -> Axis:
        name = base
        while f"@{name}" in self.by_symbol:
            name += "_"
        axis = Axis(name, start, size)
        self.by_symbol[axis.symbol] = axis
        return axis

    def _cuts(self, name: str, size: Whole) -> list[Whole]:
        """The numbers by which the kernel divides this variable. Each divides the next, and `size`."""
        found: set[Whole] = set()
        for each in self.statements:
            if any(plain_name(r.name) == name and self.whole(r.stop, {}) == size for r in each.ranges):
                found |= {cut for root in each.roots for cut in self._divisors(root, name)}
                found |= {
                    cut for index, strides in each.places for cut in self._dimensions(index, strides, name)
                }
        chain: list[Whole] = []
        for cut in sorted(found, key=lambda each: (len(each.atoms), str(each).zfill(20))):
            inner = chain[-1] if chain else constant(1)
            if not (cut - constant(1)).is_positive_or_zero():
                continue
            if cut not in (inner, size) and cut.over(inner) is not None and size.over(cut) is not None:
                chain.append(cut)
        return chain

    def _dimensions(self, index: Term, strides: Sequence[Whole], name: str) -> Iterable[Whole]:
        """Yield the numbers by which the dimensions of an indexed tensor divide this variable."""
        variables = {plain_name(each) for each in free_positions(index)}
        place = {each: Loop(named(f"@@{each}"), ()) for each in variables}
        step = Whole()
        for factor, each in summands(index):
            if (whole := self.whole(each, place)) is not None:
                step = step + constant(factor) * whole.coefficient(f"@@{name}")
        if step != Whole():
            yield from filter(None, (stride.over(step) for stride in strides))

    def _divisors(self, root: Term, name: str) -> Iterable[Whole]:
        for each in parts(root, inside_indices=True):
            match each:
                case Apply(op=op, args=(inner, by)) if op in QUOTIENTS | REMAINDERS:
                    divisor = self.whole(by, {})
                    inner = _uncast(inner)
                    if divisor is None:
                        continue
                    if isinstance(inner, Position) and plain_name(inner.name) == name:
                        yield divisor
                    match inner:
                        case Apply(op=before, args=(Position(name=of), first)) if (
                            before in QUOTIENTS and plain_name(of) == name
                        ):
                            if (cut := self.whole(first, {})) is not None:
                                yield cut
                                yield cut * divisor


def summands(term: Term, factor: int = 1) -> Iterator[tuple[int, Term]]:
    """Yield the summands of an index, each with its constant factor."""
    match term:
        case Apply("add", (left, right)):
            yield from summands(left, factor)
            yield from summands(right, factor)
        case Apply("mul", (Number(value=value), other) | (other, Number(value=value))):
            yield from summands(other, factor * int(value))
        case Apply("cast", (inner,)) if not is_float(inner.dtype) and not is_float(term.dtype):
            yield from summands(inner, factor)
        case _:
            yield factor, term


def _uncast(term: Term) -> Term:
    """Remove the casts around a quotient and around its dividend."""
    term = uncast(term)
    match term:
        case Apply(op=op, args=(first, second)) if op in QUOTIENTS:
            return Apply(op, (_uncast(first), second), term.dtype)
    return term


def plain_name(name: str) -> str:
    """The name of a loop variable without the suffix of its vector tail."""
    return name.removesuffix("_tail")
