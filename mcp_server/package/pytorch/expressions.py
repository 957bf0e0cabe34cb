"""Torch expressions in the text of a function: their names, axes and types, and operators on them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mcp_server.package.pytorch.axes import Axes, Axis, NotRead
from mcp_server.package.pytorch.views import Memory, Step
from mcp_server.package.terms.evaluate import MATH
from mcp_server.package.terms.parts import SIGNS
from mcp_server.package.terms.term import is_float, promoted
from mcp_server.package.terms.whole import Whole, named

Affine: TypeAlias = tuple[tuple[Axis, ...], list[Step], Whole]
"""The axes of an index, its step along each, and its offset."""
CASTS = {"float32": "float()", "float64": "double()", "int64": "long()", "int32": "int()", "bool": "bool()"}


@dataclass(frozen=True)
class Value:
    """An expression, the axes of its dimensions, and its type. A `scalar` is a Python number.

    `is_atom`: as an operand it needs no parentheses. `view_of` is the variable whose memory it shares.
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


class Expressions:
    """The statements of one kernel so far (`lines`), and the names that these give to values."""

    def __init__(self, axes: Axes, memory: Memory) -> None:
        self.axes, self.memory = axes, memory
        self.lines: list[str] = []
        self.taken: set[str] = set()
        self._known: dict[tuple[int, frozenset[int], tuple[str, ...]], Value] = {}
        self._named: dict[str, str] = {}

    def named(self, value: Value, hint: str = "t") -> Value:
        """Assign the value to a variable, unless it is a number or already a name."""
        if value.scalar or re.fullmatch(r"\w+", value.text):
            return value
        if value.text not in self._named:
            self._named[value.text] = self.fresh(hint)
            self.lines.append(f"{self._named[value.text]} = {value.text}")
        return Value(self._named[value.text], value.axes, value.dtype)

    def fresh(self, hint: str) -> str:
        """An unused name."""
        number = 1 if hint == "t" else 0
        while (name := f"{hint}{number or ''}") in self.taken | self.memory.names:
            number += 1
        self.taken.add(name)
        return name

    def forget(self, text: str) -> None:
        """Forget the expressions that read this variable: a write in place changes their values."""
        word = re.compile(rf"\b{re.escape(text)}\b")
        self._named = {key: name for key, name in self._named.items() if not word.search(key)}
        self._known = {key: value for key, value in self._known.items() if not word.search(value.text)}

    def of_whole(self, value: Whole) -> Value:
        """Write a sum over sizes and axes, with `torch.arange` for axes."""
        axes = self.axes.of(value)
        text = str(value)
        for axis in axes:
            counted = self.counted(axis)
            text = re.sub(rf"{axis.symbol}\b", self.aligned(counted, axes), text)
        return Value(text, axes, "int64", scalar=not axes, is_atom=re.fullmatch(r"\w+", text) is not None)

    def counted(self, axis: Axis) -> Value:
        """Write the values of an axis."""
        ends = f"{axis.size}" if axis.start == Whole() else f"{axis.start}, {axis.start + axis.size}"
        return self.named(Value(f"torch.arange({ends}, device=device)", (axis,), "int64"), axis.name)

    def aligned(self, value: Value, axes: Sequence[Axis], *, alone: bool = False) -> str:
        """Write an operand that broadcasts to `axes`. With `alone`, it never needs parentheses."""
        if value.scalar or value.axes == tuple(axes[len(axes) - len(value.axes) :]):
            return value.text if alone else value.operand
        index = [":" if axis in value.axes else "None" for axis in axes]
        while index[0] == "None":
            index.pop(0)
        return f"{value.operand}[{', '.join(index)}]"

    def steps(self, whole: Whole) -> Affine | None:
        """Axes, steps and offset of a sum. None if a step or the offset varies with an axis."""
        axes, offset, steps = self.axes.of(whole), whole, []
        for axis in axes:
            step = whole.coefficient(axis.symbol)
            offset = offset - step * named(axis.symbol)
            if self.axes.of(step):
                return None
            offset = offset + step * axis.start
            steps.append(Step(axis.size, step))
        return None if self.axes.of(offset) else (axes, steps, offset)

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

    def tested(self, value: Value) -> Value:
        """Convert the value to bool."""
        if value.dtype == "bool" or value.scalar:
            return value
        return Value(f"{value.operand} != 0", value.axes, "bool", is_atom=False)


_FINITE = re.compile(r"\((?:~(?P<x>.+)\.isnan\(\))\) \((?P=x)\.abs\(\) != float\(\"inf\"\)\)")


def _self_test(op: str, left: str, right: str) -> str | None:
    """Write `x != x` and `x == x` as tests for NaN, and the latter with `abs(x) != inf` as `isfinite`."""
    if op in ("eq", "ne") and left == right:
        return f"{left}.isnan()" if op == "ne" else f"~{left}.isnan()"
    finite = _FINITE.fullmatch(f"{left} {right}") if op == "and" else None
    return f"{finite['x']}.isfinite()" if finite else None


def operand(value: Whole) -> str:
    return str(value) if value.is_atom else f"({value})"


def literal(value: bool | int | float, dtype: str) -> Value:
    if dtype == "bool":
        return Value(str(bool(value)), (), dtype, scalar=True)
    if not is_float(dtype):
        return Value(str(int(value)), (), dtype, scalar=True, is_atom=value >= 0)
    number = float(value)
    text = repr(number) if math.isfinite(number) else f"float('{number}')".replace("'", '"')
    return Value(text, (), dtype, scalar=True, is_atom=not text.startswith("-"))


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) is not None


