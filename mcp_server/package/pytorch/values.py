"""Terms of a kernel as expressions of torch, each over as few axes as it depends on."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mcp_server.package.pytorch.axes import Axes, Axis, NotRead, Place, plain_name
from mcp_server.package.pytorch.views import Step, Tensor, view
from mcp_server.package.pytorch.whole import Whole, constant, product
from mcp_server.package.terms import (
    Apply,
    Element,
    Evaluator,
    Fold,
    Number,
    Position,
    Range,
    Size,
    Store,
    Term,
    UnknownValue,
    Unread,
    parts,
    rebuilt,
    say,
)
from mcp_server.package.terms.evaluate import MATH
from mcp_server.package.terms.syntax import read_cpp
from mcp_server.package.terms.term import (
    SIGNS,
    UNROLLED,
    free_positions,
    is_float,
    key,
    promoted,
    unrolled,
    unwrapped,
)
from mcp_server.package.terms.translate import Translator

INFIX = {op: sign for op, (sign, _) in SIGNS.items() if op not in ("truncdiv", "remainder")}
INFIX |= {"and": "&", "or": "|"}
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
TWO = {"pow": "pow", "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "remainder": "fmod"}
METHODS = MATH.keys() - TWO.keys() | {"round", "square"}
_X = Translator(lambda name: Size(name, "float32"))
IDIOMS = [
    (written, _X.term(read_cpp(taken_apart)))
    for written, taken_apart in (
        ("{x}.sigmoid()", "1 / (1 + exp(-x))"),
        ("F.silu({x})", "x / (1 + exp(-x))"),
        ("F.silu({x})", "x * sigmoid(x)"),
        ("F.gelu({x})", "(x * 0.5) * (erf(x * 0.7071067811865476) + 1)"),
    )
]
"""Functions of torch, and what a compiler makes of them."""
LONG = 90  # characters of an expression that gets a name
MOST_LISTED = 64  # elements of a constant that are written out
CASTS = {"float32": "float()", "float64": "double()", "int64": "long()", "int32": "int()", "bool": "bool()"}


@dataclass(frozen=True)
class Value:
    """An expression, the axes of its dimensions, its type; a `scalar` is a number of Python.

    `is_atom`: it needs no parentheses as an operand. `view_of` is the variable whose memory it shows.
    """

    text: str
    axes: tuple[Axis, ...]
    dtype: str
    scalar: bool = False
    is_atom: bool = True
    view_of: str = ""

    @property
    def operand(self) -> str:
        return self.text if self.is_atom else f"({self.text})"


class Values:
    """Writes the values of one kernel; `lines` are the statements so far.

    `memory` tells for a loaded element the tensor that holds it at that line of the kernel; `stored` are
    tensors that the kernel made, each with the index and the value that was stored.
    """

    def __init__(self, axes: Axes, memory: Memory) -> None:
        self.axes, self.memory = axes, memory
        self.lines: list[str] = []
        self.taken: set[str] = set()
        self._sums: dict[str, tuple[str, str, Whole]] = {}
        self.uses: dict[int, int] = {}
        self.stored: dict[str, tuple[Whole, Value]] = {}
        self._known: dict[tuple[int, frozenset[int], tuple[str, ...]], Value] = {}
        self._named: dict[tuple[str, tuple[Axis, ...]], Value] = {}
        self._identity: dict[Term, int] = {}
        self._structures: dict[tuple[object, ...], int] = {}

    # Terms that are built alike are one.

    def identity(self, term: Term) -> int:
        """The same number for two terms of one structure."""
        if term not in self._identity:
            inner: tuple[object, ...]
            match term:
                case Number(value=value, dtype=dtype):
                    inner = ("number", repr(value), dtype)
                case Position(name=name):
                    inner = ("position", plain_name(name))
                case Size(name=name):
                    inner = ("size", name)
                case Element(parameter=parameter, index=index, dtype=dtype):
                    version = self.memory.version(term)
                    inner = ("element", parameter, version, self.identity(index), dtype)
                case Apply(op=op, args=args, dtype=dtype):
                    inner = (op, dtype, *map(self.identity, args))
                case Fold(kind=kind, ranges=ranges, body=body, dtype=dtype):
                    ends = (
                        (plain_name(r.name), self.identity(r.start), self.identity(r.stop)) for r in ranges
                    )
                    inner = ("fold", kind, dtype, self.identity(body), *ends)
                case Unread(text=text, args=args):
                    inner = ("unread", text, *map(self.identity, args))
            self._identity[term] = self._structures.setdefault(inner, len(self._structures))
        return self._identity[term]

    def count(self, *terms: Term) -> None:
        """Count uses, so that what is used twice gets a name."""
        seen: set[int] = set()
        for term in terms:
            self._count(term, seen)

    def _count(self, term: Term, seen: set[int]) -> None:
        number = self.identity(term)
        self.uses[number] = self.uses.get(number, 0) + 1
        if number in seen:
            return
        seen.add(number)
        match term:
            case Apply(args=args) | Unread(args=args):
                for each in args:
                    self._count(each, seen)
            case Element(index=index):
                self._count(index, seen)
            case Fold(body=body):
                self._count(body, seen)

    # Expressions.

    def named(self, value: Value, hint: str = "t") -> Value:
        """The value under a name of its own."""
        if value.scalar or re.fullmatch(r"\w+", value.text):
            return value
        key = (value.text, value.axes)
        if key not in self._named:
            name = self.fresh(hint)
            self.lines.append(f"{name} = {value.text}")
            self._named[key] = Value(name, value.axes, value.dtype)
        return self._named[key]

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        number = 1 if hint == "t" else 0
        while (name := f"{hint}{number or ''}") in self.taken | self.memory.names:
            number += 1
        self.taken.add(name)
        return name

    def forget(self, text: str) -> None:
        """After a write in place: expressions that read this variable have another value."""
        word = re.compile(rf"\b{re.escape(text)}\b")
        self._named = {key: value for key, value in self._named.items() if not word.search(key[0])}
        self._known = {key: value for key, value in self._known.items() if not word.search(value.text)}

    def value(self, term: Term, place: Place, guards: tuple[Value, ...] = ()) -> Value:
        """A term as an expression, computed under a test if `guards` has one. Raises `NotRead`.

        Of nested tests only the innermost is kept, so that a term has few forms. A load under it that an
        outer test excludes may have any value, since nobody uses it.
        """
        if not any(isinstance(each, Element) for each in parts(term, inside_indices=True)):
            guards = ()
        used = frozenset(id(place[n]) for n in map(plain_name, free_positions(term)) if n in place)
        key = (self.identity(term), used, tuple(each.text for each in guards))
        if key not in self._known:
            found = self._value(term, place, guards)
            often = self.uses.get(self.identity(term), 0) > 1 and not isinstance(term, Element)
            if (often and len(found.text) > 12) or len(found.text) > LONG or isinstance(term, Fold):
                found = self.named(found, HINTS.get(term.kind, "t") if isinstance(term, Fold) else "t")
            self._known[key] = found
        return self._known[key]

    def _value(self, term: Term, place: Place, guards: tuple[Value, ...]) -> Value:
        match term:
            case Number(value=number, dtype=dtype):
                return _literal(number, dtype)
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

    def of_whole(self, value: Whole) -> Value:
        """A sum over sizes and axes; axes become `torch.arange`."""
        axes = self.axes.of(value)
        text = str(value)
        for axis in axes:
            counted = self.counted(axis)
            text = re.sub(rf"{axis.symbol}\b", self.aligned(counted, axes), text)
        return Value(text, axes, "int64", scalar=not axes, is_atom=re.fullmatch(r"\w+", text) is not None)

    def counted(self, axis: Axis) -> Value:
        """The values of an axis."""
        ends = f"{axis.size}" if axis.start == Whole() else f"{axis.start}, {axis.start + axis.size}"
        key = (f"torch.arange({ends}, device=device)", (axis,))
        if key not in self._named:
            name = self.fresh(axis.name)
            self.lines.append(f"{name} = {key[0]}")
            self._named[key] = Value(name, (axis,), "int64")
        return self._named[key]

    def aligned(self, value: Value, axes: Sequence[Axis], *, alone: bool = False) -> str:
        """An operand that broadcasts to `axes`; `alone`: nothing binds it more than it needs."""
        if value.scalar or value.axes == tuple(axes[len(axes) - len(value.axes) :]):
            return value.text if alone else value.operand
        index = [":" if axis in value.axes else "None" for axis in axes]
        while index[0] == "None":
            index.pop(0)
        return f"{value.operand}[{', '.join(index)}]"

    # Loads.

    def affine(self, index: Term, place: Place) -> tuple[tuple[Axis, ...], list[Step], Whole] | None:
        """Axes, steps and offset of an index that is a sum of axes; None for another one."""
        whole = self.axes.whole(index, place)
        return self.steps(whole) if whole is not None else None

    def steps(self, whole: Whole) -> tuple[tuple[Axis, ...], list[Step], Whole] | None:
        """The same of a sum."""
        axes, offset, steps = self.axes.of(whole), whole, []
        for axis in axes:
            step = whole.coefficient(axis.symbol)
            offset = offset - step * _symbol(axis)
            if self.axes.of(step):
                return None
            offset = offset + step * axis.start
            steps.append(Step(axis.size, step))
        return None if self.axes.of(offset) else (axes, steps, offset)

    def _loaded(self, term: Element, place: Place, guards: tuple[Value, ...]) -> Value:
        tensor = self.memory.tensor(term)
        whole = self.axes.whole(term.index, place)
        if tensor.text in self.stored and self.stored[tensor.text][0] == whole:
            return self.stored[tensor.text][1]
        found = self.steps(whole) if whole is not None else None
        if found is not None:
            text = _viewed(tensor, found[1], found[2])
            # Under a test the elements may lie outside of the tensor, unless they are known not to.
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
        """A flat index."""
        whole = self.axes.whole(index, place)
        return self.of_whole(whole) if whole is not None else self.value(index, place, guards)

    def _gathered(self, term: Element, tensor: Tensor, place: Place) -> Value | None:
        """`table[ids]`: whole rows at computed places; None where the index is none of that kind."""
        split = self._split(term.index, place)
        if split is None or not tensor.sizes or split[1] != tensor.strides[0]:
            return None
        value, _, rest = split
        found = self.steps(rest)
        if found is None or found[2] != Whole():
            return None
        inner = replace(tensor, sizes=tensor.sizes[1:], strides=tensor.strides[1:])
        axes, steps, _ = found
        same = len(steps) == len(inner.sizes) and all(
            (step.size, step.stride) == (size, stride)
            for step, size, stride in zip(steps, inner.sizes, inner.strides, strict=True)
        )
        if (
            not same
            or set(value.axes) & set(axes)
            or value.axes + axes != self.axes.ordered(value.axes + axes)
        ):
            return None
        return Value(f"{tensor.text}[{value.text}]", value.axes + axes, term.dtype)

    def _split(self, index: Term, place: Place) -> tuple[Value, Whole, Whole] | None:
        """The one computed summand of an index, its factor, and the sum of the others."""
        computed: list[tuple[int, Term]] = []
        rest = Whole()
        for factor, each in _summands(index):
            whole = self.axes.whole(each, place)
            if whole is None:
                computed.append((factor, each))
            else:
                rest = rest + constant(factor) * whole
        if len(computed) != 1:
            return None
        ((factor, summand),) = computed
        value = self.value(unwrapped(summand), place)
        return (value, constant(factor), rest) if not value.scalar else None

    # Operators.

    def cast(self, value: Value, dtype: str) -> Value:
        if value.scalar or value.dtype == dtype:
            return value
        how = CASTS.get(dtype) or f"to(torch.{dtype})"
        return Value(f"{value.operand}.{how}", value.axes, dtype)

    def as_tensor(self, value: Value, dtype: str | None = None) -> Value:
        if not value.scalar:
            return value
        dtype = dtype or value.dtype
        return Value(f"torch.tensor({value.text}, dtype=torch.{dtype}, device=device)", (), dtype)

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
        values = [self.value(each, place, guards) for each in term.args]
        if op == "cast":
            return self._converted(values[0], dtype)
        if all(each.scalar for each in values):
            values[0] = self.as_tensor(values[0], promoted(*(each.dtype for each in values)))
        axes = self.axes.ordered(axis for each in values for axis in each.axes)
        if op in ("and", "or"):
            values = [self._tested(each) for each in values]
        if op in INFIX and not (op == "div" and not is_float(dtype)):
            return self._infix(op, values, axes, dtype)
        if op in ("div", "truncdiv"):
            left, right = (self.aligned(each, axes) for each in values)
            kind = promoted(*(each.dtype for each in values if not each.scalar))
            text = f"torch.div({left}, {right}, rounding_mode='trunc')"
            return self.cast(Value(text, axes, kind), dtype)
        if op.startswith("rand"):
            given = [self.aligned(each, axes, alone=True) for each in values]
            name, where = op.removesuffix("_cpu"), "" if op.endswith("_cpu") else ", gpu=True"
            return Value(f"{name}({', '.join(given)}{where})", axes, dtype)
        if op in ("maximum", "minimum"):
            return self._extreme(op, values, axes, dtype)
        first = values[0]
        if op == "neg":
            return self.cast(Value(f"-{first.operand}", axes, first.dtype, is_atom=False), dtype)
        if op == "not":
            return Value(f"~{self._tested(first).operand}", axes, "bool", is_atom=False)
        if op == "bitnot":
            return Value(f"~{first.operand}", axes, first.dtype, is_atom=False)
        if op in METHODS:
            if is_float(dtype) and not is_float(first.dtype):
                first = self.cast(first, dtype)
            kind = "bool" if op in ("isnan", "isinf", "signbit") else first.dtype
            name = f"{first.operand}.{op}()" if op != "signbit" else f"torch.signbit({first.text})"
            return self.cast(Value(name, axes, kind), dtype)
        if op in TWO:
            left, right = (self.aligned(each, axes) for each in values)
            kind = promoted(*(each.dtype for each in values if not each.scalar))
            return self.cast(Value(f"torch.{TWO[op]}({left}, {right})", axes, kind), dtype)
        raise NotRead(f"the operator {op}")

    def _tested(self, value: Value) -> Value:
        if value.dtype == "bool" or value.scalar:
            return value
        return Value(f"{value.operand} != 0", value.axes, "bool", is_atom=False)

    def _converted(self, value: Value, dtype: str) -> Value:
        if value.scalar:
            if dtype == "bool" or (is_float(value.dtype) and not is_float(dtype)):
                value = self.as_tensor(value)
            else:
                text = f"float({value.text})" if is_float(dtype) and not is_float(value.dtype) else value.text
                return replace(value, text=text, dtype=dtype)
        return self._tested(value) if dtype == "bool" else self.cast(value, dtype)

    def _infix(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if op in ("add", "sub", "mul", "div") and dtype != "bool":
            values = [self.cast(each, dtype) if each.dtype == "bool" else each for each in values]
        if op == "div" and (mean := self._mean(values)) is not None:
            return mean
        left, right = (self.aligned(each, axes) for each in values)
        kind = promoted(*(each.dtype for each in values if not each.scalar))
        fraction = any(each.scalar and is_float(each.dtype) for each in values)
        if op in COMPARED or op in ("and", "or"):
            kind = "bool"
        elif (fraction or op == "div") and not is_float(kind):
            kind = "float32"
        return self.cast(Value(f"{left} {INFIX[op]} {right}", axes, kind, is_atom=False), dtype)

    def _mean(self, values: Sequence[Value]) -> Value | None:
        """A sum divided by how many it has."""
        total, count = values
        if total.text not in self._sums or not count.scalar:
            return None
        text, at, size = self._sums[total.text]
        told = count.text.removeprefix("float(").removesuffix(")")
        same = told == str(size) or (_is_number(told) and float(told) == size.number)
        return Value(f"{text}.mean({at})", total.axes, total.dtype) if same else None

    def _extreme(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if values[0].scalar:
            values = values[::-1]
        first, second = values
        if second.scalar:
            if is_float(second.dtype) and not is_float(first.dtype):
                first = self.cast(first, dtype)
            if op == "maximum" and float(second.text or 0) == 0 if _is_number(second.text) else False:
                return self.cast(Value(f"{first.operand}.relu()", axes, first.dtype), dtype)
            end = "min" if op == "maximum" else "max"
            return self.cast(Value(f"{first.operand}.clamp({end}={second.text})", axes, first.dtype), dtype)
        left, right = (self.aligned(self.cast(each, dtype), axes) for each in values)
        return Value(f"torch.{op}({left}, {right})", axes, dtype)

    def _chosen(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value:
        """`torch.where`. An element behind a test is loaded only where the test holds."""
        test, first, second = term.args
        held = self._tested(self.as_tensor(self.value(test, place, guards)))
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
        kinds = [each.dtype for each in (left, right) if not each.scalar]
        kind = promoted(*kinds) if kinds else "scalars"
        text = f"torch.where({', '.join(self.aligned(each, axes).strip() for each in (held, left, right))})"
        return self.cast(Value(text, axes, kind), term.dtype)

    def _listed(self, term: Apply, place: Place) -> Value | None:
        """A table of constants that code generation wrote as a chain of choices."""
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
        text = f"torch.tensor([{', '.join(_literal(each, term.dtype).text for each in found)}]"
        kind = f", dtype=torch.{term.dtype}" if term.dtype != "float32" else ""
        return Value(f"{text}{kind}, device=device)", loop.axes, term.dtype)

    def _idiom(self, term: Apply, place: Place, guards: tuple[Value, ...]) -> Value | None:
        """A function that a compiler takes apart, of the table; an unrolled maximum or sum."""
        for written, pattern in IDIOMS:
            found: list[Term] = []
            if self._fits(pattern, term, found):
                value = self.as_tensor(self.value(found[0], place, guards))
                x = value.operand if written.startswith("{x}") else value.text
                return Value(written.format(x=x), value.axes, value.dtype)
        rolled = _rolled(term)
        return self.value(rolled, place, guards) if rolled is not None else None

    def _fits(self, pattern: Term, term: Term, found: list[Term]) -> bool:
        """Whether a term is built as the pattern, with the same in each place of `x`, which it adds."""
        match pattern, term:
            case Size(), _:
                found.append(term)
                return self.identity(found[0]) == self.identity(term)
            case Number(value=value), Number():
                return abs(float(term.value) - float(value)) < 1e-6
            case Apply(op=op, args=args), Apply(args=given) if op == term.op:
                orders = [given, given[::-1]] if op in ("add", "mul") else [given]
                for order in orders:
                    start = len(found)
                    if all(self._fits(one, two, found) for one, two in zip(args, order, strict=True)):
                        return True
                    del found[start:]
        return False

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
            times = " * ".join(_operand(axis.size) for axis in lacking)
            value = Value(f"{self.cast(value, dtype).operand} * {times}", value.axes, dtype, is_atom=False)
        if not there:
            return self.cast(value, dtype) if kind != "m2" else Value("0.0", (), dtype, scalar=True)
        if kind == "mean" and lacking:
            lacking = []
        dims = [value.axes.index(axis) - len(value.axes) for axis in there]
        left = tuple(axis for axis in value.axes if axis not in there)
        at = str(dims[0]) if len(dims) == 1 else f"({', '.join(map(str, dims))})"
        if not left:
            at = ""
        text = value.operand
        if kind == "sum":
            if value.dtype != dtype:
                return Value(f"{text}.sum({at}{', ' if at else ''}dtype=torch.{dtype})", left, dtype)
            total = self.named(Value(f"{text}.sum({at})", left, dtype), "total")
            if not lacking:
                self._sums[total.text] = (text, at, product(axis.size for axis in there))
            return total
        if kind in REDUCED:
            found = "bool" if kind in ("any", "all") else value.dtype
            return self.cast(Value(f"{text}.{REDUCED[kind]}({at})", left, found), dtype)
        if kind == "m2":
            count = " * ".join(_operand(axis.size) for axis in there)
            spread = f"{text}.var({at}{', ' if at else ''}correction=0) * {count}"
            return self.cast(Value(spread, left, value.dtype, is_atom=False), dtype)
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


REDUCED = {"mean": "mean", "max": "amax", "min": "amin", "any": "any", "all": "all"}
NESTED = Value("nested", (), "bool")
"""Beside the innermost test under which a value is computed: there are outer ones, too."""
HINTS = {"sum": "total", "max": "largest", "min": "least", "mean": "mean", "m2": "spread", "prod": "product"}


class Memory:
    """The tensors of a kernel's parameters as loads see them: by the stores before them."""

    def __init__(self, tensors: Mapping[str, Tensor], stores: Sequence[Store] = ()) -> None:
        self.start = dict(tensors)
        self._stores = [(self._text(each.parameter), each.line) for each in stores]
        self.states: dict[str, list[tuple[int, Tensor]]] = {name: [(0, t)] for name, t in tensors.items()}

    @property
    def names(self) -> set[str]:
        return {tensor.text for states in self.states.values() for _, tensor in states}

    def written(self, parameter: str, line: int, tensor: Tensor) -> None:
        """From this line on the parameter holds that tensor."""
        self.states[parameter].append((line, tensor))

    def rename(self, parameters: Collection[str], text: str, name: str) -> None:
        """What these parameters held so far is now called `name`."""
        for parameter in parameters:
            states = self.states[parameter]
            states[:] = [(at, replace(t, text=name) if t.text == text else t) for at, t in states]

    def version(self, element: Element) -> int:
        """How many stores a load sees."""
        text = self._text(element.parameter)
        return sum(text == written and line < element.line for written, line in self._stores)

    def _text(self, parameter: str) -> str:
        return self.start[parameter].text if parameter in self.start else parameter

    def tensor(self, element: Element) -> Tensor:
        found = [t for line, t in self.states.get(element.parameter, ()) if line < element.line or line == 0]
        if not found:
            raise NotRead(f"a load of {element.parameter}, which is no argument")
        return found[-1]


