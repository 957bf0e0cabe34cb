"""Reads a kernel body: index asserts, the definitions and loads that a value comes from, and its linear form.

Triton and C++ bodies are straight lines of assignments to `tmpN` (torch/_inductor/codegen/common.py,
triton.py, cpp.py). Each loop nest of a C++ kernel reuses the names, so the nearest definition above counts.

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

from mcp_server.package.statements import closing

_ASSERT = re.compile(
    r'(?:tl\.device_assert|AOTI_TORCH_CHECK|TORCH_CHECK)\(.*"index out of bounds: (?P<text>[^"]*)"'
)
_CONDITION = re.compile(r"(?:(?P<lower>-?[^<]+?) <= )?(?P<variable>\w+)(?: < (?P<upper>.+))?$")
_BROADCAST = re.compile(r"tl\.broadcast_to\((\w+), \[[^\]]*\]\)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WHERE = re.compile(r"tl\.where\(|\w+ \? \w+ : \w+|::blendv\(")
_NEGATIVE = re.compile(r"\w+ < (?:0|\w+)\b")
_COPY = re.compile(
    r"^(?:c10::convert<int64_t>\()?(\w+)\)?$|\] = static_cast<int64_t>\((\w+)\[|(\w+)\.store\(tmpbuf\."
)
_INDIRECT = re.compile(r"\b(?:in|out|in_out)_ptr\d+(?:\[[^\]\n]*| \+ [^,;\n]*)\btmp\d+")
_MULTILINE = 40


@dataclass(frozen=True, slots=True)
class IndexAssert:
    """One generated bounds check: 1-based line in the kernel's source, and the condition as printed."""

    line: int
    text: str
    variable: str
    lower: str | None
    upper: str | None


@dataclass(frozen=True, slots=True)
class Definition:
    """`name = value` at a 1-based line of the kernel's source."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Load:
    """A read of a parameter: pointer, index expression, and the 1-based line."""

    parameter: str
    index: str
    line: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The origin of a value: definitions, nearest first, and the loads that they end in.

    `wraps`: negative values are first increased by the bound, as in Python indexing.
    """

    definitions: tuple[Definition, ...]
    loads: tuple[Load, ...]
    wraps: bool


def read_condition(text: str) -> tuple[str | None, str, str | None] | None:
    """(lower bound, variable, upper bound) of `0 <= tmp6 < ks0`; None for other text."""
    match = _CONDITION.fullmatch(text.strip())
    if not match or (match["lower"] is None and match["upper"] is None):
        return None
    return match["lower"], match["variable"], match["upper"]


def unwrapped(text: str) -> str:
    """Remove `tl.broadcast_to(tmp4, [XBLOCK])` around the variable of a condition (Triton, torch 2.11)."""
    return _BROADCAST.sub(r"\1", text)


