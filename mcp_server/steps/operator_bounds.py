"""Index arguments of ATen's own operators, held against the tensor that they index in this very call.

Generated kernels carry their bounds in asserts (`index_bounds`); an extern launch has them in its schema
alone (aten/src/ATen/native/native_functions.yaml, torch 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcp_server.package.launches import Argument, Launch
from mcp_server.package.shims import operator_name
from mcp_server.steps.kernel_io import ArgumentValues

INTEGERS = frozenset({"int64", "int32"})
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Indexing:
    """`index` holds places of `indexed`: of its argument `dim`, or of a fixed dimension.

    With `each`, `index` is a list, and its n-th tensor indexes dimension n. `wraps`: negative ones count from
    the end.
    """

    index: str
    indexed: str
    dim: str | int = "dim"
    wraps: bool = False
    each: bool = False


_ALONG = Indexing("index", "self")
_LOOKUP = Indexing("indices", "weight", 0)
_EACH = Indexing("indices", "self", wraps=True, each=True)
# The operators whose shims' parameters are known by name (`package/shims.py`), without `_out`.
OPERATORS: dict[str, Indexing] = {
    "scatter_src": _ALONG,
    "scatter_value": _ALONG,
    "scatter_reduce_two": _ALONG,
    "_embedding_bag": _LOOKUP,
    "index_put": _EACH,
    "index_Tensor": _EACH,
}


@dataclass(frozen=True)
class Place:
    """The variable `name` holds indices in [low, high) of a dimension of this call."""

    name: str
    low: int
    high: int

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}"


def operator_bounds(launch: Launch, seen: Sequence[ArgumentValues]) -> dict[str, Place]:
    """Bounds of the index arguments of an extern launch, by variable; `seen` has the shapes of the call."""
    if launch.kind not in ("extern", "fallback_shim"):
        return {}
    rule = OPERATORS.get(operator_name(launch.kernel).removesuffix("_out"))
    if rule is None:
        return {}
    shapes = {a.name: a.shape for a in seen if a.when == "before" and a.shape is not None}
    whole = {a.name for a in seen if a.when == "before" and a.dtype in INTEGERS}
    return {place.name: place for place in _places(launch, rule, shapes) if place.name in whole}


def _places(launch: Launch, rule: Indexing, shapes: Mapping[str, list[int]]) -> Iterator[Place]:
    indexed = next((a for a in launch.arguments if a.name == rule.indexed and a.target), None)
    shape = _shape(indexed, shapes)
    for argument in launch.arguments:
        if argument.name != rule.index or argument.target is None or shape is None:
            continue
        dim = argument.element if rule.each else _dimension(rule, launch)
        if dim is not None and -len(shape) <= dim < len(shape):
            size = shape[dim]
            yield Place(argument.target, -size if rule.wraps else 0, size)


def _shape(argument: Argument | None, shapes: Mapping[str, list[int]]) -> list[int] | None:
    """A tensor's shape in this call; None for a view made in the call, whose shape nobody told."""
    if argument is None or argument.view is not None:
        return None
    return shapes.get(argument.target or "")


def _dimension(rule: Indexing, launch: Launch) -> int | None:
    if isinstance(rule.dim, int):
        return rule.dim
    given = next((a.expression for a in launch.arguments if a.name == rule.dim), "")
    number = given.strip().rstrip("L")
    return int(number) if _NUMBER.fullmatch(number) else None
