"""For which values of one input element an expression goes wrong, from the expression alone.

The domain of the element is split until the expression rises or falls on each piece; there the ends of what
is good are found by bisection. What is told was evaluated on both sides. Whole numbers are looked at up to
2^48: beyond, nearly every sum overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.origin.records import Condition
from mcp_server.package.terms.evaluate import UnknownValue
from mcp_server.package.terms.interval import Bounds, Interval, from_ordinal, limits, ordinal
from mcp_server.package.terms.term import Scalar, Term, is_float

_PIECES = 600
_WHOLE = Interval(-(1 << 48), 1 << 48)
_SAMPLES = 12

Evaluate = Callable[[Scalar], Scalar]


@dataclass(frozen=True)
class Allowed:
    """What a value may be: from `low` to `high`, both included, and no NaN."""

    low: Scalar
    high: Scalar

    def holds(self, value: Scalar) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, eq=False)
class Question:
    """A term, the element of it that is varied, and what the others are known to be.

    `at` evaluates the term with another value of the element.
    """

    term: Term
    variable: str
    dtype: str
    others: dict[str, Interval]
    allowed: Allowed
    at: Evaluate

    @property
    def domain(self) -> Interval:
        return _WHOLE if self.dtype == "int64" else limits(self.dtype)

    def good(self, rank: int) -> bool:
        return self.allowed.holds(self.value(rank))

    def value(self, rank: int) -> Scalar:
        return self.at(from_ordinal(rank, self.dtype))


def good_ranges(question: Question) -> list[tuple[int, int]] | None:
    """The ranks of the element for which the term is good, as ranges that do not touch; None when unknown."""
    found: list[tuple[int, int]] = []
    try:
        for low, high, way in _pieces(question):
            good = _good_part(question, low, high, way)
            if good is None:
                continue
            if found and found[-1][1] + 1 == good[0]:
                found[-1] = (found[-1][0], good[1])
            else:
                found.append(good)
    except UnknownValue:
        return None
    return found


def _pieces(question: Question) -> Iterator[tuple[int, int, int]]:
    """Pieces of the element's domain on which the term rises, falls or stays. Raises `UnknownValue`."""
    domain = question.domain
    queue = [(ordinal(domain.low, question.dtype), ordinal(domain.high, question.dtype))]
    for _ in range(_PIECES):
        if not queue:
            return
        low, high = queue.pop()
        ends = (from_ordinal(low, question.dtype), from_ordinal(high, question.dtype))
        bounds = Bounds({**question.others, question.variable: Interval(*ends)})
        way = 0 if low == high else bounds.direction(question.term, question.variable)
        if way is not None:
            yield low, high, way
            continue
        middle = _middle(low, high)
        queue += [(middle + 1, high), (low, middle)]
    raise UnknownValue("the expression is too involved")