def find_asserts(source: str) -> tuple[IndexAssert, ...]:
    """The index asserts of a kernel, in order."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        match = _ASSERT.search(line)
        text = unwrapped(match["text"]) if match else ""
        condition = read_condition(text)
        if condition:
            lower, variable, upper = condition
            found.append(IndexAssert(number, text, variable, lower, upper))
    return tuple(found)


def indexes_unchecked(source: str) -> bool:
    """Whether a C++ kernel uses computed indices without any index check.

    This is code compiled with `assert_indirect_indexing` off.
    """
    kernels = source.split('extern "C"')[1:]
    return any(_INDIRECT.search(kernel) and "index out of bounds: " not in kernel for kernel in kernels)


def trace_value(source: str, variable: str, line: int, tensors: Collection[str]) -> Trace:
    """Follow the value of `variable` at `line` back to loads of `tensors`."""
    lines = source.split("\n")
    queue = [(variable, line)]
    definitions: dict[tuple[str, int], Definition] = {}
    loads: dict[Load, None] = {}
    while queue:
        name, below = queue.pop(0)
        definition = definition_above(lines, name, below)
        if definition is None or (name, definition.line) in definitions:
            continue
        definitions[name, definition.line] = definition
        found = accesses(definition.value, definition.line, tensors)
        loads.update(dict.fromkeys(found))
        queue += [] if found else [(n, definition.line) for n in _NAME.findall(definition.value) if n != name]
    chain = tuple(definitions.values())
    # A choice by sign between a value and the value plus the bound.
    selects = any(_WHERE.search(d.value) for d in chain) and any(_NEGATIVE.search(d.value) for d in chain)
    return Trace(chain, tuple(loads), selects)


def indexed_by(source: str, variable: str, line: int, tensors: Collection[str]) -> tuple[Load, ...]:
    """Accesses below `line` indexed by the checked variable, or by the value that it was copied from."""
    lines = source.split("\n")
    # C++ asserts check a converted or unpacked copy of the index.
    names = {variable}
    definition = definition_above(lines, variable, line)
    while definition is not None and len(names) < _MULTILINE and (name := copied_name(definition)):
        names.add(name)
        definition = definition_above(lines, name, definition.line)
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    following = range(line + 1, min(len(lines), line + _MULTILINE) + 1)
    found = [access for number in following for access in accesses(lines[number - 1], number, tensors)]
    return tuple(access for access in found if pattern.search(access.index))


def copied_name(definition: Definition) -> str | None:
    """The variable that a definition only copies, converts or unpacks."""
    match = _COPY.search(definition.value)
    name = next((group for group in match.groups() if group), "") if match else ""
    return name if name.isidentifier() else None


def definition_above(lines: list[str], name: str, below: int) -> Definition | None:
    """The nearest assignment to `name` above a line. Its value may span lines (a C++ lambda)."""
    start = re.compile(rf"^\s*(?:[\w:<>, ]+ )?{re.escape(name)}\s*=(?!=)")
    for number in range(min(below, len(lines) + 1) - 1, 0, -1):
        text = lines[number - 1]
        if name in text and start.match(text):
            value = text.partition("=")[2].strip().rstrip(";")
            following = [line.strip() for line in lines[number : number + _MULTILINE]] if not value else []
            ends = [end for end, line in enumerate(following, 1) if line in (";", "();")]
            return Definition(number, name, value or " ".join(following[: ends[0] if ends else None]))
    return None


def accesses(text: str, line: int, tensors: Collection[str]) -> list[Load]:
    """The accesses in the text of a line to any of `tensors`.

    `tl.load(p + (i), mask)`, `tl.store(p + (i), …)`, `p[i]`, `loadu(p + i, …)` for a parameter p.
    """
    found = []
    for name in dict.fromkeys(_NAME.findall(text)):
        if name not in tensors:
            continue
        match = re.search(rf"\b{re.escape(name)}\s*(?:\[|\+|,|\))", text)
        if match is None:
            continue
        # To the closing bracket, or to the comma of the call.
        index = text[match.end() : closing(text, match.end(), ",")].strip()
        found.append(Load(name, "0" if match.group().endswith(")") else index, line))
    return found


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
        parts = []
        for name, factor in self.terms:
            if abs(factor) == 1:
                parts.append(name if factor == 1 else f"-{name}")
            else:
                parts.append(f"{factor}*{name}" if re.fullmatch(r"\w+", name) else f"{factor}*({name})")
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True)
class IndexForm:
    """The checked value: `linear` over elements and kernel arguments, plus `wrap` if that is negative.

    `loads` maps names in `linear` that stand for loaded elements to their loads.
    """

    linear: Linear
    loads: Mapping[str, Load]
    wrap: Linear | None = None

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
    """The range of the element of `load` for `lower <= index < upper`; None if there are other elements."""
    elements = [name for name, _ in form.linear.terms if name in form.loads]
    name = elements[0] if len(elements) == 1 and form.loads[elements[0]] == load else None
    bounds = _Reader([], (), ())
    least, limit = (bounds.value(text, 1) if text else None for text in (lower or "0", upper))
    if name is None or not isinstance(least, Linear) or not isinstance(limit, Linear):
        return None
    if form.wrap is not None:
        least = least.plus(form.wrap, -1)
    factor = dict(form.linear.terms)[name]
    rest = form.linear.plus(Linear(0, ((name, 1),)), -factor)
    return Allowed(least.plus(rest, -1), limit.plus(Linear(-1)).plus(rest, -1), factor)


def read_form(
    source: str, variable: str, line: int, tensors: Collection[str], scalars: Collection[str]
) -> IndexForm | None:
    """The form of `variable` at a 1-based `line`; None if it is not linear in elements and sizes."""
    reader = _Reader(source.split("\n"), tensors, scalars)
    value = reader.name(variable, line)
    if isinstance(value, Linear):
        return IndexForm(value, reader.loads)
    return value if isinstance(value, IndexForm) else None


def position_limit(source: str, variable: str, line: int) -> str | None:
    """The exclusive limit of an index that is a loop position (`ks1` for `x1`); None for another index.

    That is the end of the nearest loop over it (C++), or the modulus that defines it (Triton).
    """
    lines = source.split("\n")
    name, below = variable, line
    for _ in range(_MAX_DEPTH):
        definition = definition_above(lines, name, below)
        if definition is None or (copied := copied_name(definition)) is None:
            break
        name, below = copied, definition.line
    escaped = re.escape(name)
    patterns = (
        re.compile(rf"\bfor\s*\(int64_t {escaped}=[^;]*; {escaped}<static_cast<int64_t>\((.+?)\);"),
        re.compile(rf"^\s*{escaped} = \(?\w+ % (\w+)\)?$"),
    )
    found = (pattern.search(text) for text in reversed(lines[:below]) for pattern in patterns)
    return next((match[1] for match in found if match), None)


@dataclass(frozen=True)
class _Negative:
    """A test for a negative value (`yes` False: for a non-negative one)."""

    linear: Linear
    yes: bool


_Value = Linear | IndexForm | _Negative | None


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
        loads = accesses(definition.value, definition.line, self.tensors)
        if len(loads) > 1 or self.depth >= _MAX_DEPTH:
            return None
        if loads:
            element = f"{loads[0].parameter}[{loads[0].index}]"
            self.loads[element] = loads[0]
            return Linear(0, ((element, 1),))
        self.depth += 1
        copied = copied_name(definition)
        line = definition.line
        found = self.name(copied, line) if copied else self.value(definition.value, line)
        self.depth -= 1
        return found

    def value(self, text: str, line: int) -> _Value:
        """The value of an expression at a line."""
        if len(text) > _MAX_LENGTH:
            return None
        text = _FULL.sub(r"(\1)", unwrapped(text.strip().rstrip(";")))
        text = _BLEND.sub(r"where(\3, \2, \1)", _CASTS.sub("", text))
        text = _TERNARY.sub(r"where(\1, \2, \3)", text).replace("tl.where(", "where(")
        try:
            return self._tree(ast.parse(text, mode="eval").body, line)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    def _tree(self, node: ast.expr, line: int) -> _Value:
        match node:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return Linear(number)
            case ast.Name(id=name):
                return self.name(name, line)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._tree(operand, line)
                return value.times(-1) if isinstance(value, Linear) else None
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(op, self._tree(left, line), self._tree(right, line))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _SIGN:
                tested = self._tree(left, line)
                if isinstance(tested, Linear) and self._tree(right, line) == Linear(0):
                    return _Negative(tested, _SIGN[type(op)])
            case ast.Call(func=ast.Name(id="where"), args=[choice, first, second]):
                # `value + bound if value < 0 else value`, in either order
                test, moved, same = (self._tree(part, line) for part in (choice, first, second))
                if not isinstance(test, _Negative):
                    return None
                moved, same = (moved, same) if test.yes else (same, moved)
                if isinstance(moved, Linear) and same == test.linear:
                    wrap = moved.plus(test.linear, -1)
                    if not any(name in self.loads for name, _ in wrap.terms):
                        return IndexForm(test.linear, self.loads, wrap)
        return None


def _arithmetic(op: ast.operator, left: _Value, right: _Value) -> Linear | None:
    if not isinstance(left, Linear) or not isinstance(right, Linear):
        return None
    if isinstance(op, ast.Add | ast.Sub):
        return left.plus(right, 1 if isinstance(op, ast.Add) else -1)
    if isinstance(op, ast.Mult) and not (left.terms and right.terms):
        whole, number = (left, right) if left.terms else (right, left)
        return whole.times(number.constant)
    return None