def _viewed(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> str:
    """A view, with the dimensions flipped that are walked backwards; empty where it is none."""
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


def _symbol(axis: Axis) -> Whole:
    return Whole((((axis.symbol,), 1),))


def _operand(value: Whole) -> str:
    return str(value) if value.is_atom else f"({value})"


def _literal(value: bool | int | float, dtype: str) -> Value:
    if dtype == "bool":
        return Value(str(bool(value)), (), dtype, scalar=True)
    if not is_float(dtype):
        return Value(str(int(value)), (), dtype, scalar=True, is_atom=value >= 0)
    number = float(value)
    text = repr(number) if math.isfinite(number) else f"float('{number}')".replace("'", '"')
    return Value(text, (), dtype, scalar=True, is_atom=not text.startswith("-"))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) is not None


def _summands(term: Term, factor: int = 1) -> Iterator[tuple[int, Term]]:
    """The summands of an index, each with its constant factor."""
    match term:
        case Apply("add", (left, right)):
            yield from _summands(left, factor)
            yield from _summands(right, factor)
        case Apply("mul", (Number(value=value), other) | (other, Number(value=value))):
            yield from _summands(other, factor * int(value))
        case Apply("cast", (inner,)) if not is_float(inner.dtype) and not is_float(term.dtype):
            yield from _summands(inner, factor)
        case _:
            yield factor, term


def _rolled(term: Apply) -> Fold | None:
    """A reduction that was written out over elements at equal distances; None for another term."""
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
    """The distance between the indices of elements of one tensor, where it is always the same."""
    first = elements[0]
    split = [sorted(_shape(each.index)) for each in elements]
    places = [
        sum(factor * int(each.value) for factor, each in _summands(one.index) if isinstance(each, Number))
        for one in elements
    ]
    steps = {after - before for before, after in pairwise(places)}
    alike = all(each.parameter == first.parameter for each in elements) and all(s == split[0] for s in split)
    return steps.pop() if len(steps) == 1 and alike and min(steps) >= 0 else None


def _shape(index: Term) -> Iterator[str]:
    """The summands of an index without its constant."""
    for factor, each in _summands(index):
        if not isinstance(each, Number):
            yield f"{factor} {say(each)}"
