"""Interval arithmetic over terms, and whether a term rises or falls with one of its elements.

Rounding to a type is monotone, so the ends of an interval are computed in the same way as values. An operator
that is not in the tables may return any value.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.package.terms.evaluate import DOMAINS, FUNCTIONS, Domain, UnknownValue, applied, rounded
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Position, Scalar, Size, Term, is_float

INF = math.inf
# Operators that rise (or fall) as their operand rises, where defined (`DOMAINS`). They are NaN elsewhere.
_RISING = frozenset(
    {
        *("exp", "exp2", "expm1", "tanh", "sinh", "atan", "asinh", "erf", "sigmoid", "sqrt", "log", "log2"),
        *("log10", "log1p", "asin", "atanh", "acosh", "floor", "ceil", "trunc", "round", "sign"),
    }
)
_FALLING = frozenset({"neg", "erfc", "bitnot", "acos", "rsqrt"})
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


@dataclass(frozen=True, slots=True)
class Interval:
    """The values from `low` to `high`, inclusive. `nan` means that NaN is also possible.

    If `low > high`, there is no value except, perhaps, NaN.
    """

    low: Scalar
    high: Scalar
    nan: bool = False

    @property
    def empty(self) -> bool:
        return self.low > self.high

    def holds(self, value: Scalar) -> bool:
        return self.nan if value != value else self.low <= value <= self.high


_NO_NUMBER = Interval(INF, -INF, nan=True)


def limits(dtype: str) -> Interval:
    """The interval of all finite values of a type."""
    low, high = _LIMITS.get(dtype, (-INF, INF))
    return Interval(low, high)


def anything(dtype: str) -> Interval:
    """The interval of all values of a type."""
    return Interval(-INF, INF, nan=True) if is_float(dtype) else limits(dtype)


class Bounds:
    """The interval of each term, and whether it rises or falls with an element, size or loop variable."""

    def __init__(self, known: Mapping[str, Interval]) -> None:
        self.known = known
        self._intervals: dict[Term, Interval] = {}
        self._directions: dict[tuple[Term, str], int | None] = {}

    def of(self, term: Term) -> Interval:
        """The values that a term may have."""
        if term not in self._intervals:
            self._intervals[term] = self._of(term)
        return self._intervals[term]

    def _of(self, term: Term) -> Interval:
        match term:
            case Number(value=value, dtype=dtype):
                exact = rounded(value, dtype)
                return _NO_NUMBER if exact != exact else Interval(exact, exact)
            case Element(parameter=parameter, dtype=dtype):
                return self.known.get(parameter, anything(dtype))
            case Position(name=name, dtype=dtype) | Size(name=name, dtype=dtype):
                return self.known.get(name, anything(dtype))
            case Apply(op=op, args=args):
                return _applied(op, [self.of(argument) for argument in args], term.dtype)
            case Fold(kind=("max" | "min"), body=body):
                return self.of(body)
        return anything(term.dtype)

    def direction(self, term: Term, variable: str) -> int | None:
        """1: the term never falls as `variable` rises. -1: it never rises. 0: constant. None: unknown."""
        key = (term, variable)
        if key not in self._directions:
            self._directions[key] = self._direction(term, variable)
        return self._directions[key]

    def _direction(self, term: Term, variable: str) -> int | None:
        span = self.of(term)
        zeros = is_float(term.dtype) and span.low == 0  # -0.0 equals 0.0, but its reciprocal differs
        if span.empty or (span.low == span.high and not span.nan and not zeros):
            return 0
        if isinstance(term, Apply) and term.op in _WRAPS and span == limits(term.dtype):
            return None  # integers may overflow
        match term:
            case Element(parameter=parameter):
                return 1 if parameter == variable else 0
            case Apply(op=op, args=args):
                ways = [self.direction(argument, variable) for argument in args]
                if all(way == 0 for way in ways):
                    return 0
                spans = [self.of(argument) for argument in args]
                if op == "where":
                    test = spans[0]
                    return ways[1 if test.low else 2] if test.low == test.high else None
                if span.nan or None in ways:
                    return None
                return _direction(op, spans, [way or 0 for way in ways], term.dtype)
            case Fold(body=body):
                return self.direction(body, variable)
        return 0


def _direction(op: str, spans: list[Interval], ways: list[int], dtype: str) -> int | None:
    """The direction of an operator from the intervals and directions of its operands."""
    first, last = spans[0], spans[-1]
    if op in _RISING:
        return ways[0]
    if op in _FALLING:
        return -ways[0]
    if op == "cast":
        return ways[0] if _fits(first, dtype) else None
    if op in ("abs", "square"):
        return _signed(ways[0], first)
    if op in ("add", "minimum", "maximum"):
        return _together(*ways)
    if op in ("sub", "gt", "ge"):
        return _together(ways[0], -ways[1])
    if op in ("lt", "le"):
        return _together(-ways[0], ways[1])
    if op == "mul":
        return _together(_signed(ways[0], last), _signed(ways[1], first))
    if op in ("div", "floordiv", "truncdiv") and (last.low > 0 or last.high < 0):
        return _together(_signed(ways[0], last), _signed(-ways[1], first))
    return None


def _together(*ways: int | None) -> int | None:
    """The direction of a sum from those of its parts."""
    if None in ways:
        return None
    known = {way for way in ways if way}
    return None if len(known) > 1 else next(iter(known), 0)


def _signed(way: int, other: Interval) -> int | None:
    """The direction of a factor's product with a value of `other`."""
    if way == 0:
        return 0
    return way if other.low >= 0 else -way if other.high <= 0 else None


