"""Computes the values of terms, rounded as the kernel rounds them. `DOMAINS`: where operators are defined.

Transcendental functions are computed in double precision and then rounded. The last bit of a float32 may
differ from that of the vector library, so compare a computed value with the recorded one.
"""

import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    Unread,
    is_float,
)

Read = Callable[[Element, int], Scalar | None]
_BITS = {"uint8": (8, False), **{f"int{bits}": (bits, True) for bits in (8, 16, 32, 64)}}
_MOST = 1 << 16
NAN, INF = math.nan, math.inf


class UnknownValue(Exception):
    """The value is unknown: an element was not recorded, or code was not read."""


def _unseen(_element: Element, _offset: int) -> None:
    """A `read` that knows no element."""


class Evaluator:
    """Evaluates terms for given loop variables and sizes; `read` returns an element's value, or None."""

    def __init__(self, positions: Mapping[str, int], sizes: Mapping[str, int], read: Read = _unseen) -> None:
        self.positions, self.sizes, self.read = dict(positions), sizes, read
        self._known: dict[Term, Scalar] = {}

    def value(self, term: Term) -> Scalar:
        """The value of a term. Raises `UnknownValue` if unknown."""
        if term not in self._known:
            self._known[term] = self._value(term)
        return self._known[term]

    def _value(self, term: Term) -> Scalar:
        match term:
            case Number(value=value, dtype=dtype):
                return rounded(value, dtype)
            case Position(name=name) | Size(name=name):
                values = self.positions if isinstance(term, Position) else self.sizes
                if name not in values:
                    raise UnknownValue(name)
                return values[name]
            case Element(index=index):
                seen = self.read(term, int(self.value(index)))
                if seen is None:
                    raise UnknownValue(term.parameter)
                return seen
            case Apply(op="where", args=(test, first, second), dtype=dtype):
                return rounded(self.value(first if self.value(test) else second), dtype)
            case Apply(op=op, args=args, dtype=dtype):
                return applied(op, [self.value(argument) for argument in args], dtype)
            case Fold(kind=kind, ranges=ranges, body=body, dtype=dtype):
                inner = ({**self.positions, **place} for place in self.places(ranges))
                folded = [Evaluator(each, self.sizes, self.read).value(body) for each in inner]
                return fold(kind, folded, dtype)
            case Unread(text=text):
                raise UnknownValue(text)

    def span(self, each: Range) -> range:
        """The values of a loop variable. Raises `UnknownValue` if its ends are unknown."""
        return range(int(self.value(each.start)), int(self.value(each.stop)))

    def places(self, ranges: Sequence[Range], most: int = _MOST) -> Iterator[dict[str, int]]:
        """Yield all combinations of the loop variables. Raise `UnknownValue` if they exceed `most`."""
        spans = [self.span(each) for each in ranges]
        if math.prod(map(len, spans)) > most:
            raise UnknownValue("too many elements")
        names = [each.name for each in ranges]
        return (dict(zip(names, place, strict=True)) for place in product(*spans))


def rounded(value: Scalar, dtype: str) -> Scalar:
    """Round a value to its type. A float beyond an integer type becomes the type's minimum, as on x86."""
    if dtype == "bool":
        return bool(value)
    if dtype in _BITS:
        bits, signed = _BITS[dtype]
        if isinstance(value, float) and not abs(value) < 1 << (bits - signed):
            return -(1 << (bits - 1)) if signed else 0
        whole = int(value) & ((1 << bits) - 1)
        return whole - (1 << bits) if signed and whole >> (bits - 1) else whole
    number = float(value)
    if dtype == "float64" or not math.isfinite(number):
        return number
    try:
        code = "e" if dtype == "float16" else "f"
        short: float = struct.unpack(code, struct.pack(code, number))[0]
    except OverflowError:
        return math.copysign(INF, number)
    if dtype == "bfloat16":
        (bits,) = struct.unpack("I", struct.pack("f", short))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        short = struct.unpack("f", struct.pack("I", bits))[0]
    return short


