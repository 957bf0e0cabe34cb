"""The lanes in which a kernel makes an access: the address in the types that the code computes in.

A lane is one combination of the loop variables. Those that are tried are the ends of each loop, and of the
digits into which `//` and `%` take it apart: a sum of multiples of nested digits has its extremes there.
Where a mask cuts such an end off, the last lane that it leaves is tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import prod

from mcp_server.package.terms.evaluate import FUNCTIONS, Evaluator, UnknownValue, rounded
from mcp_server.package.terms.interval import Bounds, Interval, limits
from mcp_server.package.terms.program import Access, Source, places, read_program
from mcp_server.package.terms.term import Apply, Position, Scalar, Size, Term, is_float, parts

_MOST_LANES = 4096
_MOST_MASKED = 64
_MOST_ENDS = 256  # of one loop variable
_WHOLE = frozenset({"add", "sub", "mul", "neg", "shl"})
_DIVIDES = frozenset({"floordiv", "truncdiv", "div"})
_REMAINDER = frozenset({"mod", "remainder"})


def read_accesses(kernel: Source) -> tuple[Access, ...]:
    """The accesses of a kernel in the order of the text, as far as they are understood."""
    return tuple(each for each in read_program(kernel).accesses if each.is_understood)


def terms_of(access: Access) -> tuple[Term, ...]:
    """All terms that decide where and when an access is made."""
    return tuple(
        dict.fromkeys(each for root in access.decided_by for each in parts(root, inside_indices=True))
    )


@dataclass(frozen=True)
class Overflow:
    """An operation whose result its type cannot hold: what it should be, and what it becomes."""

    term: Term
    exact: int
    wrapped: int


class Lane(Evaluator):
    """Evaluates terms in one lane, and notes the first overflow of whole numbers."""

    def __init__(self, place: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        super().__init__(place, sizes)
        self.overflow: Overflow | None = None

    def _value(self, term: Term) -> Scalar:
        value = exact = super()._value(term)
        match term:
            case Apply(op=op, args=args) if op in _WHOLE and not is_float(term.dtype):
                exact = FUNCTIONS[op](*map(self.value, args))
                if not any(isinstance(each, Position | Size) for each in parts(term)):
                    return exact  # Triton computes with constants as Python does
            case Apply(op="cast", args=(inner,)) if not (is_float(inner.dtype) or is_float(term.dtype)):
                exact = self.value(inner)
            case Position(dtype=dtype) | Size(dtype=dtype):
                value = rounded(exact, dtype)
        if exact != value and term.dtype != "bool" and self.overflow is None:
            self.overflow = Overflow(term, int(exact), int(value))
        return value

    def offset(self, access: Access) -> int | None:
        """Bytes from the pointer to what is accessed; None where the lane does not make the access.

        Raises `UnknownValue`.
        """
        if access.test is not None and not self.value(access.test):
            return None
        return sum(int(self.value(part)) * size for part, size in access.place.parts)


def lanes(access: Access, sizes: Mapping[str, int]) -> Iterator[Lane]:
    """The lanes of the extremes, the last ones first; all where they are few. Raises `UnknownValue`."""
    plain = Lane({}, sizes)
    spans = {each.name: plain.span(each) for each in access.ranges}
    if prod(map(len, spans.values())) <= _MOST_LANES:
        yield from first_lanes(access, sizes)
        return
    digits = _digits(access, plain)
    choices = [[span[turn] for turn in _ends(len(span), digits)] for span in spans.values()]
    masked: list[dict[str, int]] = []
    for chosen in islice(product(*choices), _MOST_LANES):
        place = dict(zip(spans, chosen, strict=True))
        yield (lane := Lane(place, sizes))
        if access.test is not None and len(masked) < _MOST_MASKED and not lane.value(access.test):
            masked.append(place)
    for place in masked:
        for name, span in spans.items():
            # The last turn that a mask leaves on, if it leaves the first turns on.
            left = bisect_left(span, True, key=lambda turn: not _made(access, {**place, name: turn}, sizes))
            if left:
                yield Lane({**place, name: span[left - 1]}, sizes)


def _made(access: Access, place: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    return Lane(place, sizes).offset(access) is not None


def _ends(turns: int, digits: list[int]) -> list[int]:
    """The turns in which each digit is 0 or the largest that the other digits allow, last turn first."""
    found, below = {0, turns - 1}, {0}
    for low, high in pairwise([1, *digits, turns]):
        last = (turns - 1) // low
        found |= {turn * low + rest for turn in (0, last - 1, last) for rest in below}
        if len(below) < _MOST_ENDS:
            below |= {rest + high - low for rest in below}
    return sorted((each for each in found | below if 0 <= each < turns), reverse=True)[:_MOST_ENDS]


def first_lanes(access: Access, sizes: Mapping[str, int]) -> Iterator[Lane]:
    """Neighbouring lanes, from the first one on. Raises `UnknownValue`."""
    return (Lane(place, sizes) for place in places(access.ranges, sizes, _MOST_LANES)[0])


def _digits(access: Access, plain: Lane) -> list[int]:
    """The number of turns after which each digit of the place, made with `//` and `%`, starts again."""

    def number(term: Term) -> int:
        try:
            return max(int(plain.value(term)), 1)
        except UnknownValue:
            return 1

    def place_value(term: Term) -> int:
        match term:
            case Apply(op=op, args=(inner, by)) if op in _DIVIDES:
                return place_value(inner) * number(by)
            case Apply(op=op, args=(inner, *_)) if op in _REMAINDER or op == "cast":
                return place_value(inner)
        return 1

    made = [each for each in terms_of(access) if isinstance(each, Apply) and each.op in _DIVIDES | _REMAINDER]
    return sorted({place_value(each.args[0]) * number(each.args[1]) for each in made} - {1})


class Spans:
    """Judges an access by intervals alone: fast, and enough for most. Raises `UnknownValue`."""

    def __init__(self, access: Access, sizes: Mapping[str, int]) -> None:
        plain, self.access = Lane({}, sizes), access
        known = {name: Interval(value, value) for name, value in sizes.items()}
        spans = {each.name: plain.span(each) for each in access.ranges}
        self.empty = not all(spans.values())
        known |= {name: Interval(span[0], span[-1]) for name, span in spans.items() if span}
        self.bounds = Bounds(known)

    @property
    def may_overflow(self) -> bool:
        """Whether a term of fewer than 64 bits may not hold its value."""
        for term in terms_of(self.access):
            limit, span = limits(term.dtype), self.bounds.of(term)
            whole = not (is_float(term.dtype) or term.dtype in ("bool", "int64"))
            if whole and (span == limit or span.low < limit.low or span.high > limit.high):
                return True
        return False

    def may_leave(self, first: int, end: int) -> bool:
        """Whether the access may lie outside of the bytes from `first` to below `end`."""
        spans = [(self.bounds.of(part), size) for part, size in self.access.place.parts]
        low = sum(span.low * size for span, size in spans)
        return low < first or sum(span.high * size for span, size in spans) + self.access.place.itemsize > end
