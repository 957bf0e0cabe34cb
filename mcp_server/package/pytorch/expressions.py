"""Expressions of torch in the text of a function: their names, axes and types."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.package.pytorch.axes import Axes, Axis, Place
from mcp_server.package.pytorch.memory import Memory
from mcp_server.package.pytorch.views import Step
from mcp_server.package.pytorch.whole import Whole
from mcp_server.package.terms import Term
from mcp_server.package.terms.term import is_float

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


class Expressions:
    """The statements of one kernel so far, in `lines`, and the names that they give to values."""

    def __init__(self, axes: Axes, memory: Memory) -> None:
        self.axes, self.memory = axes, memory
        self.lines: list[str] = []
        self.taken: set[str] = set()
        self._known: dict[tuple[int, frozenset[int], tuple[str, ...]], Value] = {}
        self._named: dict[tuple[str, tuple[Axis, ...]], Value] = {}

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
        """A value as a bool."""
        if value.dtype == "bool" or value.scalar:
            return value
        return Value(f"{value.operand} != 0", value.axes, "bool", is_atom=False)


def _symbol(axis: Axis) -> Whole:
    return Whole((((axis.symbol,), 1),))


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
