"""Whole numbers that do not fit: results of integer operators, and constants of half precision.

torch computes int8 to int32 modulo their range, without a word, in eager mode as in a package.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.utils import _pytree

from .protocol import Overflow, Rounded
from .tensors import dtype_name, only_tensors

NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8)
_ARITHMETIC = ("add", "sub", "rsub", "mul", "pow", "square", "neg", "__lshift__", "bitwise_left_shift")
_REDUCTIONS = ("sum", "cumsum", "prod", "cumprod", "mm", "bmm", "matmul", "mv", "dot")
OPERATORS = frozenset("aten::" + name for name in (*_ARITHMETIC, *_REDUCTIONS, "to", "_to_copy"))
# What takes a result apart bit by bit or by a divisor: it may well be meant modulo its range, as in a hash.
MODULAR = ("bitwise_", "__and__", "__or__", "__xor__", "remainder", "fmod", "__rshift__")
MOST_ELEMENTS = 1 << 22  # of the inputs of an operator; a larger one is not computed again


def exact(target: Any, args: Any, kwargs: Any) -> Optional[torch.Tensor]:
    """The result in int64 of an operator of integers; None for any other call."""
    schema = getattr(target, "_schema", None)
    name = schema.name if schema is not None else ""
    if name not in OPERATORS and name[:-1] not in OPERATORS:
        return None
    given = only_tensors([args, kwargs])
    if not given or any(one.is_floating_point() or one.is_complex() for one in given):
        return None
    if sum(one.numel() for one in given) > MOST_ELEMENTS:
        return None

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(torch.int64, copy=True)  # an operator in place must not write its operand twice
        return torch.int64 if value in NARROW else value

    try:
        wide_args, wide_kwargs = _pytree.tree_map(wide, (tuple(args), kwargs))
        result = target(*wide_args, **wide_kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return result if isinstance(result, torch.Tensor) and result.dtype == torch.int64 else None


def overflowed(result: Any, wide: torch.Tensor) -> Optional[Overflow]:
    """The first element that does not fit."""
    if not isinstance(result, torch.Tensor) or result.dtype not in NARROW:
        return None
    bad = result.to(torch.int64) != wide
    if not bool(bad.any()):
        return None
    index = tuple(int(place) for place in bad.nonzero()[0])
    return {
        "dtype": dtype_name(result.dtype),
        "count": int(bad.sum()),
        "index": list(index),
        "value": int(result[index]),
        "exact": int(wide[index]),
    }


EXACT_TO = {torch.bfloat16: 256, torch.float16: 2048}  # beyond it not every whole number has its own value
SEVERAL = 3


def rounded(constant: Any) -> Optional[Rounded]:
    """For a constant of half precision with whole numbers alone, several of them beyond the bound.

    Such numbers are codes, counts or positions, and a cast of the whole model may have rounded them. A mask
    has one such value.
    """
    if not isinstance(constant, torch.Tensor) or not 1 < constant.numel() <= MOST_ELEMENTS:
        return None
    bound = EXACT_TO.get(constant.dtype)
    if bound is None:
        return None
    values = constant.detach().double().unique()
    beyond = values[values.abs() > bound]
    if len(beyond) < SEVERAL or not bool((values == values.round()).all() & values.isfinite().all()):
        return None
    return {"dtype": dtype_name(constant.dtype), "largest": int(values.abs().max()), "bound": bound}


class Exact(torch.fx.Interpreter):
    """Runs the program with the operators of `nodes` in int64, and what follows in what that gives."""

    def __init__(self, module: Any, nodes: set[str]) -> None:
        super().__init__(module)
        self.nodes = nodes
        self.wide = False

    def run_node(self, n: torch.fx.Node) -> Any:
        self.wide = n.name in self.nodes
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if "_assert_tensor_metadata" in str(target):  # of the dtype that was traced
            return None
        found = exact(target, args, kwargs) if self.wide else None
        return super().call_function(target, args, kwargs) if found is None else found
