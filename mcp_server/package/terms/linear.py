"""Linear sums of loaded elements and sizes: what a checked index is, and which elements pass the check.

A check on `lengths - 1` bounds the index, not `lengths`. Inverting the arithmetic from load to check gives
the bounds of the loaded element: sums, differences, products with a number, casts, and the wrap of negative
indices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

from mcp_server.package.terms.term import (
    Apply,
    Element,
    Number,
    Position,
    Range,
    Size,
    Term,
    is_float,
    parts,
    say,
    understood,
    unwrapped,
)
from mcp_server.package.terms.translate import size_term


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


def linear(term: Term, opaque: Callable[[Term], bool] = lambda _term: False) -> Linear | None:
    """A term as a sum over the names of elements, sizes and what is `opaque`; None if it is none."""
    match term:
        case Number(value=int() as value) if not isinstance(value, bool):
            return Linear(value)
        case Size() | Element():
            return Linear(0, ((name_of(term), 1),))
        case Apply(op="cast", args=(inner,)) if not is_float(term.dtype) and not is_float(inner.dtype):
            return linear(inner, opaque)
        case Apply(op="neg", args=(inner,)):
            negated = linear(inner, opaque)
            return Linear(0).plus(negated, -1) if negated is not None else None
        case Apply(op="add" | "sub" | "mul" as op, args=(left, right)):
            first, second = linear(left, opaque), linear(right, opaque)
            if first is not None and second is not None:
                if op != "mul":
                    return first.plus(second, 1 if op == "add" else -1)
                if not (first.terms and second.terms):
                    whole, number = (first, second) if first.terms else (second, first)
                    return Linear(0).plus(whole, number.constant)
    return Linear(0, ((name_of(term), 1),)) if opaque(term) else None


def name_of(term: Term) -> str:
    """What a sum calls a term: `ks0`, `in_ptr0[x0]`."""
    if isinstance(term, Element):
        return f"{term.parameter}[{say(term.index, name_of)}]"
    return say(term, name_of)


def over_loops(index: Term) -> Linear | None:
    """A place over loop variables, too; those of a Triton kernel are parts of its `xindex`."""

    def is_loop(term: Term) -> bool:
        match term:
            case Position():
                return True
            case Apply(op="mod" | "remainder" | "floordiv", args=(Position() | Apply(), _)):
                inner = [each for each in parts(term) if isinstance(each, Position)]
                return all(each.name.endswith("index") for each in inner) and understood(term)
        return False

    return linear(index, is_loop)


def affine(index: Term) -> tuple[int, int] | None:
    """(offset, stride) of a place that is linear in loop variables; None when it is not.

    For several variables the stride is the greatest common divisor of their factors: the slice then has all
    elements that are read, and perhaps more.
    """
    found = over_loops(index)
    return (found.constant, gcd(*(factor for _, factor in found.terms)) or 1) if found is not None else None


@dataclass(frozen=True)
class IndexForm:
    """The checked value: `linear` over elements and kernel arguments, plus `wrap` if that is negative.

    `loads` maps names in `linear` that stand for loaded elements to these.
    """

    linear: Linear
    loads: Mapping[str, Element]
    wrap: Linear | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the index is an unmodified element, apart from the wrap."""
        return self.linear.constant == 0 and [factor for _, factor in self.linear.terms] == [1]


def read_form(value: Term, loads: Sequence[Element]) -> IndexForm | None:
    """The form of an index that is made of `loads`; None if it is not linear in elements and sizes."""
    named: dict[str, Element] = {}
    for load in loads:
        named.setdefault(name_of(load), load)
    index = unwrapped(value)
    found = linear(index)
    if found is None or index is value:
        return IndexForm(found, named) if found is not None else None
    moved = linear(value.args[1]) if isinstance(value, Apply) else None
    wrap = moved.plus(found, -1) if moved is not None else None
    if wrap is None or any(name in named for name, _ in wrap.terms):
        return None
    return IndexForm(found, named, wrap)


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
        low, high = (Linear(0).plus(end, self.factor).renamed(rename) for end in (self.low, self.high))
        return (low, high) if self.factor > 0 else (high, low)


def allowed_elements(form: IndexForm, load: Element, lower: str | None, upper: str | None) -> Allowed | None:
    """The range of the element of `load` for `lower <= index < upper`; None if there are other elements."""
    elements = [name for name, _ in form.linear.terms if name in form.loads]
    least, limit = (_bound(text) for text in (lower or "0", upper))
    if elements != [name_of(load)] or least is None or limit is None:
        return None
    if form.wrap is not None:
        least = least.plus(form.wrap, -1)
    factor = dict(form.linear.terms)[elements[0]]
    rest = form.linear.plus(Linear(0, ((elements[0], 1),)), -factor)
    return Allowed(least.plus(rest, -1), limit.plus(Linear(-1)).plus(rest, -1), factor)


def _bound(text: str | None) -> Linear | None:
    """An end of a check, over sizes."""
    term = size_term(text) if text else None
    return linear(term) if term is not None else None


def position_limit(value: Term, ranges: Sequence[Range]) -> str | None:
    """The exclusive limit of an index that is a loop position (`ks1` for `x1`); None for another index.

    That is the end of its loop (C++), or the modulus that defines it (Triton).
    """
    match value:
        case Position(name=name):
            limit: Term | None = next((each.stop for each in reversed(ranges) if each.name == name), None)
        case Apply(op="mod" | "remainder", args=(Position(), limit)):
            pass
        case Apply(op="cast", args=(inner,)):
            return position_limit(inner, ranges)
        case _:
            limit = None
    return say(limit, name_of) if limit is not None and understood(limit) else None