def applied(op: str, values: Sequence[Scalar], dtype: str) -> Scalar:
    """The result of one operator. Raises `UnknownValue` if it is not in the table."""
    if op == "cast":
        return rounded(values[0], dtype)
    function = FUNCTIONS.get(op)
    if function is None:
        raise UnknownValue(op)
    try:
        return rounded(function(*values), dtype)
    except OverflowError:
        return INF if is_float(dtype) else 0
    except (ValueError, ZeroDivisionError):
        if is_float(dtype):
            return NAN
        raise UnknownValue(op) from None


def fold(kind: str, values: Sequence[Scalar], dtype: str) -> Scalar:
    """Reduce values in the order of the loop."""
    match kind:
        case "sum" | "mean":
            total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
            return rounded(total / len(values) if kind == "mean" and values else total, dtype)
        case "m2":
            mean = math.fsum(values) / max(len(values), 1)
            return rounded(math.fsum((value - mean) ** 2 for value in values), dtype)
        case "prod":
            return rounded(math.prod(values), dtype)
        case "any" | "all":
            return any(values) if kind == "any" else all(values)
        case "max" | "min":
            start = -INF if kind == "max" else INF
            return rounded(reduce(FUNCTIONS[f"{kind}imum"], values, start), dtype)
        case "argmax" | "argmin":
            best = fold(kind[3:], values, "float64")
            return next((n for n, v in enumerate(values) if v == best or v != v), 0)
    raise UnknownValue(kind)


def _extreme(choose: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda a, b: NAN if a != a or b != b else choose(a, b)


def _divided(a: Scalar, b: Scalar) -> Scalar:
    """C++ division: integers are truncated towards zero, floats follow IEEE 754."""
    if isinstance(a, int) and isinstance(b, int):
        return _cut(a, b)
    if b == 0:
        return NAN if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def _cut(a: Scalar, b: Scalar) -> int:
    quotient = abs(int(a)) // abs(int(b))
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: Scalar, b: Scalar) -> Scalar:
    if a == 0 and b < 0:
        return INF
    result = a**b
    return NAN if isinstance(result, complex) else result


def _logarithm(function: Callable[[float], float], pole: float) -> Callable[[Scalar], float]:
    return lambda value: -INF if value == pole else INF if value == INF else function(value)


def _rounding(function: Callable[[float], float]) -> Callable[[Scalar], Scalar]:
    def rounding(value: Scalar) -> Scalar:
        if isinstance(value, int) or not math.isfinite(value):
            return value
        return math.copysign(function(value), value)  # -0.5 is rounded up to -0.0

    return rounding