_BOTH_ENDS = re.compile(r"\.(?:clamp\(min=(?P<least>[^()]+)\)|relu\(\))\.clamp\(max=(?P<high>[^()]+)\)$")
INFIX = {op: sign for op, (sign, _) in SIGNS.items() if op not in ("truncdiv", "remainder")}
INFIX |= {"and": "&", "or": "|"}
COMPARED = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
TWO = {"pow": "pow", "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "remainder": "fmod"}
METHODS = MATH.keys() - TWO.keys() | {"round", "square"}
DRAWS = {
    f"{name}{end}": f"{name}({', '.join(f'{{{at}}}' for at in range(count))}{gpu})"
    for name, count in (("rand", 2), ("randn", 2), ("randint64", 4))
    for end, gpu in (("", ", gpu=True"), ("_cpu", ""))
}
FORMS = {
    **DRAWS,
    **{op: f"{{0}}.{op}()" for op in METHODS},
    **{op: f"torch.{name}({{0}}, {{1}})" for op, name in TWO.items()},
    **dict.fromkeys(("div", "truncdiv"), "torch.div({0}, {1}, rounding_mode='trunc')"),
    **dict.fromkeys(("not", "bitnot"), "~{0}"),
    "neg": "-{0}",
    "signbit": "torch.signbit({0})",
}
"""Forms of operators that are not written between their operands."""
TESTS = ("isnan", "isinf", "signbit")


class Operators(Expressions):
    """Writes operators. `_sums` maps a sum (or m2) to its mean (or variance) and the divisor for it."""

    def __init__(self, axes: Axes, memory: Memory) -> None:
        super().__init__(axes, memory)
        self._sums: dict[str, tuple[str, Whole]] = {}

    def operated(self, op: str, values: list[Value], dtype: str) -> Value:
        """Apply an operator to these operands. Raise `NotRead` if it cannot be written."""
        if op == "cast":
            return self._converted(values[0], dtype)
        if all(each.scalar for each in values):
            values[0] = self.as_tensor(values[0], promoted(*(each.dtype for each in values)))
        axes = self.axes.ordered(axis for each in values for axis in each.axes)
        if op in ("and", "or", "not"):
            values = [self.tested(each) for each in values]
        if op in INFIX and not (op == "div" and not is_float(dtype)):
            return self._infix(op, values, axes, dtype)
        if op in ("maximum", "minimum"):
            return self._extreme(op, values, axes, dtype)
        if op in METHODS and is_float(dtype) and not is_float(values[0].dtype):
            values[0] = self.cast(values[0], dtype)
        if op not in FORMS:
            raise NotRead(f"the operator {op}")
        kind = promoted(*(each.dtype for each in values if not each.scalar))
        kind = "bool" if op in TESTS else dtype if op in DRAWS else kind
        given = [self.aligned(each, axes, alone=op in DRAWS) for each in values]
        text = FORMS[op].format(*given)
        return self.cast(Value(text, axes, kind, is_atom=text[0] not in "-~"), dtype)

    def _converted(self, value: Value, dtype: str) -> Value:
        if value.scalar:
            if dtype == "bool" or (is_float(value.dtype) and not is_float(dtype)):
                value = self.as_tensor(value)
            else:
                text = f"float({value.text})" if is_float(dtype) and not is_float(value.dtype) else value.text
                return replace(value, text=text, dtype=dtype)
        return self.tested(value) if dtype == "bool" else self.cast(value, dtype)

    def _infix(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if op in ("add", "sub", "mul", "div") and dtype != "bool":
            values = [self.cast(each, dtype) if each.dtype == "bool" else each for each in values]
        if op == "div" and (mean := self._mean(values)) is not None:
            return mean
        neutral = {"mul": "1.0", "add": "0"}.get(op, "")
        kept = [each for each in values if not (each.scalar and each.text == neutral)]
        if len(kept) == 1 and kept[0].dtype == dtype and not kept[0].scalar:
            return kept[0]  # the other operand is 1.0 in a product, or 0 in an integer sum
        left, right = (self.aligned(each, axes) for each in values)
        if (test := _self_test(op, left, right)) is not None:
            return Value(test, axes, "bool", is_atom=not test.startswith("~"))
        kind = promoted(*(each.dtype for each in values if not each.scalar))
        fraction = any(each.scalar and is_float(each.dtype) for each in values)
        if op in COMPARED or op in ("and", "or"):
            kind = "bool"
        elif (fraction or op == "div") and not is_float(kind):
            kind = "float32"
        return self.cast(Value(f"{left} {INFIX[op]} {right}", axes, kind, is_atom=False), dtype)

    def _mean(self, values: Sequence[Value]) -> Value | None:
        """The mean or variance if a sum is divided by its number of elements; None otherwise."""
        total, count = values
        if total.text not in self._sums or not count.scalar:
            return None
        text, size = self._sums[total.text]
        told = count.text.removeprefix("float(").removesuffix(")")
        same = told == str(size) or (is_number(told) and float(told) == size.number)
        return Value(text, total.axes, total.dtype) if same else None

    def _extreme(self, op: str, values: list[Value], axes: tuple[Axis, ...], dtype: str) -> Value:
        if values[0].scalar:
            values = values[::-1]
        first, second = values
        if second.scalar:
            if is_float(second.dtype) and not is_float(first.dtype):
                first = self.cast(first, dtype)
            end = "min" if op == "maximum" else "max"
            text = f"{first.operand}.clamp({end}={second.text})"
            text = _BOTH_ENDS.sub(lambda both: f".clamp({both['least'] or '0.0'}, {both['high']})", text)
            if is_float(first.dtype):
                text = re.sub(r"\.clamp\(min=0\.0\)$", ".relu()", text)
            return self.cast(Value(text, axes, first.dtype), dtype)
        left, right = (self.aligned(self.cast(each, dtype), axes) for each in values)
        return Value(f"torch.{op}({left}, {right})", axes, dtype)
