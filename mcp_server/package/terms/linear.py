"""Linear sums of loaded elements and sizes: what a checked index is, and which elements pass the check.

A check on `lengths - 1` bounds the index, not `lengths`. Inverting the arithmetic from load to check gives
the bounds of the loaded element: sums, differences, products with a number, casts, and the wrap of negative
indices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd
from types import MappingProxyType

from mcp_server.package.terms.program import Place
from mcp_server.package.terms.sizes import size_term
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
    rebuilt,
    say,
    understood,
    unwrapped,
)

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


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


def linear(
    term: Term,
    opaque: Callable[[Term], bool] = lambda _term: False,
    sizes: Mapping[str, int] = _NO_SIZES,
) -> Linear | None:
    """A term as a sum over the names of elements, sizes and `opaque` terms; None if it is not linear.

    `sizes` are the values of sizes that may occur as a factor.
    """
    known: dict[Term, Linear | None] = {}  # a shared subterm is read once

    def visit(each: Term) -> Linear | None:
        if each not in known:
            found = summed(each)
            known[each] = Linear(0, ((name_of(each), 1),)) if found is None and opaque(each) else found
        return known[each]

    def summed(each: Term) -> Linear | None:
        match each:
            case Number(value=int() as value) if not isinstance(value, bool):
                return Linear(value)
            case Size() | Element():
                return Linear(0, ((name_of(each), 1),))
            case Apply(op="cast", args=(inner,)) if not is_float(each.dtype) and not is_float(inner.dtype):
                return visit(inner)
            case Apply(op="neg", args=(inner,)):
                negated = visit(inner)
                return Linear(0).plus(negated, -1) if negated is not None else None
            case Apply(op="add" | "sub" | "mul" as op, args=(left, right)):
                first, second = visit(left), visit(right)
                if first is None or second is None:
                    return None
                if op != "mul":
                    return first.plus(second, 1 if op == "add" else -1)
                for whole, factor in ((first, second), (second, first)):
                    if (number := factor.value(sizes if factor.terms else {})) is not None:
                        return Linear(0).plus(whole, number)
        return None

    return visit(term)


def name_of(term: Term) -> str:
    """The name of a term in a sum: `ks0`, `in_ptr0[x0]`."""
    if isinstance(term, Element):
        return f"{term.parameter}[{say(term.index, name_of)}]"
    return say(term, name_of)


def over_loops(index: Term) -> Linear | None:
    """An index as a sum that may include loop variables; in a Triton kernel these are parts of `xindex`."""

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
class Address:
    """A place as a sum of elements that were loaded and of scalar arguments, each with its factor.

    None stands for a factor or a `constant` that is not known. `wraps`: negative indices are moved up first.
    """

    elements: Mapping[Element, int | None]
    scalars: Mapping[str, int | None]
    constant: int | None
    wraps: bool


def address_of(place: Place, sizes: Mapping[str, int]) -> Address:
    """The place as a sum, counted in what it points to. `sizes` are the values of scalar arguments."""
    wrapped: list[Term] = []

    def straight(term: Term) -> Term | None:
        match term:
            case Apply(op="where", args=(_, Element() as loaded, Number())):
                return loaded  # where its mask holds
        index = unwrapped(term)
        if index is term:
            return None
        wrapped.append(term)
        return rebuilt(index, straight)

    terms = [rebuilt(part, straight) for part, size in place.parts]
    total = Linear(0)
    for term in terms:
        total = total.plus(linear(term, lambda _: True, sizes) or Linear(0, ((name_of(term), 1),)))
    factors = dict(total.terms)
    inside = dict.fromkeys(each for term in terms for each in parts(term))
    loaded = {name_of(each): each for each in inside if isinstance(each, Element)}
    scalars = {each.name for each in inside if isinstance(each, Size) and each.name in sizes}
    known = factors.keys() <= loaded.keys() | scalars
    if len(loaded) > 1 and any(factors.get(name, 0) < 0 for name in loaded):
        factors, known = {}, False  # of a difference no end of either element follows
    return Address(
        {each: factors.get(name, 0 if known else None) for name, each in loaded.items()},
        {name: factors.get(name, 0 if known else None) for name in sorted(scalars)},
        total.constant if known else None,
        bool(wrapped),
    )


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


@dataclass(frozen=True)
class Limit:
    """The allowed values of an index or an address: `low` to `high`, both included, as sums of sizes."""

    low: Linear
    high: Linear

    @staticmethod
    def of_check(lower: str | None, upper: str | None) -> Limit | None:
        """The limit set by an assertion `lower <= index < upper`; None if an end is not a sum of sizes."""
        least, end = (_bound(text) for text in (lower or "0", upper))
        return Limit(least, end.plus(Linear(-1))) if least is not None and end is not None else None

    @staticmethod
    def of_elements(count: int) -> Limit:
        """The limit that keeps an index within `count` elements."""
        return Limit(Linear(0), Linear(count - 1))

    def of_element(self, factor: int, rest: Linear) -> Allowed:
        """The range of the element for which `factor * element + rest` stays within the limit."""
        return Allowed(self.low.plus(rest, -1), self.high.plus(rest, -1), factor)


def allowed_elements(form: IndexForm, load: Element, limit: Limit | None) -> Allowed | None:
    """The range of the element of `load` within which the index passes; None if there are other elements."""
    elements = [name for name, _ in form.linear.terms if name in form.loads]
    if elements != [name_of(load)] or limit is None:
        return None
    if form.wrap is not None:
        limit = replace(limit, low=limit.low.plus(form.wrap, -1))
    factor = dict(form.linear.terms)[elements[0]]
    return limit.of_element(factor, form.linear.plus(Linear(0, ((elements[0], 1),)), -factor))


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