_SAME_OPERATOR = "add sub mul mod neg lt le gt ge eq ne"
_SAME_NAME = "sqrt exp expm1 sin cos tan tanh cosh asin acos atan atan2 asinh acosh erf erfc hypot copysign"
MATH: dict[str, Callable[..., Scalar]] = {
    **{name: getattr(math, name) for name in _SAME_NAME.split()},
    "abs": abs,
    "lgamma": math.lgamma,
    "pow": _power,
    "sinh": lambda a: math.copysign(INF, a) if abs(a) > 710 else math.sinh(a),
    "rsqrt": lambda a: math.copysign(INF, a) if a == 0 else 0.0 if a == INF else 1 / math.sqrt(a),
    "reciprocal": lambda a: _divided(1.0, a),
    "exp2": lambda a: 2.0**a,
    "log": _logarithm(math.log, 0.0),
    "log2": _logarithm(math.log2, 0.0),
    "log10": _logarithm(math.log10, 0.0),
    "log1p": _logarithm(math.log1p, -1.0),
    "atanh": lambda a: math.copysign(INF, a) if abs(a) == 1 else math.atanh(a),
    "sigmoid": lambda a: 0.0 if a < -740 else 1 / (1 + math.exp(-a)),
    "floor": _rounding(math.floor),
    "ceil": _rounding(math.ceil),
    "trunc": _rounding(math.trunc),
    "sign": lambda a: a if a != a else (a > 0) - (a < 0),
    "signbit": lambda a: math.copysign(1, a) < 0,
    "isnan": lambda a: a != a,
    "isinf": lambda a: a in (INF, -INF),
}
"""Functions that C++, Triton and the terms call by the same name."""
FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    **MATH,
    **{name: getattr(operator, name) for name in _SAME_OPERATOR.split()},
    "div": _divided,
    # Dividing by a float 0 gives the same as `div` (c10/util/generic_math.h).
    "floordiv": lambda a, b: _divided(a, b) if b == 0 and isinstance(b, float) else a // b,
    "truncdiv": _cut,
    "remainder": lambda a, b: math.fmod(a, b) if isinstance(a, float) else a - b * _cut(a, b),
    "square": lambda a: a * a,
    "round": _rounding(round),
    "minimum": _extreme(min),
    "maximum": _extreme(max),
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": operator.not_,
    "bitand": lambda a, b: int(a) & int(b),
    "bitor": lambda a, b: int(a) | int(b),
    "bitxor": lambda a, b: int(a) ^ int(b),
    "bitnot": operator.invert,
    "shl": lambda a, b: int(a) << min(int(b), 128),  # no type has so many bits
    "shr": lambda a, b: int(a) >> int(b),
}


@dataclass(frozen=True)
class Domain:
    """The values of operand number `operand` that an operator accepts: `low` to `high`, or not 0 (`nonzero`).

    `is_open` excludes the ends, where the result is infinite. Operations of one `family` need the same guard.
    """

    family: str
    operand: int = 0
    low: float = -INF
    high: float = INF
    is_open: bool = False
    nonzero: bool = False

    def holds(self, value: Scalar) -> bool:
        """Whether a value lies in the domain. NaN counts as inside, since another operation produced it."""
        if self.nonzero:
            return value != 0
        outside = value < self.low or value > self.high
        return not outside and not (self.is_open and value in (self.low, self.high))

    def words(self) -> str:
        """Describe the domain: `-1..1`, `above 0`, `0 or above`."""
        if self.high == INF:
            return f"above {self.low:g}" if self.is_open else f"{self.low:g} or above"
        return f"between {self.low:g} and {self.high:g}" if self.is_open else f"{self.low:g}..{self.high:g}"


_DIVISOR = Domain("div", 1, nonzero=True)
_LOGARITHM = Domain("log", low=0.0, is_open=True)
DOMAINS = {
    "div": _DIVISOR,
    "floordiv": _DIVISOR,
    "remainder": _DIVISOR,
    "mod": _DIVISOR,
    "reciprocal": Domain("div", nonzero=True),
    "log": _LOGARITHM,
    "log2": _LOGARITHM,
    "log10": _LOGARITHM,
    "log1p": Domain("log", low=-1.0, is_open=True),
    "sqrt": Domain("sqrt", low=0.0),
    "rsqrt": Domain("sqrt", low=0.0, is_open=True),
    "acos": Domain("acos", low=-1.0, high=1.0),
    "asin": Domain("acos", low=-1.0, high=1.0),
    "acosh": Domain("acos", low=1.0),
    "atanh": Domain("acos", low=-1.0, high=1.0, is_open=True),
    "pow": Domain("pow", low=0.0, is_open=True),  # `outside` accepts 0 if the exponent is not negative
}
"""Domains by the operator of a term."""


def outside(op: str, values: Sequence[Scalar]) -> Domain | None:
    """The domain of an operation if its operands are outside the domain. None if inside."""
    domain = DOMAINS.get(op)
    if domain is None or len(values) <= domain.operand or domain.holds(values[domain.operand]):
        return None
    if op == "pow" and (len(values) < 2 or values[1] >= 0 if values[0] == 0 else values[1] % 1 == 0):
        return None  # an integer power of a negative number is defined
    return domain
