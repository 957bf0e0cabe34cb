"""Values of terms, rounded as the kernel rounds them.

Transcendental functions are computed in double precision and then rounded: the last bit of a float32 may
differ from the vector library's, so that a caller compares what is computed with what was seen.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_BITS = {
    "uint8": (8, False),
    "int8": (8, True),
    "int16": (16, True),
    "int32": (32, True),
    "int64": (64, True),
}
_MOST = 1 << 16
NAN, INF = math.nan, math.inf


class UnknownValue(Exception):
    """A value that cannot be told: an element that nobody saw, code that was not read."""


class Evaluator:
    """Evaluates terms for given loop variables and sizes; `read` gives the value of an element, or None."""

    def __init__(self, positions: Mapping[str, int], sizes: Mapping[str, int], read: Read) -> None:
        self.positions, self.sizes, self.read = dict(positions), sizes, read
        self._known: dict[int, Scalar] = {}
        self._kept: list[Term] = []

    def value(self, term: Term) -> Scalar:
        """Raises `UnknownValue`."""
        if id(term) not in self._known:
            self._known[id(term)] = self._value(term)
            self._kept.append(term)
        return self._known[id(term)]

    def _value(self, term: Term) -> Scalar:
        match term:
            case Number(value=value, dtype=dtype):
                return rounded(value, dtype)
            case Position(name=name):
                return _found(self.positions, name)
            case Size(name=name):
                return _found(self.sizes, name)
            case Element(index=index):
                seen = self.read(term, int(self.value(index)))
                if seen is None:
                    raise UnknownValue(term.parameter)
                return seen
            case Apply(op="where", args=(test, first, second), dtype=dtype):
                return rounded(self.value(first if self.value(test) else second), dtype)
            case Apply(op=op, args=args, dtype=dtype):
                return applied(op, [self.value(argument) for argument in args], dtype)
            case Fold():
                return self._folded(term)
            case Unread(text=text):
                raise UnknownValue(text)

    def _folded(self, term: Fold) -> Scalar:
        values = []
        for place in self.places(term.ranges):
            inner = Evaluator({**self.positions, **place}, self.sizes, self.read)
            values.append(inner.value(term.body))
        return fold(term.kind, values, term.dtype)

    def places(self, ranges: Sequence[Range], most: int = _MOST) -> Iterator[dict[str, int]]:
        """Every combination of the loop variables. Raises `UnknownValue` when there are more than `most`."""
        spans = [range(int(self.value(r.start)), int(self.value(r.stop))) for r in ranges]
        if math.prod(map(len, spans)) > most:
            raise UnknownValue("too many elements")
        names = [each.name for each in ranges]
        return (dict(zip(names, place, strict=True)) for place in product(*spans))


def _found(values: Mapping[str, int], name: str) -> int:
    if name not in values:
        raise UnknownValue(name)
    return values[name]


def rounded(value: Scalar, dtype: str) -> Scalar:
    """A value as its type holds it. What no whole number can hold becomes the least one, as on x86."""
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
    return _short(number, dtype)


def _short(number: float, dtype: str) -> float:
    """The nearest float32, float16 or bfloat16."""
    try:
        code = "e" if dtype == "float16" else "f"
        single: float = struct.unpack(code, struct.pack(code, number))[0]
    except OverflowError:
        return math.copysign(INF, number)
    if dtype != "bfloat16":
        return single
    (bits,) = struct.unpack("I", struct.pack("f", single))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    near: float = struct.unpack("f", struct.pack("I", bits))[0]
    return near


def applied(op: str, values: Sequence[Scalar], dtype: str) -> Scalar:
    """The result of one operator. Raises `UnknownValue` for one that is not in the table."""
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
    """A reduction of values, in the order of the loop."""
    match kind:
        case "sum" | "mean":
            total = math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
            return rounded(total / len(values) if kind == "mean" and values else total, dtype)
        case "prod":
            return rounded(math.prod(values), dtype)
        case "any":
            return any(values)
        case "all":
            return all(values)
        case "max" | "min":
            extreme = _greatest if kind == "max" else _least
            result: Scalar = -INF if kind == "max" else INF
            for value in values:
                result = extreme(result, value)
            return rounded(result, dtype)
        case "argmax" | "argmin":
            best = fold(kind[3:], values, "float64")
            return next((n for n, v in enumerate(values) if v == best or v != v), 0)
    raise UnknownValue(kind)


def _greatest(a: Scalar, b: Scalar) -> Scalar:
    return NAN if a != a or b != b else max(a, b)


def _least(a: Scalar, b: Scalar) -> Scalar:
    return NAN if a != a or b != b else min(a, b)


def _divided(a: Scalar, b: Scalar) -> Scalar:
    """C++ division: whole numbers are cut off towards zero, floats follow IEEE 754."""
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
    def compute(value: Scalar) -> float:
        if value == pole:
            return -INF
        return INF if value == INF else function(value)

    return compute


def _rounding(function: Callable[[float], float]) -> Callable[[Scalar], Scalar]:
    return lambda value: (
        value if isinstance(value, int) or not math.isfinite(value) else float(function(value))
    )


def _sign(value: Scalar) -> Scalar:
    return value if value != value else (value > 0) - (value < 0)


def _rsqrt(value: Scalar) -> float:
    return math.copysign(INF, value) if value == 0 else 0.0 if value == INF else 1 / math.sqrt(value)


def _sigmoid(value: Scalar) -> float:
    return 0.0 if value < -740 else 1 / (1 + math.exp(-value))


def _atanh(value: Scalar) -> float:
    return math.copysign(INF, value) if abs(value) == 1 else math.atanh(value)


FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "floordiv": lambda a, b: a // b,
    "truncdiv": _cut,
    "mod": lambda a, b: a % b,
    "remainder": lambda a, b: math.fmod(a, b) if isinstance(a, float) else a - b * _cut(a, b),
    "pow": _power,
    "neg": lambda a: -a,
    "abs": abs,
    "sqrt": lambda a: math.sqrt(a),
    "rsqrt": _rsqrt,
    "reciprocal": lambda a: _divided(1.0, a),
    "square": lambda a: a * a,
    "exp": math.exp,
    "exp2": lambda a: 2.0**a,
    "expm1": math.expm1,
    "log": _logarithm(math.log, 0.0),
    "log2": _logarithm(math.log2, 0.0),
    "log10": _logarithm(math.log10, 0.0),
    "log1p": _logarithm(math.log1p, -1.0),
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "atan2": math.atan2,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": _atanh,
    "erf": math.erf,
    "erfc": math.erfc,
    "sigmoid": _sigmoid,
    "floor": _rounding(math.floor),
    "ceil": _rounding(math.ceil),
    "trunc": _rounding(math.trunc),
    "round": _rounding(round),
    "sign": _sign,
    "signbit": lambda a: math.copysign(1, a) < 0,
    "hypot": math.hypot,
    "copysign": math.copysign,
    "minimum": _least,
    "maximum": _greatest,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a) and bool(b),
    "or": lambda a, b: bool(a) or bool(b),
    "not": lambda a: not a,
    "bitand": lambda a, b: int(a) & int(b),
    "bitor": lambda a, b: int(a) | int(b),
    "bitxor": lambda a, b: int(a) ^ int(b),
    "bitnot": lambda a: ~a,
    "shl": lambda a, b: int(a) << int(b),
    "shr": lambda a, b: int(a) >> int(b),
    "isnan": lambda a: a != a,
    "isinf": lambda a: a in (INF, -INF),
}
