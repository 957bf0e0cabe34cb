"""Kernel terms as torch expressions. Each expression extends only over the axes that it depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq

from mcp_server.package.pytorch.axes import Axes, Axis, Box, NotRead, Place, plain_name, summands
from mcp_server.package.pytorch.expressions import Affine, Operators, Value, literal, operand
from mcp_server.package.pytorch.views import (
    Memory,
    Step,
    Structures,
    Tensor,
    bracketed,
    refolded,
    slices_of,
    starts_of,
    unflattened,
    view,
)
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.parts import (
    UNROLLED,
    children,
    free_positions,
    operands,
    parts,
    unwrapped,
    wrapped_by,
)
from mcp_server.package.terms.syntax import read_cpp
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    Unread,
    is_float,
    promoted,
)
from mcp_server.package.terms.translate import Translator
from mcp_server.package.terms.whole import Whole, constant, named, product

LONG = 90  # characters; longer expressions get a name
MOST_LISTED = 64  # elements of a constant that are written out
MOST_PLACES = 4096  # places of an axis at which an index is computed
REDUCED = {"mean": "mean", "max": "amax", "min": "amin", "any": "any", "all": "all"}
NESTED = Value("nested", (), "bool")
"""Marks that, besides the innermost test under which a value is computed, there are outer tests."""
LOCAL = re.compile(r"(?:[a-z]|total|largest|least|mean|spread|product|mask|old|lane)\d*_*")
"""The names that a function gives to its own values."""
HINTS = {"sum": "total", "max": "largest", "min": "least", "mean": "mean", "m2": "spread", "prod": "product"}


class Values(Operators):
    """Writes the values of one kernel.

    For a loaded element, `memory` tells which tensor it comes from at that line of the kernel. `stored` are
    tensors that the kernel filled, each with the index, its steps and the stored value.
    """

    def __init__(self, axes: Axes, memory: Memory) -> None:
        super().__init__(axes, memory)
        self.stored: dict[str, tuple[Whole, list[Step], Value]] = {}
        self.structures = Structures(memory)
        self._free: dict[Term, dict[str, None]] = {}
        self._in_turn: dict[tuple[Term, ...], Term | None] = {}

    def value(self, term: Term, place: Place, guards: tuple[Value, ...] = ()) -> Value:
        """Write a term as an expression, under a condition if `guards` has one. May raise `NotRead`.

        Of nested conditions only the innermost is kept, so that a term has few forms. If an outer condition
        excludes a load, the load may give any value, because nothing uses it.
        """
        if guards and not any(isinstance(each, Element) for each in parts(term, inside_indices=True)):
            guards = ()
        names = map(plain_name, free_positions(term, known=self._free))
        used = frozenset(id(place[n]) for n in names if n in place)
        key: tuple[int, frozenset[int], tuple[str, ...]] = (self.structures.identity(term), used, ())
        if key not in self._known:  # a value known without a condition is the same under any
            key = (*key[:2], tuple(each.text for each in guards))
        if key not in self._known:
            found = self._value(term, place, guards)
            often = self.structures.uses.get(key[0], 0) > 1 and not isinstance(term, Element)
            if (often and len(found.text) > 12) or len(found.text) > LONG or isinstance(term, Fold):
                found = self.named(found, HINTS.get(term.kind, "t") if isinstance(term, Fold) else "t")
            self._known[key] = found
        return self._known[key]

    def _value(self, term: Term, place: Place, guards: tuple[Value, ...]) -> Value:
        match term:
            case Number(value=number, dtype=dtype):
                return literal(number, dtype)
            case Size() | Position():
                whole = self.axes.whole(term, place)
                if whole is None:
                    raise NotRead(f"the value of {term.name}")
                return self.of_whole(whole)
            case Element():
                return self._loaded(term, place, guards)
            case Fold():
                return self._folded(term, place, guards)
            case Apply():
                return self._applied(term, place, guards)
            case Unread(text=text):
                raise NotRead(text)

    # Loads.

    def _loaded(self, term: Element, place: Place, guards: tuple[Value, ...]) -> Value:
        tensor = self.memory.tensor(term)
        whole = self.axes.whole(term.index, place)
        if tensor.text in self.stored and self.stored[tensor.text][0] == whole:
            return self.stored[tensor.text][2]
        found = self.steps(whole) if whole is not None else None
        if found is not None:
            _, steps, value = self.stored.get(tensor.text, (None, None, None))
            if value is not None and steps == found[1] and found[2] == Whole():
                return replace(value, axes=found[0])  # stored by another loop with the same form
            text = _viewed(tensor, found[1], found[2])
            # Under a test the elements may lie outside the tensor, unless they are known to be inside.
            if text and (not guards or not text.startswith("strided(")):
                return Value(text, found[0], term.dtype, view_of=tensor.text)
        if (gathered := self._gathered(term, tensor, place, bool(guards))) is not None:
            return gathered
        at = self.index(term.index, place, guards)
        if not guards:
            return Value(f"take({tensor.text}, {at.text})", at.axes, term.dtype)
        axes = self.axes.ordered([*at.axes, *guards[0].axes])
        test = self.aligned(guards[0], axes) + (", strict=False" if NESTED in guards else "")
        return Value(f"take({tensor.text}, {self.aligned(at, axes)}, {test})", axes, term.dtype)

    def index(self, index: Term, place: Place, guards: tuple[Value, ...] = ()) -> Value:
        """Write a flat index."""
        whole = self.axes.whole(index, place)
        return self.of_whole(whole) if whole is not None else self.value(index, place, guards)

    def _gathered(self, term: Element, tensor: Tensor, place: Place, guarded: bool) -> Value | None:
        """`table[ids]`, which reads at computed places of a dimension. None for other indices."""
        found = self.indexed(tensor, term.index, place)
        if found is None or (guarded and not found.is_known):
            return None
        tensor, axes = found.of, found.axes
        text = found.text if found.gathers is None else f"{tensor.text}.gather({found.along})"
        if found.is_known and found.by_dim and (known := resampled(tensor, found.places)):
            text, axes = known, found.by_dim
        return permuted(Value(text, axes, term.dtype), self.axes.ordered(axes))

    def indexed(self, tensor: Tensor, index: Term, place: Place, *, to_write: bool = False) -> Indexed | None:
        """Write an index with computed parts, each in its own dimension. None for other indices."""
        computed, rest = self._split(index, place)
        found = self.steps(rest) if computed else None
        if found is None:
            return None
        ways = (Whole() - factor if not factor.is_positive_or_zero() else factor for factor, _ in computed)
        steps = [*found[1], *(Step(constant(0), way) for way in ways)]
        forms = [unflattened(tensor, found[1]), refolded(tensor, steps, to_write)]
        tries = (self._at(form, computed, found, place) for form in forms if form is not None)
        return next((each for each in tries if each is not None), None)

    def _at(
        self, tensor: Tensor, computed: Sequence[tuple[Whole, Term]], found: Affine, place: Place
    ) -> Indexed | None:
        """Write an index as `indexed` does, if this form of the tensor fits the parts. Else None."""
        starts = starts_of(tensor, found[2])
        if starts is None:
            return None
        at: dict[int, Value] = {}
        places: dict[int, Sequence[int]] = {}
        for each in computed:
            part = self._computed(tensor, each, starts, place)
            if part is None or part[0] in at:
                return None
            dim, at[part[0]], known = part
            places |= {dim: known} if known is not None else {}
        return self._with_rest(tensor, at, places, found, starts, wrapped_by(computed[0][1]) is None)

    def _computed(
        self, tensor: Tensor, part: tuple[Whole, Term], starts: Sequence[Whole], place: Place
    ) -> tuple[int, Value, Sequence[int] | None] | None:
        """The dimension of a computed part, the part as text, and its values if they are known."""
        factor, term = part
        sign = 1 if factor.is_positive_or_zero() else -1
        dims = [dim for dim, each in enumerate(tensor.strides) if each == factor * constant(sign)]
        if len(dims) != 1:
            return None
        start, limit, size = starts[dims[0]], tensor.sizes[dims[0]], wrapped_by(term)
        if size is not None and self.axes.whole(size, place) != limit:
            return None
        known, places = self._places(term, place, MOST_PLACES), None
        if known is not None and start.number is not None and limit.number is not None:
            places = [start.number + sign * int(each) for each in known]
            if not all(0 <= each < limit.number for each in places):
                return None
        elif sign < 0 or start != Whole():
            return None
        value = self.value(unwrapped(term), place)
        if value.scalar:
            return None
        if sign < 0 or start != Whole():
            text = f"{start} {'+' if sign > 0 else '-'} {value.operand}"
            value = Value(text, value.axes, value.dtype, is_atom=False)
        return dims[0], value, places

    def _with_rest(
        self,
        tensor: Tensor,
        at: dict[int, Value],
        places: Mapping[int, Sequence[int]],
        affine: Affine,
        starts: Sequence[Whole],
        may_gather: bool,
    ) -> Indexed | None:
        """Add the other dimensions: slices, or indices along axes that a computed part also has."""
        (axes, steps, _), is_known = affine, len(places) == len(at)
        others = [dim for dim in range(len(tensor.sizes)) if dim not in at]
        sizes, strides = (tuple(part[dim] for dim in others) for part in (tensor.sizes, tensor.strides))
        offset = _in_memory([starts[dim] for dim in others], strides)
        slices = slices_of(Tensor("", sizes, strides, ""), steps, offset)
        if slices is None or sorted(slices[1]) != list(slices[1]):
            return None
        parts = dict(zip(others, slices[0], strict=True))
        axis_at = {others[dim]: axis for dim, axis in zip(slices[1], axes, strict=True)}
        shared = {axis for value in at.values() for axis in value.axes} & set(axes)
        whole = all(part == ":" for part in parts.values())
        if shared and not whole:
            return None
        order = tuple(axis_at.get(dim) for dim in range(len(tensor.sizes)))
        gathers = _gather_dim(at, order) if may_gather and shared == set(axes) else None
        at |= {dim: self.counted(axis) for dim, axis in axis_at.items() if axis in shared and gathers is None}
        joint = self.axes.ordered(axis for value in at.values() for axis in value.axes)
        parts |= {dim: self.aligned(value, joint, alone=True) for dim, value in at.items()}
        ordered = joint if gathers is not None else _placed(joint, at, axis_at)
        texts = [parts[dim] for dim in sorted(parts)]
        single = {dim: value.axes[0] for dim, value in at.items() if len(value.axes) == 1} | axis_at
        by_dim = tuple(single[dim] for dim in sorted(single)) if whole and not shared else ()
        by_dim = by_dim if len(set(by_dim)) == len(order) else ()
        return Indexed(tensor, texts, ordered, places, is_known, by_dim, gathers)

    def _split(self, index: Term, place: Place) -> tuple[list[tuple[Whole, Term]], Whole]:
        """The computed summands of an index with their factors, and the sum of the others."""
        computed: list[tuple[Whole, Term]] = []
        rest = Whole()
        for number, each in summands(index):
            factor, term = constant(number), each
            while isinstance(term, Apply) and term.op == "mul":
                left, right = term.args
                size, other = self.axes.whole(left, {}), right
                if size is None:
                    size, other = self.axes.whole(right, {}), left
                if size is None:
                    break
                factor, term = factor * size, other
            whole = self.axes.whole(term, place)
            if whole is None or self.steps(whole) is None:
                computed.append((factor, term))
            else:
                rest = rest + factor * whole
        return computed, rest

    def _places(self, term: Term, place: Place, most: int) -> list[Scalar] | None:
        """The values of a term over its only axis. None for other terms or over `most` values."""
        names = map(plain_name, free_positions(term, known=self._free))
        loops = {name: place.get(name) for name in names}
        if len(loops) != 1:
            return None
        ((name, loop),) = loops.items()
        if loop is None or len(loop.axes) != 1 or loop.value != named(loop.axes[0].symbol):
            return None
        start, size = loop.axes[0].start.number, loop.axes[0].size.number
        if start is None or size is None or size > most:
            return None
        try:
            found = range(start, start + size)
            return [Evaluator({name: at, f"{name}_tail": at}, {}).value(term) for at in found]
        except UnknownValue:
            return None

    # Operators.

    def _applied(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value:
        op, dtype = term.op, term.dtype
        whole = self.axes.whole(term, place)
        if whole is not None and "//" not in str(whole) and "%" not in str(whole):
            return self.of_whole(whole)
        if (listed := self._listed(term, place)) is not None:
            return listed
        if (idiom := self._idiom(term, place, guards)) is not None:
            return idiom
        if op == "where":
            return self._chosen(term, place, guards)
        return self.operated(op, [self.value(each, place, guards) for each in term.args], dtype)

    def _chosen(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value:
        """Write `torch.where`. An element behind a condition is loaded only where the condition holds."""
        test, first, second = term.args
        same = self.structures.identity
        if isinstance(first, Apply) and first.op == "where" and same(first.args[0]) == same(test):
            first = first.args[1]
            term = replace(term, args=(test, first, second))
        if (joined := self._joined(term, place, guards)) is not None:
            return joined
        held = self.tested(self.as_tensor(self.value(test, place, guards)))
        loads = [
            any(isinstance(x, Element) for x in parts(each, inside_indices=True)) for each in (first, second)
        ]
        if any(loads):
            held = self.named(held, "mask")
        nested = (NESTED,) if guards else ()
        left = self.value(first, place, (held, *nested) if loads[0] else guards)
        other = Value(f"~{held.operand}", held.axes, "bool", is_atom=False)
        right = self.value(second, place, (other, *nested) if loads[1] else guards)
        axes = self.axes.ordered([*held.axes, *left.axes, *right.axes])
        if left.text == right.text:
            return self.cast(left, term.dtype)
        kinds = [each.dtype for each in (left, right) if not each.scalar]
        kind = promoted(*kinds) if kinds else "scalars"
        text = f"torch.where({', '.join(self.aligned(each, axes).strip() for each in (held, left, right))})"
        return self.cast(Value(text, axes, kind), term.dtype)

    def _joined(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value | None:
        """Write a choice by position as a padded or concatenated tensor. None for other choices."""
        test, first, second = term.args
        box = self.axes.box(test, place)
        if box is None or any(axis in guard.axes for axis in box for guard in guards):
            return None
        if not box or any((start - stop).is_positive_or_zero() for start, stop in box.values()):
            return self.cast(self.value(second if box else first, place, guards), term.dtype)
        if not all((stop - start).is_positive_or_zero() for start, stop in box.values()):
            return None  # for some sizes, the part is empty
        pieces, fill = [(box, first)], second
        if not isinstance(second, Number):
            if len(box) > 1:
                return None
            ((axis, (start, stop)),) = box.items()
            ends = [(axis.start, start), (start, stop), (stop, axis.last + constant(1))]
            parts = [({axis: each}, first if each == (start, stop) else second) for each in ends]
            pieces = [(part, each) for part, each in parts if part[axis][0] != part[axis][1]]
            if isinstance(first, Number) and len(pieces) == 2:
                pieces, fill = [one for one in pieces if one[1] is second], first
        values = []
        for part, each in pieces:
            inside, wholes = self.axes.within(place, part)
            value = self.cast(self.value(each, inside, guards), term.dtype)
            if value.scalar:
                return None
            own = self.axes.ordered([*value.axes, *(one for one in wholes if wholes[one] in part)])
            axes = tuple(wholes.get(one, one) for one in own)
            values.append(replace(value, text=self.over(value, own), axes=axes))
        if isinstance(fill, Number):
            return _padded(values[0], pieces[0][0], literal(fill.value, term.dtype).text)
        axes = self.axes.ordered(one for value in values for one in value.axes)
        listed = ", ".join(self.over(value, axes) for value in values)
        return Value(f"torch.cat([{listed}], {axes.index(axis) - len(axes)})", axes, term.dtype)

    def over(self, value: Value, axes: tuple[Axis, ...]) -> str:
        """Write a value that is expanded to these axes."""
        if value.axes == axes:
            return value.text
        sizes = ("-1" if axis in value.axes else str(axis.size) for axis in axes)
        return f"{self.aligned(value, axes)}.expand({', '.join(sizes)})"

    def _listed(self, term: Apply, place: Place) -> Value | None:
        """Write a table of constants that code generation turned into a chain of choices."""
        if term.op != "where" or any(
            isinstance(each, Element | Size | Unread | Fold) for each in parts(term)
        ):
            return None
        found = self._places(term, place, MOST_LISTED)
        if found is None:
            return None
        axes = self.axes.of(place[plain_name(free_positions(term, known=self._free)[0])].value)
        text = f"torch.tensor([{', '.join(literal(each, term.dtype).text for each in found)}]"
        kind = f", dtype=torch.{term.dtype}" if term.dtype != "float32" else ""
        return Value(f"{text}{kind}, device=device)", axes, term.dtype)

    def _idiom(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value | None:
        """Write a function that a compiler decomposes, or an unrolled maximum or sum."""
        if (known := known_function(term, self.structures.identity)) is not None:
            written, argument = known
            value = self.as_tensor(self.value(argument, place, guards))
            x = value.operand if written.startswith("{x}") else value.text
            return Value(written.format(x=x), value.axes, value.dtype)
        reduction = self._rolled(term, place)
        return self.value(reduction, place, guards) if reduction is not None else None

    # Reductions.

    def _rolled(self, term: Apply, place: Place) -> Fold | None:
        """Turn an unrolled reduction into one over one or two `lane` loops. None for other terms."""
        found, first = operands(term), sum(name.startswith("lane") for name in place)
        for turns in (each for each in range(len(found), 1, -1) if len(found) % each == 0):
            sizes = (len(found) // turns, turns) if turns < len(found) else (turns,)
            ends = enumerate((Number(size, "int64") for size in sizes), first)
            lanes = tuple(Range(f"lane{number or ''}", Number(0, "int64"), end) for number, end in ends)
            self._in_turn.clear()
            if (body := self._in_lanes(tuple(found), lanes, place)) is not None:
                return Fold(UNROLLED[term.op], lanes, body, term.dtype)
        return None

    def _in_lanes(self, terms: tuple[Term, ...], lanes: Sequence[Range], place: Place) -> Term | None:
        """One term that gives `terms` in order as the lanes vary, the last one fastest. Else None."""
        if terms in self._in_turn:  # shared subterms stay shared
            return self._in_turn[terms]
        first, found = terms[0], None
        wholes = [self.axes.whole(each, place) for each in terms]
        kinds = {(type(each), getattr(each, "op", ""), each.dtype, len(children(each))) for each in terms}
        if len(set(map(self.structures.identity, terms))) == 1:
            found = first
        elif None not in wholes:
            found = self._moved(terms, [each for each in wholes if each is not None], lanes)
        elif len(kinds) == 1 and isinstance(first, Apply | Element):
            columns = zip(*map(children, terms), strict=True)
            inner = [self._in_lanes(column, lanes, place) for column in columns]
            known = tuple(each for each in inner if each is not None)
            memory = {(x.parameter, self.memory.version(x)) for x in terms if isinstance(x, Element)}
            if len(known) == len(inner) and len(memory) <= 1:
                changed = {"args": known} if isinstance(first, Apply) else {"index": known[0]}
                found = replace(first, **changed)
        self._in_turn[terms] = found
        return found

    def _moved(self, terms: Sequence[Term], wholes: Sequence[Whole], lanes: Sequence[Range]) -> Term | None:
        """The first term plus a step for each lane. None if this does not give all `terms`."""
        found, expected, apart = terms[0], [wholes[0]] * len(terms), 1
        for lane in reversed(lanes):
            assert isinstance(lane.stop, Number)
            step, turns = wholes[apart] - wholes[0], int(lane.stop.value)
            expected = [each + step * constant(at // apart % turns) for at, each in enumerate(expected)]
            by = Apply("sub", (terms[apart], terms[0]), "int64")
            found = Apply("add", (found, Apply("mul", (by, Position(lane.name)), "int64")), "int64")
            apart *= turns
            if self.axes.of(step):
                return None
        return found if expected == list(wholes) else None

    def _folded(self, term: Fold, place: Place, guards: tuple[Value, ...]) -> Value:
        inside = self.axes.entered(term.ranges, place)
        over = [axis for each in term.ranges for axis in inside[plain_name(each.name)].axes]
        value = self.as_tensor(self.value(term.body, inside, guards))
        there = [axis for axis in over if axis in value.axes]
        lacking = [axis for axis in over if axis not in value.axes]
        kind, dtype = term.kind, term.dtype
        if kind in ("sum", "prod") and lacking:
            if kind == "prod":
                raise NotRead("a product over an axis that its factor does not have")
            times = " * ".join(operand(axis.size) for axis in lacking)
            value = Value(f"{self.cast(value, dtype).operand} * {times}", value.axes, dtype, is_atom=False)
        if not there:
            return self.cast(value, dtype) if kind != "m2" else Value("0.0", (), dtype, scalar=True)
        return self._reduced(kind, value, dtype, there, whole=not lacking)

    def _reduced(self, kind: str, value: Value, dtype: str, there: Sequence[Axis], *, whole: bool) -> Value:
        """Reduce a value over the axes `there`. `whole`: it has all axes of the fold."""
        dims = [value.axes.index(axis) - len(value.axes) for axis in there]
        left = tuple(axis for axis in value.axes if axis not in there)
        at = str(dims[0]) if len(dims) == 1 else f"({', '.join(map(str, dims))})"
        at = at if left else ""
        after, text = f"{at}, " if at else "", value.operand
        if kind == "sum":
            if value.dtype != dtype:
                return Value(f"{text}.sum({after}dtype=torch.{dtype})", left, dtype)
            total = self.named(Value(f"{text}.sum({at})", left, dtype), "total")
            if whole:
                self._sums[total.text] = (f"{text}.mean({at})", product(axis.size for axis in there))
            return total
        if kind in REDUCED:
            found = "bool" if kind in ("any", "all") else value.dtype
            return self.cast(Value(f"{text}.{REDUCED[kind]}({at})", left, found), dtype)
        if kind == "m2":
            count = " * ".join(operand(axis.size) for axis in there)
            variance = f"{text}.var({after}correction=0)"
            spread = Value(f"{variance} * {count}", left, value.dtype, is_atom=False)
            spread = self.named(self.cast(spread, dtype), "spread")
            self._sums[spread.text] = (variance, product(axis.size for axis in there))
            return spread
        if kind == "prod":
            for dim in sorted(dims):  # they are negative: dimensions to the right keep their numbers
                text = f"{text}.prod({dim})"
            return self.cast(Value(text, left, value.dtype), dtype)
        if kind in ("argmax", "argmin"):
            if len(dims) == 1:
                return Value(f"{text}.{kind}({dims[0]})", left, "int64")
            if dims == list(range(-len(dims), 0)):
                return Value(f"{text}.flatten({-len(dims)}).{kind}(-1)", left, "int64")
        raise NotRead(f"the reduction {kind}")


@dataclass(frozen=True)
class Indexed:
    """An index of a tensor by dimension: `parts` as text, and the axes of the result.

    `places` are the known values of computed parts; `is_known` if all are. `by_dim` has the axis of each
    dimension. Empty if one is sliced or has no axis of its own. `gathers` is the dimension along which
    `gather` reads the same elements, or None.
    """

    of: Tensor
    parts: Sequence[str]
    axes: tuple[Axis, ...]
    places: Mapping[int, Sequence[int]]
    is_known: bool
    by_dim: tuple[Axis, ...]
    gathers: int | None

    @property
    def text(self) -> str:
        return f"{self.of.text}{bracketed(self.parts)}"

    @property
    def along(self) -> str:
        """What `gather` and `scatter_` take: the dimension and the index."""
        return f"{self.gathers}, {self.parts[self.gathers or 0]}"


def _in_memory(at: Sequence[Whole], strides: Sequence[Whole]) -> Whole:
    """The offset in memory of an index by dimension."""
    whole = Whole()
    for one, stride in zip(at, strides, strict=True):
        whole = whole + one * stride
    return whole


def _gather_dim(at: Mapping[int, Value], order: Sequence[Axis | None]) -> int | None:
    """The dimension for `gather` if there is one index, which has all axes in order. Else None."""
    ((dim, value), *more) = at.items()
    same = (*value.axes[:dim], *value.axes[dim + 1 :]) == (*order[:dim], *order[dim + 1 :])
    return dim if same and not more and len(value.axes) == len(order) else None


def _placed(joint: Sequence[Axis], at: Collection[int], axis_at: Mapping[int, Axis]) -> tuple[Axis, ...]:
    """Place the axes of indices among those of slices, as torch does."""
    left = {dim: axis for dim, axis in axis_at.items() if dim not in at}
    first = min(at)
    if any(first < dim < max(at) for dim in left):
        first = -1  # if slices separate the indices, the axes of the indices come first
    before = [axis for dim, axis in left.items() if dim < first]
    return (*before, *joint, *(axis for dim, axis in left.items() if dim > first))


PADDED: Mapping[str, Callable[[int, int], int]] = {
    "reflect": lambda at, size: size - 1 - abs(size - 1 - abs(at)),
    "replicate": lambda at, size: min(max(at, 0), size - 1),
    "circular": lambda at, size: at % size,
}


def resampled(tensor: Tensor, places: Mapping[int, Sequence[int]]) -> str:
    """Write a gather at known places as `roll`, `F.pad` or `F.interpolate`. Empty for other places."""
    sizes = [size.number or 0 for size in tensor.sizes]
    ends = _ends("circular", places, sizes)
    if ends and all(len(found) == sizes[dim] for dim, found in places.items()):
        by = [ends[dim][0] - sizes[dim] * (2 * ends[dim][0] > sizes[dim]) for dim in places]
        return f"{tensor.text}.roll(({_comma(by)}), ({_comma(places)}))"
    last = max(len(sizes) - min(places), len(sizes) - 2)
    if not 0 < last <= 3 or last < len(sizes) - 2 or last == len(sizes) or not is_float(tensor.dtype):
        return ""
    places = {dim: places.get(dim, range(sizes[dim])) for dim in range(len(sizes) - last, len(sizes))}
    if last == len(sizes) - 2 and all(_is_enlarged(found, sizes[dim]) for dim, found in places.items()):
        return f"F.interpolate({tensor.text}, ({_comma(map(len, places.values()))}))"
    for mode in PADDED:
        if ends := _ends(mode, places, sizes):
            pairs = [end for dim in reversed(places) for end in ends[dim]]
            return f'F.pad({tensor.text}, ({_comma(pairs)}), mode="{mode}")'
    return ""


def _ends(mode: str, places: Mapping[int, Sequence[int]], sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """How much padding at both ends of each dimension gives these places. Empty if none does."""
    found = {}
    for dim, wanted in places.items():
        size, more = sizes[dim], len(wanted) - sizes[dim]
        for before in range(size if more >= 0 else 0):
            read = (PADDED[mode](at - before, size) for at in range(len(wanted)))
            fits = before <= more < before + size or (mode == "circular" and not more)
            if fits and all(map(eq, read, wanted)):
                found[dim] = before, more - before
                break
    return found if len(found) == len(places) else {}


def _comma(numbers: Iterable[int]) -> str:
    found = [str(each) for each in numbers]
    return ", ".join(found) + "," * (len(found) == 1)


def _padded(value: Value, box: Box, fill: str) -> Value:
    """Write a value that is known in a box of its axes, with one number around it."""
    ends: list[str] = []
    for axis in reversed(value.axes):
        start, stop = box.get(axis, (axis.start, axis.last + constant(1)))
        ends += [str(start - axis.start), str(axis.last + constant(1) - stop)]
    while ends[-2:] == ["0", "0"]:
        ends = ends[:-2]
    more = f", value={fill}" if fill not in ("0", "0.0", "False") else ""
    return Value(f"F.pad({value.text}, ({', '.join(ends)}){more})", value.axes, value.dtype)


def _is_enlarged(found: Sequence[int], size: int) -> bool:
    return len(found) % size == 0 and all(at * size // len(found) == each for at, each in enumerate(found))


def permuted(value: Value, axes: tuple[Axis, ...]) -> Value:
    """A value with its axes in this order."""
    order = ", ".join(str(value.axes.index(axis)) for axis in axes)
    return value if value.axes == axes else Value(f"{value.operand}.permute({order})", axes, value.dtype)


def _viewed(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> str:
    """Write a view in which dimensions that are read backwards are flipped. Empty if it is not a view."""
    forward, flipped = [], []
    for number, step in enumerate(steps):
        if not step.stride.is_positive_or_zero():
            flipped.append(number)
            offset = offset + step.stride * (step.size - constant(1))
            step = Step(step.size, Whole() - step.stride)
        if not step.stride.is_positive_or_zero():
            return ""
        forward.append(step)
    if not offset.is_positive_or_zero():
        return ""
    text = view(tensor, forward, offset)
    return f"{text}.flip({', '.join(map(str, flipped))})" if flipped else text


_X = Translator(lambda name: Size(name, "float32"))
IDIOMS = [
    (written, _X.term(read_cpp(taken_apart)))
    for written, taken_apart in (
        ("{x}.sigmoid()", "1 / (1 + exp(-x))"),
        ("F.silu({x})", "x / (1 + exp(-x))"),
        ("F.silu({x})", "x * sigmoid(x)"),
        ("F.gelu({x})", "(x * 0.5) * (erf(x * 0.7071067811865476) + 1)"),
        (
            'F.gelu({x}, approximate="tanh")',
            "(x * 0.5) * (tanh((x + ((x * x) * x) * 0.044715) * 0.7978845608028654) + 1)",
        ),
        ("F.hardswish({x})", "(x * minimum(maximum(x + 3, 0), 6)) / 6"),
        ("F.softplus({x})", "x > 20 ? x : log1p(exp(x))"),
        ("F.mish({x})", "x * tanh(x > 20 ? x : log1p(exp(x)))"),
        ("F.elu({x})", "x > 0 ? x * 1 : expm1(x * 1) * 1"),
        ("F.elu({x})", "x > 0 ? x * 1 : (exp(x * 1) - 1) * 1"),
    )
]
"""Functions of torch, and what a compiler makes of them."""


def known_function(term: Apply, identity: Callable[[Term], int]) -> tuple[str, Term] | None:
    """The known function that a term computes, and its argument, or None."""
    for written, pattern in IDIOMS:
        found: list[Term] = []
        if _fits(pattern, term, found, identity):
            return written, found[0]
    return None


def _fits(pattern: Term, term: Term, found: list[Term], identity: Callable[[Term], int]) -> bool:
    """Whether a term matches the pattern, and all `x` in it are the same operand (added to `found`)."""
    match pattern, term:
        case Size(), _:
            found.append(term)
            return identity(found[0]) == identity(term)
        case Number(value=value), Number():
            return abs(float(term.value) - float(value)) < 1e-6
        case Apply(op=op, args=args), Apply(args=given) if op == term.op:
            orders = [given, given[::-1]] if op in ("add", "mul") else [given]
            for order in orders:
                start = len(found)
                if all(_fits(one, two, found, identity) for one, two in zip(args, order, strict=True)):
                    return True
                del found[start:]
    return False