def _fits(span: Interval, dtype: str) -> bool:
    """Whether a cast changes values only by rounding."""
    limit = limits(dtype)
    return is_float(dtype) or (not span.nan and limit.low <= span.low and span.high <= limit.high)


def _applied(op: str, operands: list[Interval], dtype: str) -> Interval:
    """The interval of an operator's result; every value for an unknown operator."""
    nan = any(each.nan for each in operands)
    if op == "where":
        test, *branches = operands
        if test.low == test.high:
            return branches[0 if test.low else 1]
        full = [each for each in branches if not each.empty]
        low = min((each.low for each in full), default=INF)
        high = max((each.high for each in full), default=-INF)
        return Interval(low, high, any(each.nan for each in branches))
    if op in ("lt", "le", "gt", "ge", "eq", "ne"):
        decided = None if nan else _compared(op, operands[0], operands[1])
        return Interval(0, 1) if decided is None else Interval(int(decided), int(decided))
    if op == "not":
        return Interval(int(not operands[0].high), int(not operands[0].low))
    if op in ("and", "or"):
        both = min if op == "and" else max
        return Interval(both(bool(each.low) for each in operands), both(bool(each.high) for each in operands))
    if any(each.empty for each in operands):
        return _NO_NUMBER if is_float(dtype) else anything(dtype)
    try:
        return _arithmetic(op, operands, dtype, nan)
    except (UnknownValue, OverflowError, ZeroDivisionError):
        return anything(dtype)


def _arithmetic(op: str, operands: list[Interval], dtype: str, nan: bool) -> Interval:
    """Apply an operator to non-empty intervals. Raise `UnknownValue` if the operator is unknown."""
    first, last = operands[0], operands[-1]
    if op == "cast":
        limit = limits(dtype)
        floats = isinstance(first.low, float) and isinstance(first.high, float)
        beyond = first.low > limit.high or first.high < limit.low
        if floats and beyond and not is_float(dtype) and limit.low < 0:
            # A conversion to a signed integer type turns all of these floats, and NaN, into the minimum.
            least = rounded(first.low, dtype)
            return Interval(least, least)
        if not _fits(first, dtype):
            return anything(dtype)
        return Interval(rounded(first.low, dtype), rounded(first.high, dtype), nan)
    if op in ("abs", "square"):
        ends = [applied(op, [end], dtype) for end in (first.low, first.high)]
        return Interval(0 if first.low < 0 < first.high else min(ends), max(ends), nan)
    if op in ("sin", "cos"):
        return Interval(-1.0, 1.0, nan or not all(map(math.isfinite, (first.low, first.high))))
    if op == "mod" and not nan and not is_float(dtype) and last.low > 0:
        return first if first.low >= 0 and first.high < last.low else Interval(0, last.high - 1)
    if op == "bitand" and (masks := [each.high for each in (first, last) if each.low >= 0]):
        return Interval(0, min(masks))
    if op == "remainder" and not nan and not is_float(dtype) and last.low > 0:
        return Interval(min(0, max(first.low, 1 - last.high)), max(0, min(first.high, last.high - 1)))
    if op in _RISING | _FALLING:
        domain = DOMAINS.get(op, Domain(op))
        inside = Interval(max(first.low, domain.low), min(first.high, domain.high))
        if inside.empty:
            return _NO_NUMBER
        nan |= first.low < domain.low or first.high > domain.high
        return _hull([applied(op, [end], dtype) for end in (inside.low, inside.high)], nan)
    divides = op in ("div", "floordiv", "truncdiv") and (last.low > 0 or last.high < 0)
    if op not in ("minimum", "maximum", "add", "sub", "mul") and not divides:
        raise UnknownValue(op)
    pairs = [(a, b) for a in (first.low, first.high) for b in (last.low, last.high)]
    if is_float(dtype):
        return _hull([applied(op, pair, dtype) for pair in pairs], nan)
    # Compute without wrapping at the type's limits, so that an overflow becomes visible.
    exact = FUNCTIONS["truncdiv" if op == "div" else op]
    result = _hull([exact(int(a), int(b)) for a, b in pairs], nan)
    return result if _fits(result, dtype) else anything(dtype)


def _hull(values: list[Scalar], nan: bool) -> Interval:
    """The smallest interval with all of the values. Raises `UnknownValue` if one is NaN."""
    if any(each != each for each in values):
        raise UnknownValue("NaN")
    return Interval(min(values), max(values), nan)


def _compared(op: str, a: Interval, b: Interval) -> bool | None:
    """The result of a comparison if it is the same for all values; else None."""
    if op in ("eq", "ne"):
        apart = a.high < b.low or b.high < a.low
        same = a.low == a.high == b.low == b.high
        return apart == (op == "ne") if apart or same else None
    extremes = [(a.high, b.low), (a.low, b.high)]  # the worst and the best case of a < b
    worst, best = extremes if op in ("lt", "le") else extremes[::-1]
    return True if FUNCTIONS[op](*worst) else None if FUNCTIONS[op](*best) else False


def ordinal(value: Scalar, dtype: str) -> int:
    """The rank of a value among the values of its type; neighbours differ by 1."""
    if not is_float(dtype):
        return int(value)
    code, whole = ("d", "q") if dtype == "float64" else ("f", "i")
    (bits,) = struct.unpack(whole, struct.pack(code, abs(value)))
    return int(math.copysign(1, value)) * int(bits)


def from_ordinal(rank: int, dtype: str) -> Scalar:
    """The value with this rank."""
    if not is_float(dtype):
        return bool(rank) if dtype == "bool" else rank
    code, whole = ("d", "q") if dtype == "float64" else ("f", "i")
    value: float = struct.unpack(code, struct.pack(whole, abs(rank)))[0]
    return value if rank >= 0 else -value
