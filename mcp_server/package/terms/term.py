"""Terms: the computation of one element of a tensor in a kernel, as a tree.

Terms are compared by identity, since subterms are shared and the whole tree may be large.
"""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float


@dataclass(frozen=True, eq=False, slots=True)
class Number:
    """A constant in the code."""

    value: Scalar
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Position:
    """A loop variable, or an index of the iteration space of a Triton kernel."""

    name: str
    dtype: str = "int64"


@dataclass(frozen=True, eq=False, slots=True)
class Size:
    """An argument of the kernel: a scalar or, with a dtype such as `*float32`, the address of a tensor."""

    name: str
    dtype: str = "int64"


@dataclass(frozen=True, eq=False, slots=True)
class Element:
    """A loaded element: `index` counts elements from the kernel's pointer, `line` is 1-based."""

    parameter: str
    index: Term
    dtype: str
    line: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Apply:
    """An operator on values. `dtype` is the result's type; `cast` only changes the type."""

    op: str
    args: tuple[Term, ...]
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Range:
    """A loop variable and its values: from `start` to below `stop`."""

    name: str
    start: Term
    stop: Term


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """A reduction: `kind` (sum, prod, max, min, any, all, argmax, argmin, mean, m2) of `body` over `ranges`.

    `m2` is the sum of squared differences from the mean.
    """

    kind: str
    ranges: tuple[Range, ...]
    body: Term
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Unread:
    """Code that was not understood. Nothing may be concluded from a term that contains it.

    `args` are the operands of an unknown function.
    """

    text: str
    dtype: str = "float32"
    args: tuple[Term, ...] = ()


Term = Number | Position | Size | Element | Apply | Fold | Unread

QUOTIENTS = frozenset({"div", "floordiv", "truncdiv"})
REMAINDERS = frozenset({"mod", "remainder"})
