"""Linear sums of loaded elements and sizes: the form of a checked index, and the elements that pass.

A check on `lengths - 1` bounds the index, not `lengths`. Inverting the arithmetic between load and check
gives the bounds of the loaded element. This arithmetic may consist of sums, differences, products with a
number, casts, and the wrap of negative indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd
from types import MappingProxyType

from mcp_server.package.terms.parts import parts, rebuilt, say, understood, unwrapped
from mcp_server.package.terms.program import Place
from mcp_server.package.terms.sizes import size_term
from mcp_server.package.terms.term import Apply, Element, Number, Position, Range, Size, Term
from mcp_server.package.terms.whole import Whole, constant, named, whole_of

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


def linear(
    term: Term, opaque: Callable[[Term], bool] = lambda _term: False, sizes: Mapping[str, int] = _NO_SIZES
) -> Whole | None:
    """Write a term as a sum over elements, sizes and `opaque` terms, by name. None if it is not linear.

    `sizes` are the values of sizes that may occur as a factor.
    """

    def atom(each: Term) -> Whole | None:
        return named(name_of(each)) if isinstance(each, Size | Element) or opaque(each) else None

    def product(op: str, left: Whole, right: Whole) -> Whole | None:
        for whole, factor in ((left, right), (right, left)):
            if op == "mul" and (number := factor.value(sizes)) is not None:
                return whole * constant(number)
        return None

    return whole_of(term, atom, product)


def name_of(term: Term) -> str:
    """The name of a term in a sum: `ks0`, `in_ptr0[x0]`."""
    if isinstance(term, Element):
        return f"{term.parameter}[{say(term.index, name_of)}]"
    return say(term, name_of)


def over_loops(index: Term) -> Whole | None:
    """Write an index as a sum that may include loop variables or, in Triton, parts such as `xindex // 4`."""

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
    """(offset, stride) of an index that is linear in loop variables. None if it is not.

    For several variables, the stride is the greatest common divisor of their factors, so some elements at
    this stride may not be read.
    """
    found = over_loops(index)
    return (found.constant, gcd(*found.factors.values()) or 1) if found is not None else None


@dataclass(frozen=True)
class Address:
    """An address as a sum of loaded elements and scalar arguments, each with its factor.

    An unknown factor or `constant` is None. `wraps`: negative indices are first increased by the size.
    """

    elements: Mapping[Element, int | None]
    scalars: Mapping[str, int | None]
    constant: int | None
    wraps: bool


def address_of(place: Place, sizes: Mapping[str, int]) -> Address:
    """Write a place as a sum, in units of its element size. `sizes` are the values of scalar arguments."""
    wrapped: list[Term] = []

    def straight(term: Term) -> Term | None:
        match term:
            case Apply(op="where", args=(_, Element() as loaded, Number())):
                return loaded  # the loaded value, as if its mask held
        index = unwrapped(term)
        if index is term:
            return None
        wrapped.append(term)
        return rebuilt(index, straight)

    terms = [rebuilt(part, straight) for part, size in place.parts]
    total = Whole()
    for term in terms:
        total = total + (linear(term, lambda _: True, sizes) or named(name_of(term)))
    factors = total.factors
    inside = dict.fromkeys(each for term in terms for each in parts(term))
    loaded = {name_of(each): each for each in inside if isinstance(each, Element)}
    scalars = {each.name for each in inside if isinstance(each, Size) and each.name in sizes}
    known = factors.keys() <= loaded.keys() | scalars
    if len(loaded) > 1 and any(factors.get(name, 0) < 0 for name in loaded):
        factors, known = {}, False  # the limits of a difference bound neither of its elements
    return Address(
        {each: factors.get(name, 0 if known else None) for name, each in loaded.items()},
        {name: factors.get(name, 0 if known else None) for name in sorted(scalars)},
        total.constant if known else None,
        bool(wrapped),
    )


@dataclass(frozen=True)
class IndexForm:
    """The checked value: `linear` over elements and kernel arguments, plus `wrap` if the sum is negative.

    `loads` maps the names in `linear` that represent loaded elements to these elements.
    """

    linear: Whole
    loads: Mapping[str, Element]
    wrap: Whole | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the index is an unmodified element, apart from the wrap."""
        return self.linear.constant == 0 and [*self.linear.factors.values()] == [1]


def read_form(value: Term, loads: Sequence[Element]) -> IndexForm | None:
    """The form of an index computed from `loads`. None if not linear in elements and sizes."""
    loaded: dict[str, Element] = {}
    for load in loads:
        loaded.setdefault(name_of(load), load)
    index = unwrapped(value)
    found = linear(index)
    if found is None or index is value:
        return IndexForm(found, loaded) if found is not None else None
    moved = linear(value.args[1]) if isinstance(value, Apply) else None
    wrap = moved - found if moved is not None else None
    if wrap is None or not wrap.factors.keys().isdisjoint(loaded):
        return None
    return IndexForm(found, loaded, wrap)


@dataclass(frozen=True)
class Limit:
    """The inclusive bounds, as sums of sizes, of `factor` times an index, address or element.

    A negative `factor` swaps the bounds.
    """

    low: Whole
    high: Whole
    factor: int = 1

    @staticmethod
    def of_check(lower: str | None, upper: str | None) -> Limit | None:
        """The limit set by `lower <= index < upper`. None if a bound is not a sum of sizes."""
        least, end = (_bound(text) for text in (lower or "0", upper))
        return Limit(least, end - constant(1)) if least is not None and end is not None else None

    def of_element(self, factor: int, rest: Whole) -> Limit:
        """The limit of an element so that `factor * element + rest` stays within this limit."""
        return Limit(self.low - rest, self.high - rest, factor)

    def numbers(self, values: Mapping[str, int]) -> tuple[int, int] | None:
        """Both bounds, inclusive. None if a name has no value."""
        low, high = self.low.value(values), self.high.value(values)
        if low is None or high is None:
            return None
        ends = sorted((Fraction(low, self.factor), Fraction(high, self.factor)))
        return ceil(ends[0]), floor(ends[1])

    def texts(self, rename: Callable[[str], str]) -> tuple[str, str] | None:
        """Both bounds as expressions. None if they would need a division."""
        if (numbers := self.numbers({})) is not None:
            return str(numbers[0]), str(numbers[1])
        if abs(self.factor) != 1:
            return None
        low, high = ((end * constant(self.factor)).text("*", rename) for end in (self.low, self.high))
        return (low, high) if self.factor > 0 else (high, low)


def allowed_elements(form: IndexForm, load: Element, limit: Limit | None) -> Limit | None:
    """The range of `load` for which the index passes. None if the index has other elements."""
    elements = [name for name in form.linear.factors if name in form.loads]
    if elements != [name_of(load)] or limit is None:
        return None
    if form.wrap is not None:
        limit = replace(limit, low=limit.low - form.wrap)
    factor = form.linear.factors[elements[0]]
    return limit.of_element(factor, form.linear - constant(factor) * named(elements[0]))


def _bound(text: str | None) -> Whole | None:
    """Parse one bound of a check as a linear expression in sizes. None if absent or not linear."""
    term = size_term(text) if text else None
    return linear(term) if term is not None else None


def position_limit(value: Term, ranges: Sequence[Range]) -> str | None:
    """The exclusive limit of an index that is a loop position (`ks1` for `x1`); else None.

    The limit is the end of its loop (C++), or the modulus that defines it (Triton).
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
