"""A difference between an input and what a package was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.model import Category, Fix, Record
from mcp_server.package.digits import whole_number

Severity = Literal["fatal", "suspicious"]
Aspect = Literal[
    "count",
    "structure",
    "order",
    "device",
    "device_index",
    "dtype",
    "rank",
    "size",
    "range",
    "relation",
    "stride",
]


@dataclass(frozen=True)
class GivenTensor:
    """An input tensor as the caller passes it.

    `shape` and `stride` in elements; a `stride` of None means contiguous. `device` as torch prints it
    (`cuda:0`), `path` as the caller reaches it (`args[0]['user']`), where known.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    device: str = "cpu"
    path: str | None = None

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    @property
    def device_index(self) -> int | None:
        return whole_number(self.device.partition(":")[2])

    @property
    def strides(self) -> tuple[int, ...]:
        return contiguous_strides(self.shape) if self.stride is None else self.stride

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


class Mismatch(Record):
    """`fatal`: outside what the code was compiled for, so that it may read wrong or foreign memory.
    `suspicious`: may be a false alarm of the compiled range or of the run-time check; `sentence` says why.
    """

    category: Category
    aspect: Aspect
    severity: Severity
    sentence: str
    expected: str
    got: str
    fix: Fix
    input_index: int | None = None
    dim: int | None = None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as `torch.empty` gives them (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)
