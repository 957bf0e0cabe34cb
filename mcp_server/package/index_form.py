"""Reads how a kernel computes a checked index: a linear form such as `2*element - 1`, with optional wrap.

A check on `lengths - 1` bounds the index, not `lengths`. Inverting the arithmetic from load to check gives
the bounds of the loaded element. Supported (torch/_inductor/codegen/triton.py and cpp.py, 2.8 to 2.15): sums,
differences, products with a number, casts, copies, and the wrap of negative indices.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from mcp_server.package.kernel_code import Load, copied_name, definition_above, loads_of, unwrapped

_MAX_LENGTH = 400
_MAX_DEPTH = 60
_CASTS = re.compile(
    r"\b(?:c10::convert|static_cast)<[\w:]+>(?=\()|\bu?int(?:8|16|32|64)_t(?=\()"
    r"|\bat::vec::\w+<[\w:, ]*>(?=\()|\.to\(tl\.\w+\)|(?<=\d)L+\b|\.template cast<[\w:, ]*>\(\)"
)
_FULL = re.compile(r"tl\.full\(\[[^\]]*\], (-?\d+), tl\.\w+\)")
_BLEND = re.compile(r"decltype\(\w+\)::blendv\(([^,]+), ([^,]+), (.+)\)$")
_TERNARY = re.compile(r"(\w+) \? (\w+) : (\w+)$")
_SIGN = {ast.Lt: True, ast.GtE: False}


@dataclass(frozen=True)
class Linear:
    """`constant` plus the sum of factor * name. `terms` are sorted and have no zero factors."""

    constant: int
    terms: tuple[tuple[str, int], ...] = ()

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """self + times * other."""
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + times * factor
        nonzero = tuple(sorted((name, factor) for name, factor in factors.items() if factor))
        return Linear(self.constant + times * other.constant, nonzero)

    def without(self, name: str) -> Linear:
        return Linear(self.constant, tuple(term for term in self.terms if term[0] != name))

    def factor(self, name: str) -> int:
        return dict(self.terms).get(name, 0)

    def value(self, values: Mapping[str, int]) -> int | None:
        """The value; None if a name has none."""
        if any(name not in values for name, _ in self.terms):
            return None
        return self.constant + sum(factor * values[name] for name, factor in self.terms)

    def times(self, factor: int) -> Linear:
        return Linear(0).plus(self, factor)

    def renamed(self, rename: Callable[[str], str]) -> str:
        """The expression as text, with renamed variables."""
        return str(Linear(self.constant, tuple((rename(name), factor) for name, factor in self.terms)))

    def __str__(self) -> str:
        parts = [_product(factor, name) for name, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


def _product(factor: int, name: str) -> str:
    name = name if re.fullmatch(r"\w+", name) or abs(factor) == 1 else f"({name})"
    return name if factor == 1 else f"-{name}" if factor == -1 else f"{factor}*{name}"


@dataclass(frozen=True)
class IndexForm:
    """The checked value: `linear` over elements and kernel arguments, plus `wrap` if that is negative.

    `loads` maps names in `linear` that stand for loaded elements to their loads.
    """

    linear: Linear
    loads: Mapping[str, Load]
    wrap: Linear | None = None

    def element(self, load: Load) -> str | None:
        """The name of a load in `linear`; None if there are other elements."""
        names = [name for name, _ in self.linear.terms if name in self.loads]
        return names[0] if len(names) == 1 and self.loads[names[0]] == load else None

    @property
    def is_plain(self) -> bool:
        """Whether the index is an unmodified element, apart from the wrap."""
        return self.linear.constant == 0 and [factor for _, factor in self.linear.terms] == [1]


@dataclass(frozen=True)
class Allowed:
    """The inclusive range of elements that pass, times `factor`. A negative `factor` swaps the ends."""

    low: Linear
    high: Linear
    factor: int

    def numbers(self, values: Mapping[str, int]) -> tuple[int, int] | None:
        """Both ends, inclusive; None while a name has no value."""
        low, high = self.low.value(values), self.high.value(values)
        if low is None or high is None:
            return None
        ends = sorted((Fraction(low, self.factor), Fraction(high, self.factor)))
        return ceil(ends[0]), floor(ends[1])

    def texts(self, rename: Callable[[str], str]) -> tuple[str, str] | None:
        """Both ends as expressions; None if they would need a division."""
        if (numbers := self.numbers({})) is not None:
            return str(numbers[0]), str(numbers[1])
        if abs(self.factor) != 1:
            return None
        low, high = (end.times(self.factor).renamed(rename) for end in (self.low, self.high))
        return (low, high) if self.factor > 0 else (high, low)


def allowed_elements(form: IndexForm, load: Load, lower: str | None, upper: str | None) -> Allowed | None:
    """The range of the element of `load` for `lower <= index < upper`; None if unknown."""
    name = form.element(load)
    if name is None or upper is None:
        return None
    least, limit = _read(lower or "0"), _read(upper)
    if least is None or limit is None:
        return None
    if form.wrap is not None:
        least = least.plus(form.wrap, -1)
    rest = form.linear.without(name)
    return Allowed(least.plus(rest, -1), limit.plus(Linear(-1)).plus(rest, -1), form.linear.factor(name))


def _read(text: str) -> Linear | None:
    """A bound such as `32L` or `(-1) + ks0`."""
    return _Reader([], (), ()).expression(text, 1)


def read_form(
    source: str, variable: str, line: int, tensors: Collection[str], scalars: Collection[str]
) -> IndexForm | None:
    """The form of `variable` at a 1-based `line`; None if it is not linear in elements and sizes."""
    reader = _Reader(source.split("\n"), tensors, scalars)
    value = reader.name(variable, line)
    if isinstance(value, Linear):
        return IndexForm(value, reader.loads)
    if isinstance(value, _Wrapped):
        return IndexForm(value.linear, reader.loads, value.wrap)
    return None


def position_limit(source: str, variable: str, line: int) -> str | None:
    """The exclusive limit of an index that is a loop position (`ks1` for `x1`); None for another index."""
    lines = source.split("\n")
    name, below = variable, line
    for _ in range(_MAX_DEPTH):
        definition = definition_above(lines, name, below)
        if definition is None or (copied := copied_name(definition)) is None:
            break
        name, below = copied, definition.line
    return _limit(lines[:below], name)


def _limit(lines: list[str], name: str) -> str | None:
    """The end of the nearest loop over `name` (C++), or the modulus that defines it (Triton)."""
    escaped = re.escape(name)
    patterns = (
        re.compile(rf"\bfor\s*\(int64_t {escaped}=[^;]*; {escaped}<static_cast<int64_t>\((.+?)\);"),
        re.compile(rf"^\s*{escaped} = \(?\w+ % (\w+)\)?$"),
    )
    for text in reversed(lines):
        for pattern in patterns:
            if match := pattern.search(text):
                return match[1]
    return None


@dataclass(frozen=True)
class _Wrapped:
    linear: Linear
    wrap: Linear


@dataclass(frozen=True)
class _Negative:
    """A test for a negative value (`yes` False: for a non-negative one)."""

    linear: Linear
    yes: bool


_Value = Linear | _Wrapped | _Negative | None


class _Reader:
    """Resolves names upward through the lines of a kernel."""

    def __init__(self, lines: list[str], tensors: Collection[str], scalars: Collection[str]) -> None:
        self.lines, self.tensors, self.scalars = lines, tensors, scalars
        self.loads: dict[str, Load] = {}
        self.depth = 0

    def name(self, name: str, below: int) -> _Value:
        """The value of a variable above a line: its assignment, a loaded element, or an argument."""
        definition = definition_above(self.lines, name, below)
        if definition is None:
            return Linear(0, ((name, 1),)) if name in self.scalars or not self.lines else None
        if loads := loads_of(definition, self.tensors):
            return self._element(loads[0]) if len(loads) == 1 else None
        if copied := copied_name(definition):
            return self._deeper(lambda: self.name(copied, definition.line))
        return self._deeper(lambda: self._value(definition.value, definition.line))

    def expression(self, text: str, line: int) -> Linear | None:
        value = self._value(text, line)
        return value if isinstance(value, Linear) else None

    def _element(self, load: Load) -> Linear:
        name = f"{load.parameter}[{load.index}]"
        self.loads[name] = load
        return Linear(0, ((name, 1),))

    def _deeper(self, read: Callable[[], _Value]) -> _Value:
        self.depth += 1
        try:
            return read() if self.depth < _MAX_DEPTH else None
        finally:
            self.depth -= 1

    def _value(self, text: str, line: int) -> _Value:
        if len(text) > _MAX_LENGTH:
            return None
        try:
            return self._tree(ast.parse(_as_python(text), mode="eval").body, line)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _tree(self, node: ast.expr, line: int) -> _Value:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return Linear(number)
            case ast.Name(id=name):
                return self.name(name, line)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._scaled(self._tree(operand, line), -1)
            case ast.BinOp(left=left, op=op, right=right):
                return self._arithmetic(op, self._tree(left, line), self._tree(right, line))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SIGN:
                return self._sign(self._tree(left, line), self._tree(right, line), _SIGN[type(op)])
            case ast.Call(func=ast.Name(id="where"), args=[test, first, second]):
                return self._choice(*(self._tree(part, line) for part in (test, first, second)))
        return None

    @staticmethod
    def _scaled(value: _Value, factor: int) -> Linear | None:
        return value.times(factor) if isinstance(value, Linear) else None

    def _arithmetic(self, op: ast.operator, left: _Value, right: _Value) -> Linear | None:
        if not isinstance(left, Linear) or not isinstance(right, Linear):
            return None
        if isinstance(op, ast.Add | ast.Sub):
            return left.plus(right, 1 if isinstance(op, ast.Add) else -1)
        if isinstance(op, ast.Mult) and not (left.terms and right.terms):
            whole, number = (left, right) if left.terms else (right, left)
            return self._scaled(whole, number.constant)
        return None

    @staticmethod
    def _sign(left: _Value, right: _Value, yes: bool) -> _Negative | None:
        return _Negative(left, yes) if isinstance(left, Linear) and right == Linear(0) else None

    def _choice(self, test: _Value, first: _Value, second: _Value) -> _Wrapped | None:
        """`value + bound if value < 0 else value`, in either order."""
        if not isinstance(test, _Negative):
            return None
        moved, same = (first, second) if test.yes else (second, first)
        if not isinstance(moved, Linear) or same != test.linear:
            return None
        wrap = moved.plus(test.linear, -1)
        return _Wrapped(test.linear, wrap) if not any(n in self.loads for n, _ in wrap.terms) else None


def _as_python(text: str) -> str:
    """Rewrite C++ and Triton casts, literals and choices to Python syntax."""
    text = _FULL.sub(r"(\1)", unwrapped(text.strip().rstrip(";")))
    text = _CASTS.sub("", text)
    text = _BLEND.sub(r"where(\3, \2, \1)", text)
    text = _TERNARY.sub(r"where(\1, \2, \3)", text)
    return text.replace("tl.where(", "where(")