def _middle(low: int, high: int) -> int:
    """Where to split: at zero first, then where the magnitudes part, since small numbers matter most."""
    if low < 0 <= high:
        return -1
    sign = 1 if low >= 0 else -1
    small, large = sorted((abs(low), abs(high)))
    split = 1 << ((small.bit_length() + large.bit_length()) // 2)
    if not small <= split < large or split == small:
        split = (small + large) // 2
    return split if sign > 0 else -split - (0 if -split < high else 1)


def _good_part(question: Question, low: int, high: int, way: int) -> tuple[int, int] | None:
    """The part of a piece on which a monotone term is good: it hangs together."""
    if way == 0:
        return (low, high) if question.good(low) else None

    def enough(rank: int) -> bool:
        value = question.value(rank)
        return value >= question.allowed.low if way > 0 else value <= question.allowed.high

    def too_far(rank: int) -> bool:
        value = question.value(rank)
        return value > question.allowed.high if way > 0 else value < question.allowed.low

    start, end = _first(enough, low, high), _first(too_far, low, high) - 1
    return (start, end) if start <= end else None


def _first(test: Callable[[int], bool], low: int, high: int) -> int:
    """The first rank for which a test holds that holds from somewhere on; `high + 1` when it never does."""
    above = high + 1
    while low < above:
        middle = (low + above) // 2
        if test(middle):
            above = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class _Side:
    """The question at every point of the loops that reads the element; the first one is the faulty."""

    points: Sequence[Question]
    shown: Callable[[Scalar], str]

    @property
    def dtype(self) -> str:
        return self.points[0].dtype

    @property
    def ends(self) -> tuple[int, int]:
        domain = self.points[0].domain
        return ordinal(domain.low, self.dtype), ordinal(domain.high, self.dtype)

    def good(self, rank: int) -> bool:
        return all(question.good(rank) for question in self.points)

    def value(self, rank: int) -> Scalar:
        """The value that is worst for the bound, of all points."""
        values = [question.value(rank) for question in self.points]
        allowed = self.points[0].allowed
        bad = next((value for value in values if value != value), None)
        if bad is not None:
            return bad
        return min(values) if min(values) < allowed.low else max(values)

    def ranges(self) -> list[tuple[int, int]] | None:
        """The ranks that are good at the first, the second and the last point; the others are verified."""
        found: list[tuple[int, int]] | None = None
        for question in dict.fromkeys((*self.points[:2], self.points[-1])):
            good = good_ranges(question)
            if good is None:
                return None
            found = good if found is None else _common(found, good)
        return found


def _common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranks in both lists of ranges."""
    both = [(max(a, c), min(b, d)) for a, b in one for c, d in other]
    return sorted((low, high) for low, high in both if low <= high)


def condition(
    points: Sequence[Question], name: str, bad: Scalar | None, shown: Callable[[Scalar], str]
) -> Condition | None:
    """When the expression goes wrong, around the offending value; None where that is not known for sure.

    `points` holds the question at each point of the loops that reads the element: what is good has to be good
    at all of them.
    """
    side = _Side(points, shown)
    good = side.ranges()
    if not good:
        return None
    if bad is None:
        return _in_general(side, good, name)
    rank = ordinal(bad, side.dtype)
    below = max((end for _, end in good if end < rank), default=None)
    above = min((start for start, _ in good if start > rank), default=None)
    first = side.ends[0] if below is None else below + 1
    last = side.ends[1] if above is None else above - 1
    if side.good(rank) or not _verified(side, (below, above), (first, rank, last)):
        return None
    nearest = below if above is None or (below is not None and rank - below <= above - rank) else above
    assert nearest is not None, "there is a good range on some side"
    low = None if below is None else from_ordinal(first, side.dtype)
    high = None if above is None else from_ordinal(last, side.dtype)
    good_value = from_ordinal(nearest, side.dtype)
    text = f"{_what(side, (first, rank, last))} for {_where(name, low, high, shown)}"
    if not is_float(side.dtype):
        text = f"{text} and {shown(side.value(nearest))} for {shown(good_value)}"
    return Condition(text=text, variable=name, low=low, high=high, good=good_value)


def _what(side: _Side, ranks: tuple[int, int, int]) -> str:
    """The value on the bad side: one number where it is the same all over."""
    values = [side.value(rank) for rank in ranks]
    allowed = side.points[0].allowed
    if any(value != value for value in values):
        return "it is NaN" if all(value != value for value in values) else "it is not finite"
    if len(set(values)) == 1:
        return f"it is {side.shown(values[0])}"
    if all(value > allowed.high for value in values):
        return f"it is {side.shown(min(values))} or more"
    if all(value < allowed.low for value in values):
        return f"it is {side.shown(max(values))} or less"
    return "it is out of range"


def _where(name: str, low: Scalar | None, high: Scalar | None, shown: Callable[[Scalar], str]) -> str:
    if low is None:
        return f"{name} <= {shown(high)}" if high is not None else f"every {name}"
    if high is None:
        return f"{name} >= {shown(low)}"
    return f"{name} = {shown(low)}" if low == high else f"{name} from {shown(low)} to {shown(high)}"


def _verified(side: _Side, outside: tuple[int | None, int | None], inside: tuple[int, int, int]) -> bool:
    """Whether the expression is good just outside and bad at places all over the inside."""
    if any(rank is not None and not side.good(rank) for rank in outside):
        return False
    first, _, last = inside
    step = max(1, (last - first) // _SAMPLES)
    return not any(side.good(each) for each in {*inside, *range(first, last, step)})


def _in_general(side: _Side, good: list[tuple[int, int]], name: str) -> Condition | None:
    """The same without an offending value: what the element may be."""
    ends = side.ends
    if len(good) != 1 or good[0] == ends:
        return None
    low, high = good[0]
    outside = [each for each in (low - 1, high + 1) if ends[0] <= each <= ends[1]]
    if any(side.good(each) for each in outside) or not (side.good(low) and side.good(high)):
        return None
    first = None if low == ends[0] else from_ordinal(low, side.dtype)
    last = None if high == ends[1] else from_ordinal(high, side.dtype)
    text = f"good for {_where(name, first, last, side.shown)} only"
    return Condition(text=text, variable=name, low=first, high=last)
