"""Operators outside of the generated code that only move values, and which element went where.

The element is found by its value, which is exact: an operator in the table changes none. Names as in the
wrapper's shims (`aoti_torch_cpu_sort_stable`), torch 2.8 to 2.15.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from mcp_server.diagnosis.origin.values import Tensor, Values
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.terms.term import Scalar

_SHIM = re.compile(r"^aoti_torch_(?:cpu|cuda|xpu|mps)?_?")
_SUFFIX = re.compile(r"(?:_out|_default|_Tensor|_dim|_values|_src|_stable|_int|_self|_using_ints)+$")
# Operators whose first result holds values of an input; those of other results (places) are computed.
_CARRIERS = frozenset(
    {
        "as_strided",
        "cat",
        "clone",
        "concat",
        "constant_pad_nd",
        "contiguous",
        "copy",
        "copy_",
        "cummax",
        "cummin",
        "diagonal",
        "embedding",
        "expand",
        "flatten",
        "flip",
        "gather",
        "index",
        "index_copy",
        "index_fill",
        "index_put",
        "index_put_",
        "index_select",
        "kthvalue",
        "masked_fill",
        "masked_fill_",
        "masked_scatter",
        "masked_select",
        "max",
        "median",
        "min",
        "mode",
        "narrow",
        "pad",
        "permute",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "scatter",
        "scatter_",
        "select",
        "slice",
        "sort",
        "squeeze",
        "stack",
        "t",
        "take",
        "take_along_dim",
        "topk",
        "transpose",
        "tril",
        "triu",
        "unfold",
        "unique",
        "unique_consecutive",
        "unsqueeze",
        "view",
        "where",
    }
)
_SEARCHED = 1 << 18


def operator_name(launch: Launch) -> str:
    """`sort` for the shim `aoti_torch_cpu_sort_stable`."""
    return _SUFFIX.sub("", _SHIM.sub("", launch.callee or launch.kernel)).strip("_")


def is_carrier(launch: Launch) -> bool:
    """Whether an operator outside of the generated code only moves values."""
    return operator_name(launch) in _CARRIERS


def carried_by(
    launch: Launch, result: Argument, offset: int, value: Scalar, values: Values
) -> Iterator[tuple[Argument, int]]:
    """The elements that an operator read and that may have become its result at an offset.

    For an operator that computes, only a value that is not finite is followed: to NaN, then to infinity.
    """
    made = values.tensor(launch.index, result, "after")
    index = made.index(offset) if made else None
    carrier = is_carrier(launch) and result.name not in ("ret1", "indices")
    if not carrier and (not isinstance(value, float) or math.isfinite(value)):
        return
    for argument in launch.tensors:
        tensor = values.tensor(launch.index, argument, "before") if argument.role != "written" else None
        if tensor is None or tensor.count > _SEARCHED:
            continue
        for place in _matching(tensor, index, value, carrier):
            yield argument, tensor.offset(tensor.unraveled(place))


def _matching(tensor: Tensor, index: tuple[int, ...] | None, value: Scalar, carrier: bool) -> Iterator[int]:
    """Places with the value: first those that share most of the index with the result."""
    found = [place for place in range(tensor.count) if _matches(tensor.at(place), value, exactly=carrier)]

    def rank(place: int) -> tuple[bool, int]:
        return not same_value(tensor.at(place), value), -_shared(tensor.unraveled(place), index)

    yield from sorted(found, key=rank)


def _shared(one: tuple[int, ...], other: tuple[int, ...] | None) -> int:
    if other is None:
        return 0
    if len(one) == len(other):
        return sum(a == b for a, b in zip(one, other, strict=True))
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def same_value(a: Scalar | None, b: Scalar | None) -> bool:
    """Equal, or both NaN; an unknown value is like no other."""
    if a is None or b is None:
        return False
    return a == b or (a != a and b != b)


def called(launch: Launch, label: Callable[[str], str]) -> str:
    """An operator with what it reads: `bmm(args[0], buf3)`."""
    read = (a.target for a in launch.tensors if a.role != "written" and a.target)
    return f"{operator_name(launch)}({', '.join(label(name) for name in dict.fromkeys(read))})"


def _matches(seen: Scalar | None, value: Scalar, *, exactly: bool) -> bool:
    if seen is None or isinstance(seen, bool) != isinstance(value, bool):
        return False
    if isinstance(value, float) and math.isnan(value):
        return isinstance(seen, float) and (math.isnan(seen) or (not exactly and math.isinf(seen)))
    return seen == value
