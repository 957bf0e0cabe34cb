"""Where operations on real numbers are defined, and the operand that decides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.package.terms.term import Scalar


@dataclass(frozen=True)
class Domain:
    """What operand number `operand` may be: from `low` to `high`, or any number but 0 (`nonzero`).

    `is_open` leaves out the ends, where the result is infinite. `family` are the operations that one guard
    is for.
    """

    family: str
    operand: int = 0
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    nonzero: bool = False

    def holds(self, value: Scalar) -> bool:
        """Whether a value lies in it. NaN does: it was made elsewhere."""
        if self.nonzero:
            return value != 0
        outside = value < self.low or value > self.high
        return not outside and not (self.is_open and value in (self.low, self.high))

    def words(self) -> str:
        """`-1..1`, `above 0`, `0 or above`."""
        if self.high == math.inf:
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
    "pow": Domain("pow", low=0.0),
}
"""By the operator of a term."""


def outside(op: str, values: Sequence[Scalar]) -> Domain | None:
    """The domain of an operation that these operands lie outside of; None where they lie in it."""
    domain = DOMAINS.get(op)
    if domain is None or len(values) <= domain.operand or domain.holds(values[domain.operand]):
        return None
    if op == "pow" and (len(values) < 2 or values[1] == math.floor(values[1])):
        return None  # a whole power of a negative number is defined
    return domain
