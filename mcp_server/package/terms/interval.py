"""Interval arithmetic over terms, and whether a term rises or falls with one of its elements.

Rounding to a type is monotone, so that the ends of an interval are computed as the kernel computes values.
What the table does not know may be anything.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcp_server.package.terms.evaluate import UnknownValue, applied, rounded
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Scalar, Term, is_float

INF = math.inf
# Operators that rise with their operand where they are defined (inclusive ends); NaN elsewhere.
_RISING: dict[str, tuple[float, float]] = {
    "sqrt": (0.0, INF),
    "exp": (-INF, INF),
    "exp2": (-INF, INF),
    "expm1": (-INF, INF),
    "log": (0.0, INF),
    "log2": (0.0, INF),
    "log10": (0.0, INF),
    "log1p": (-1.0, INF),
    "tanh": (-INF, INF),
    "sinh": (-INF, INF),
    "asin": (-1.0, 1.0),
    "atan": (-INF, INF),
    "asinh": (-INF, INF),
    "acosh": (1.0, INF),
    "atanh": (-1.0, 1.0),
    "erf": (-INF, INF),
    "sigmoid": (-INF, INF),
    "floor": (-INF, INF),
    "ceil": (-INF, INF),
    "trunc": (-INF, INF),
    "round": (-INF, INF),
    "sign": (-INF, INF),
}
_FALLING: dict[str, tuple[float, float]] = {
    "neg": (-INF, INF),
    "erfc": (-INF, INF),
    "acos": (-1.0, 1.0),
    "rsqrt": (0.0, INF),
    "bitnot": (-INF, INF),
}
_LIMITS = {
    "bool": (0, 1),
    "uint8": (0, 255),
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    "float16": (-65504.0, 65504.0),
    "bfloat16": (-3.3895313892515355e38, 3.3895313892515355e38),
    "float32": (-3.4028234663852886e38, 3.4028234663852886e38),
    "float64": (-1.7976931348623157e308, 1.7976931348623157e308),
}
_WRAPS = frozenset({"add", "sub", "mul", "neg", "abs", "square"})
_COMPARED: dict[str, Callable[[Interval, Interval], bool | None]]


@dataclass(frozen=True, slots=True)
class Interval:
    """Every value from `low` to `high`, both included; `nan` when a NaN may be among them.

    `low > high`: there is no value but, perhaps, NaN.
    """

    low: Scalar
    high: Scalar
    nan: bool = False

    @property
    def empty(self) -> bool:
        return self.low > self.high

    def holds(self, value: Scalar) -> bool:
        return self.nan if value != value else self.low <= value <= self.high


def limits(dtype: str) -> Interval:
    """Every finite value of a type."""
    low, high = _LIMITS.get(dtype, (-INF, INF))
    return Interval(low, high)


def anything(dtype: str) -> Interval:
    """Whatever a type can hold."""
    return Interval(-INF, INF, nan=True) if is_float(dtype) else limits(dtype)


class Bounds:
    """Intervals and directions of terms, for elements whose intervals are known by parameter."""

    def __init__(self, known: Mapping[str, Interval]) -> None:
        self.known = known
        self._intervals: dict[int, Interval] = {}
        self._directions: dict[tuple[int, str], int | None] = {}
        self._kept: list[Term] = []

    def of(self, term: Term) -> Interval:
        """The values that a term may have."""
        if id(term) not in self._intervals:
            self._intervals[id(term)] = self._of(term)
            self._kept.append(term)
        return self._intervals[id(term)]

    def _of(self, term: Term) -> Interval:
        match term:
            case Number(value=value, dtype=dtype):
                exact = rounded(value, dtype)
                return Interval(INF, -INF, nan=True) if exact != exact else Interval(exact, exact)
            case Element(parameter=parameter, dtype=dtype):
                return self.known.get(parameter, anything(dtype))
            case Apply(op=op, args=args):
                given = [self.of(argument) for argument in args]
                return self._applied(op, given, term.dtype)
            case Fold(kind=("max" | "min"), body=body):
                return self.of(body)
        return anything(term.dtype)

    def _applied(self, op: str, given: list[Interval], dtype: str) -> Interval:
        if op == "where":
            return _chosen(given)
        if op in _COMPARED:
            decided = None if any(g.nan for g in given) else _COMPARED[op](given[0], given[1])
            return Interval(0, 1) if decided is None else Interval(int(decided), int(decided))
        if op in ("and", "or", "not"):
            return _logical(op, given)
        if any(g.empty for g in given):
            return Interval(INF, -INF, nan=True) if is_float(dtype) else anything(dtype)
        try:
            return _interval(op, given, dtype)
        except (UnknownValue, OverflowError, ZeroDivisionError):
            return anything(dtype)

    def direction(self, term: Term, variable: str) -> int | None:
        """1 when a term never falls as the element rises, -1 when it never rises, 0 constant, None open."""
        key = (id(term), variable)
        if key not in self._directions:
            self._directions[key] = self._direction(term, variable)
            self._kept.append(term)
        return self._directions[key]

    def _direction(self, term: Term, variable: str) -> int | None:
        span = self.of(term)
        if span.empty or (span.low == span.high and not span.nan):
            return 0
        if isinstance(term, Apply) and term.op in _WRAPS and span == limits(term.dtype):
            return None  # whole numbers may overflow
        match term:
            case Element(parameter=parameter):
                return 1 if parameter == variable else 0
            case Apply(op=op, args=args):
                given = [self.direction(argument, variable) for argument in args]
                if all(way == 0 for way in given):
                    return 0
                if op == "where":
                    return self._branch(args, given)
                if span.nan or None in given:
                    return None
                known = [way or 0 for way in given]
                return self._of_operator(op, [self.of(a) for a in args], known, term.dtype)
        return 0 if not isinstance(term, Fold) else self.direction(term.body, variable)

    def _branch(self, args: tuple[Term, ...], given: list[int | None]) -> int | None:
        test = self.of(args[0])
        if test.low != test.high:
            return None
        return given[1] if test.low else given[2]

    @staticmethod
    def _of_operator(op: str, spans: list[Interval], ways: list[int], dtype: str) -> int | None:
        first, last = spans[0], spans[-1]
        if op in _RISING or op == "cast":
            return ways[0] if op != "cast" or _fits(first, dtype) else None
        if op in _FALLING:
            return -ways[0]
        if op in ("add", "minimum", "maximum"):
            return _together(*ways)
        if op == "sub":
            return _together(ways[0], -ways[1])
        if op in ("abs", "square"):
            return ways[0] if first.low >= 0 else -ways[0] if first.high <= 0 else None
        if op == "mul":
            return _together(_signed(ways[0], last), _signed(ways[1], first))
        if op in ("div", "floordiv", "truncdiv") and (last.low > 0 or last.high < 0):
            return _together(_signed(ways[0], last), _signed(-ways[1], first))
        if op in ("lt", "le"):
            return _together(-ways[0], ways[1])
        if op in ("gt", "ge"):
            return _together(ways[0], -ways[1])
        return None


def _together(*ways: int | None) -> int | None:
    """The direction of a sum."""
    if None in ways:
        return None
    known = {way for way in ways if way}
    return None if len(known) > 1 else next(iter(known), 0)


def _signed(way: int, other: Interval) -> int | None:
    """The direction of a product with a factor from an interval."""
    if way == 0:
        return 0
    return way if other.low >= 0 else -way if other.high <= 0 else None


def _chosen(given: list[Interval]) -> Interval:
    test, first, second = given
    if test.low == test.high:
        return first if test.low else second
    return _hull(first, second)


def _hull(*given: Interval) -> Interval:
    full = [each for each in given if not each.empty]
    nan = any(each.nan for each in given)
    if not full:
        return Interval(INF, -INF, nan)
    return Interval(min(each.low for each in full), max(each.high for each in full), nan)


def _logical(op: str, given: list[Interval]) -> Interval:
    if op == "not":
        return Interval(int(not given[0].high), int(not given[0].low))
    both = min if op == "and" else max
    return Interval(both(bool(g.low) for g in given), both(bool(g.high) for g in given))


def _fits(span: Interval, dtype: str) -> bool:
    """Whether a cast changes no value by more than its rounding."""
    limit = limits(dtype)
    return is_float(dtype) or (not span.nan and limit.low <= span.low and span.high <= limit.high)


def _interval(op: str, given: list[Interval], dtype: str) -> Interval:
    """The result of an operator on intervals that are not empty. Raises `UnknownValue` for an unknown one."""
    nan = any(each.nan for each in given)
    if op == "cast":
        if not _fits(given[0], dtype):
            return anything(dtype)
        return Interval(rounded(given[0].low, dtype), rounded(given[0].high, dtype), nan)
    if op in _RISING or op in _FALLING:
        return _unary(op, given[0], dtype)
    if op in ("abs", "square"):
        ends = [applied(op, [end], dtype) for end in (given[0].low, given[0].high)]
        crosses = given[0].low < 0 < given[0].high
        return Interval(0 if crosses else min(ends), max(ends), nan)
    if op in ("sin", "cos"):
        return Interval(-1.0, 1.0, nan or not all(map(math.isfinite, (given[0].low, given[0].high))))
    if op in ("minimum", "maximum", "add", "sub", "mul"):
        return _corners(op, given, dtype)
    if op in ("div", "floordiv", "truncdiv") and (given[1].low > 0 or given[1].high < 0):
        return _corners(op, given, dtype)
    if op == "mod" and not nan and not is_float(dtype) and given[1].low > 0:
        fits = given[0].low >= 0 and given[0].high < given[1].low
        return given[0] if fits else Interval(0, given[1].high - 1)
    raise UnknownValue(op)


def _unary(op: str, given: Interval, dtype: str) -> Interval:
    low, high = _RISING.get(op) or _FALLING[op]
    inside = Interval(max(given.low, low), min(given.high, high))
    nan = given.nan or given.low < low or given.high > high
    if inside.empty:
        return Interval(INF, -INF, nan=True)
    ends = [applied(op, [end], dtype) for end in (inside.low, inside.high)]
    if any(end != end for end in ends):
        raise UnknownValue(op)
    return Interval(min(ends), max(ends), nan)


def _corners(op: str, given: list[Interval], dtype: str) -> Interval:
    """Operators whose extremes lie at the ends of their operands. Whole numbers that overflow: anything."""
    first, second = given
    exact = dtype if is_float(dtype) else "exact"
    found = [
        applied(op, [a, b], dtype) if exact == dtype else _whole(op, a, b)
        for a in (first.low, first.high)
        for b in (second.low, second.high)
    ]
    if any(each != each for each in found):
        raise UnknownValue(op)
    result = Interval(min(found), max(found), first.nan or second.nan)
    return result if is_float(dtype) or _fits(result, dtype) else anything(dtype)


def _whole(op: str, a: Scalar, b: Scalar) -> Scalar:
    """Without the wrap of a type, so that an overflow shows."""
    from mcp_server.package.terms.evaluate import FUNCTIONS

    return FUNCTIONS["truncdiv" if op == "div" else op](int(a), int(b))


def _less(a: Interval, b: Interval) -> bool | None:
    return True if a.high < b.low else False if a.low >= b.high else None


def _at_most(a: Interval, b: Interval) -> bool | None:
    return True if a.high <= b.low else False if a.low > b.high else None


def _equal(a: Interval, b: Interval) -> bool | None:
    if a.low == a.high == b.low == b.high:
        return True
    return False if a.high < b.low or b.high < a.low else None


def _unequal(a: Interval, b: Interval) -> bool | None:
    known = _equal(a, b)
    return None if known is None else not known


_COMPARED = {
    "lt": _less,
    "le": _at_most,
    "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _at_most(b, a),
    "eq": _equal,
    "ne": _unequal,
}


def ordinal(value: Scalar, dtype: str) -> int:
    """The rank of a value among those of its type; neighbours differ by 1."""
    if not is_float(dtype):
        return int(value)
    code, whole = ("d", "q") if dtype == "float64" else ("f", "i")
    (bits,) = struct.unpack(whole, struct.pack(code, value))
    return int(bits) if bits >= 0 else -int(bits & (0x7FFFFFFF if code == "f" else 0x7FFFFFFFFFFFFFFF))


def from_ordinal(rank: int, dtype: str) -> Scalar:
    """The value of a rank."""
    if not is_float(dtype):
        return bool(rank) if dtype == "bool" else rank
    code, whole = ("d", "q") if dtype == "float64" else ("f", "i")
    value: float = struct.unpack(code, struct.pack(whole, abs(rank)))[0]
    return value if rank >= 0 else -value
