"""Kernel terms as torch expressions. Each expression extends only over the axes that it depends on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from mcp_server.package.pytorch.axes import Axes, Axis, NotRead, Place, plain_name, summands
from mcp_server.package.pytorch.expressions import Operators, Value, literal, operand
from mcp_server.package.pytorch.views import Memory, Step, Structures, Tensor, view
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.linear import linear
from mcp_server.package.terms.parts import (
    UNROLLED,
    free_positions,
    key,
    parts,
    rebuilt,
    unrolled,
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
    Size,
    Term,
    Unread,
    promoted,
)
from mcp_server.package.terms.translate import Translator
from mcp_server.package.terms.whole import Whole, constant, product

LONG = 90  # characters; longer expressions get a name
MOST_LISTED = 64  # elements of a constant that are written out
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

    def value(self, term: Term, place: Place, guards: tuple[Value, ...] = ()) -> Value:
        """Write a term as an expression, under a condition if `guards` has one. May raise `NotRead`.

        Of nested conditions only the innermost is kept, so that a term has few forms. If an outer condition
        excludes a load, the load may give any value, because nothing uses it.
        """
        if not any(isinstance(each, Element) for each in parts(term, inside_indices=True)):
            guards = ()
        used = frozenset(id(place[n]) for n in map(plain_name, free_positions(term)) if n in place)
        key = (self.structures.identity(term), used, tuple(each.text for each in guards))
        if key not in self._known:
            found = self._value(term, place, guards)
            often = self.structures.is_shared(term) and not isinstance(term, Element)
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
        if not guards and (gathered := self._gathered(term, tensor, place)) is not None:
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

    def _gathered(self, term: Element, tensor: Tensor, place: Place) -> Value | None:
        """Return `table[ids]`, which reads at computed places of a dimension. None for other indices."""
        found = self.indexed(tensor, term.index, place)
        if found is None:
            return None
        read = Value(f"{tensor.text}[{found[0]}]", found[1], term.dtype)
        return permuted(read, self.axes.ordered(found[1]))

    def indexed(self, tensor: Tensor, index: Term, place: Place) -> tuple[str, tuple[Axis, ...]] | None:
        """Write an index that is computed in one dimension and covers the others: `:, ids`, with its axes.

        Return None for any other index.
        """
        split = self._split(index, place)
        if split is None or tensor.strides.count(split[1]) != 1:
            return None
        summand, step, rest = split
        dim = tensor.strides.index(step)
        size = wrapped_by(summand)
        if size is not None and self.axes.whole(size, place) != tensor.sizes[dim]:
            return None
        value, found = self.value(unwrapped(summand), place), self.steps(rest)
        if value.scalar or found is None or found[2] != Whole():
            return None
        axes, steps, _ = found
        others = [each for at, each in enumerate(zip(tensor.sizes, tensor.strides, strict=True)) if at != dim]
        in_order = axes[:dim] + value.axes + axes[dim:]
        covers = [(each.size, each.stride) for each in steps] == others
        if not covers or set(value.axes) & set(axes):
            return None
        return ":, " * dim + value.text, in_order

    def _split(self, index: Term, place: Place) -> tuple[Term, Whole, Whole] | None:
        """Return the one computed summand of an index, its factor, and the sum of the others."""
        computed: list[tuple[int, Term]] = []
        rest = Whole()
        for factor, each in summands(index):
            whole = self.axes.whole(each, place)
            if whole is None:
                computed.append((factor, each))
            else:
                rest = rest + constant(factor) * whole
        if len(computed) != 1:
            return None
        ((factor, summand),) = computed
        return summand, constant(factor), rest

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

    def _listed(self, term: Apply, place: Place) -> Value | None:
        """Write a table of constants that code generation turned into a chain of choices."""
        if term.op != "where" or any(
            isinstance(each, Element | Size | Unread | Fold) for each in parts(term)
        ):
            return None
        loops = {plain_name(name): place.get(plain_name(name)) for name in free_positions(term)}
        if len(loops) != 1:
            return None
        ((name, loop),) = loops.items()
        if loop is None or len(loop.axes) != 1 or loop.axes[0].start != Whole():
            return None
        size = loop.axes[0].size.number
        if size is None or size > MOST_LISTED:
            return None
        try:
            found = [Evaluator({name: at, f"{name}_tail": at}, {}).value(term) for at in range(size)]
        except UnknownValue:
            return None
        text = f"torch.tensor([{', '.join(literal(each, term.dtype).text for each in found)}]"
        kind = f", dtype=torch.{term.dtype}" if term.dtype != "float32" else ""
        return Value(f"{text}{kind}, device=device)", loop.axes, term.dtype)

    def _idiom(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value | None:
        """Write a function that a compiler decomposes, or an unrolled maximum or sum."""
        if (known := known_function(term, self.structures.identity)) is not None:
            written, argument = known
            value = self.as_tensor(self.value(argument, place, guards))
            x = value.operand if written.startswith("{x}") else value.text
            return Value(written.format(x=x), value.axes, value.dtype)
        reduction = rolled(term)
        return self.value(reduction, place, guards) if reduction is not None else None

    # Reductions.

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
        dims = [value.axes.index(axis) - len(value.axes) for axis in there]
        left = tuple(axis for axis in value.axes if axis not in there)
        at = str(dims[0]) if len(dims) == 1 else f"({', '.join(map(str, dims))})"
        at = at if left else ""
        after, text = f"{at}, " if at else "", value.operand
        if kind == "sum":
            if value.dtype != dtype:
                return Value(f"{text}.sum({after}dtype=torch.{dtype})", left, dtype)
            total = self.named(Value(f"{text}.sum({at})", left, dtype), "total")
            if not lacking:
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
            for dim in sorted(dims, reverse=True):
                text = f"{text}.prod({dim})"
            return self.cast(Value(text, left, value.dtype), dtype)
        if kind in ("argmax", "argmin"):
            if len(dims) == 1:
                return Value(f"{text}.{kind}({dims[0]})", left, "int64")
            if dims == list(range(-len(dims), 0)):
                return Value(f"{text}.flatten({-len(dims)}).{kind}(-1)", left, "int64")
        raise NotRead(f"the reduction {kind}")


def permuted(value: Value, axes: tuple[Axis, ...]) -> Value:
    """Return a value with its axes in this order."""
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
        ("F.elu({x})", "x > 0 ? x * 1 : expm1(x * 1) * 1"),
    )
]
"""Functions of torch, and what a compiler makes of them."""


def known_function(term: Apply, identity: Callable[[Term], int]) -> tuple[str, Term] | None:
    """Return the known function that a term computes, and its argument. None if there is none."""
    for written, pattern in IDIOMS:
        found: list[Term] = []
        if _fits(pattern, term, found, identity):
            return written, found[0]
    return None


def _fits(pattern: Term, term: Term, found: list[Term], identity: Callable[[Term], int]) -> bool:
    """Whether a term matches the pattern, with one operand for all `x`. Operands are added to `found`."""
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


def rolled(term: Apply) -> Fold | None:
    """Return the reduction that is written out over elements at equal distances. None for other terms."""
    operands = unrolled(term)
    if not operands or len({key(each) for each in operands}) > 1:
        return None
    first = operands[0]
    lists = [[part for part in parts(each) if isinstance(part, Element)] for each in operands]
    if not lists[0] or any(len(each) != len(lists[0]) for each in lists):
        return None
    moved = {}
    for column in zip(*lists, strict=True):
        step = _step(column)
        if step is None:
            return None
        if not step:
            continue
        lane = Apply("mul", (Number(step, "int64"), Position("lane")), "int64")
        moved[column[0]] = replace(column[0], index=Apply("add", (column[0].index, lane), "int64"))
    if not moved:
        return None
    ranges = (Range("lane", Number(0, "int64"), Number(len(operands), "int64")),)
    body = rebuilt(first, lambda each: moved.get(each) if isinstance(each, Element) else None)
    return Fold(UNROLLED[term.op], ranges, body, term.dtype)


def _step(elements: Sequence[Element]) -> int | None:
    """Return the constant distance between elements of one tensor. None if it varies."""
    places = [linear(each.index, lambda _: True) or Whole() for each in elements]
    steps = {(after - before).number for before, after in pairwise(places)}
    step = steps.pop() if len({each.parameter for each in elements}) == len(steps) == 1 else None
    return step if step is not None and step >= 0 else None
