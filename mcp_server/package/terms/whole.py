"""Integers over sizes, loops and elements: sums of products, exact if the sizes are positive.

A quotient or remainder that is not such a sum counts as one factor, `(s77 // 16)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mcp_server.package.terms.term import Apply, Number, Term, is_float

Product: TypeAlias = tuple[str, ...]
"""The factors of a product, sorted. Empty for a constant."""

_NAME = re.compile(r"[A-Za-z_@][\w@]*")
_ATOM = re.compile(r"@?\w+|\(.*\)")
_MOST = 400  # products in a sum, at most


class TooLarge(ValueError):
    """The sum has too many products to be worth writing."""


@dataclass(frozen=True)
class Whole:
    """A sum of `count * product`. `terms` are sorted and have no zero counts."""

    terms: tuple[tuple[Product, int], ...] = ()

    @property
    def number(self) -> int | None:
        """The value if the sum is a constant; otherwise None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def constant(self) -> int:
        """The constant part of the sum."""
        return dict(self.terms).get((), 0)

    @property
    def factors(self) -> dict[str, int]:
        """The factor of each name that is alone in its product."""
        return {product[0]: count for product, count in self.terms if len(product) == 1}

    def value(self, values: Mapping[str, int]) -> int | None:
        """Evaluate the sum for these values of the names. None if a name has no value."""
        return self.replaced({name: constant(value) for name, value in values.items()}).number

    @property
    def names(self) -> frozenset[str]:
        """Every name in the sum, including names inside quotients."""
        return frozenset(
            name for product, _ in self.terms for atom in product for name in _NAME.findall(atom)
        )

    @property
    def atoms(self) -> frozenset[str]:
        """The factors: names, and whole quotients."""
        return frozenset(atom for product, _ in self.terms for atom in product)

    def __add__(self, other: Whole) -> Whole:
        return summed([*self.terms, *other.terms])

    def __sub__(self, other: Whole) -> Whole:
        return self + other * constant(-1)

    def __mul__(self, other: Whole) -> Whole:
        products = ((tuple(sorted((*a, *b))), m * n) for a, m in self.terms for b, n in other.terms)
        return summed(products)

    def coefficient(self, name: str) -> Whole:
        """The factor of the name in the products that contain it exactly once."""
        found = []
        for product, count in self.terms:
            if product.count(name) == 1:
                rest = list(product)
                rest.remove(name)
                found.append((tuple(rest), count))
        return summed(found)

    def replaced(self, values: Mapping[str, Whole]) -> Whole:
        """Replace names with sums; a name inside a quotient stays."""
        total = Whole()
        for product, count in self.terms:
            each = constant(count)
            for atom in product:
                each = each * values.get(atom, Whole((((atom,), 1),)))
            total = total + each
        return total

    def is_positive_or_zero(self) -> bool:
        """Whether the sum is certainly not negative, whatever the sizes (all positive)."""
        moved = self.replaced({atom: named(atom) + constant(1) for atom in self.atoms})
        return all(count >= 0 for _, count in moved.terms)

    def over(self, other: Whole) -> Whole | None:
        """Divide exactly. None if there is, or may be, a remainder."""
        if other.number == 0:
            return None
        if len(other.terms) != 1:
            return constant(1) if self == other else None
        ((divisor, count),) = other.terms
        found = []
        for product, times in self.terms:
            rest = list(product)
            for atom in divisor:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if times % count:
                return None
            found.append((tuple(rest), times // count))
        return summed(found)

    def text(self, times: str = " * ", name_of: Callable[[str], str] = str) -> str:
        """Write the sum as text; `name_of` gives the name of a factor."""
        text = ""
        for product, count in sorted(self.terms, key=lambda each: (not each[0], each[0])):
            factors = [name_of(atom) for atom in product]
            if abs(count) != 1 or not product:
                plain = (each if _ATOM.fullmatch(each) else f"({each})" for each in factors)
                factors = [str(abs(count)), *plain]
            sign = "-" if count < 0 else "+"
            joined = times.join(factors)
            text = f"{text} {sign} {joined}" if text else f"{'-' if count < 0 else ''}{joined}"
        return text or "0"

    def __str__(self) -> str:
        return self.text()

    @property
    def is_atom(self) -> bool:
        """Whether the text of the sum is a single word."""
        return re.fullmatch(r"\w+", str(self)) is not None


def summed(terms: Iterable[tuple[Product, int]]) -> Whole:
    """Add up products, so that each occurs once."""
    counts: dict[Product, int] = {}
    for product, count in terms:
        counts[product] = counts.get(product, 0) + count
    if len(counts) > _MOST:
        raise TooLarge("an index with too many products")
    return Whole(tuple(sorted((product, count) for product, count in counts.items() if count)))


def constant(value: int) -> Whole:
    return summed([((), value)])


def named(name: str) -> Whole:
    return Whole((((name,), 1),))


def product(sizes: Iterable[Whole]) -> Whole:
    total = constant(1)
    for size in sizes:
        total = total * size
    return total


Bounds: TypeAlias = Callable[[Whole], "tuple[Whole, Whole] | None"]
"""Returns the smallest and the largest value of a sum. None if unknown."""


def divided(value: Whole, by: Whole, bounds: Bounds) -> tuple[Whole, Whole]:
    """Floor quotient and remainder of a division by a positive value."""
    exact: list[tuple[Product, int]] = []
    rest: list[tuple[Product, int]] = []
    for term in value.terms:
        (rest if Whole((term,)).over(by) is None else exact).append(term)
    quotient, remainder = Whole(tuple(exact)).over(by) or Whole(), Whole(tuple(rest))
    if remainder.number is not None and by.number:
        return quotient + constant(remainder.number // by.number), constant(remainder.number % by.number)
    ends = bounds(remainder)
    if ends is not None:
        low, high = ends
        if low.is_positive_or_zero() and (by - constant(1) - high).is_positive_or_zero():
            return quotient, remainder
    inner, outer = (f"({each})" if not each.is_atom else str(each) for each in (remainder, by))
    return quotient + named(f"({inner} // {outer})"), named(f"({inner} % {outer})")


def whole_of(
    term: Term, atom: Callable[[Term], Whole | None], combined: Callable[[str, Whole, Whole], Whole | None]
) -> Whole | None:
    """Write a term as a sum. None if impossible.

    `atom` returns the sum for a part that is not a sum of others; `combined` returns the sum for two operands
    of an operator other than addition and subtraction.
    """
    known: dict[Term, Whole | None] = {}  # a shared subterm is read once

    def visit(each: Term) -> Whole | None:
        if each not in known:
            found = read(each)
            known[each] = atom(each) if found is None else found
        return known[each]

    def read(each: Term) -> Whole | None:
        match each:
            case Number(value=int() as value) if not isinstance(value, bool):
                return constant(value)
            case Apply(op="cast", args=(inner,)) if not is_float(each.dtype) and not is_float(inner.dtype):
                return visit(inner)
            case Apply(op="neg", args=(inner,)):
                found = visit(inner)
                return None if found is None else Whole() - found
            case Apply(op=op, args=(first, second)):
                left, right = visit(first), visit(second)
                if left is None or right is None:
                    return None
                if op in ("add", "sub"):
                    return left + right if op == "add" else left - right
                return combined(op, left, right)
        return None

    return visit(term)
