"""Terms: the computation of one element of a tensor in a kernel, as a tree, and the types of their values.

Terms are compared by identity, since subterms are shared and the whole tree may be large.
"""

from __future__ import annotations

import re
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


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
"""Types from narrowest to widest."""
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""Distance from 1 to the next number: `torch.finfo(dtype).eps`. Twice the largest relative rounding error."""
_TYPES = {
    **dict.fromkeys(("float", "fp32"), "float32"),
    **dict.fromkeys(("double", "fp64"), "float64"),
    **dict.fromkeys(("half", "Half", "fp16"), "float16"),
    **dict.fromkeys(("BFloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("long", "i64"), "int64"),
    **dict.fromkeys(("int", "i32"), "int32"),
    **dict.fromkeys(("short", "i16"), "int16"),
    **dict.fromkeys(("char", "i8"), "int8"),
    **dict.fromkeys(("byte", "u8"), "uint8"),
    **dict.fromkeys(("int1", "i1", "u1"), "bool"),
}
"""Other spellings of these types, with `_t` in C++ and `tl.` in Triton."""
_DTYPE = re.compile(r"^(?:const\s+)?(?:(?:at|c10|std)::)?([\w.]+)")


def dtype_of(text: str) -> str | None:
    """The type that C++ or Triton spells as `at::BFloat16`, `const int64_t*`, `tl.float32`."""
    match = _DTYPE.match(text.strip().replace("*", ""))
    name = match[1].removeprefix("tl.").removesuffix("_t") if match else ""
    return name if name in DTYPES else _TYPES.get(name)


def type_of(text: str) -> str | None:
    """The type that a cast names; an address type begins with a star: `*float32` for `float*`."""
    dtype = dtype_of(text)
    return f"*{dtype}" if dtype and "*" in text else dtype


def promoted(*dtypes: str) -> str:
    """The type in which C++ and Triton compute: the widest, or float32 for float16 with bfloat16.

    An address remains an address after an addition.
    """
    if address := next(filter(is_address, dtypes), ""):
        return address
    if {"float16", "bfloat16"} <= set(dtypes):
        dtypes = (*dtypes, "float32")
    return max((dtype for dtype in dtypes if dtype in DTYPES), key=DTYPES.index, default="float32")


def whole_dtype(value: int) -> str:
    """The type of an integer in a kernel's code."""
    return "int32" if -(1 << 31) <= value < 1 << 31 else "int64"


_BITS = re.compile(r"\**[a-z]+(?P<bits>\d+)")  # the bits in `float8_e4m3fn`; `bool` has none


def itemsize_of(dtype: str) -> int:
    """The bytes of one element. 1 for an unknown dtype."""
    found = _BITS.match(dtype)
    return int(found["bits"]) // 8 if found else 1


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_address(dtype: str) -> bool:
    """Whether a value of this type points to elements, as `*float32` does."""
    return dtype.startswith("*")
