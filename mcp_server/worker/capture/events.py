"""Facts about tensors, stacks and exceptions in the worker's events and in the hook's journal.

The hook imports this file into every program, so it is kept small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, TypedDict, Union

Number = Union[int, float, str]  # JSON has no NaN and no infinities: they are text


@dataclass
class Frame:
    """One line of a stack."""

    file: str
    line: Optional[int]
    function: str = ""
    code: str = ""


class ErrorFacts(TypedDict):
    """The type and text of an exception."""

    type: str
    text: str


@dataclass
class OddElement:
    """The first element that is not finite or out of bounds, and how many such elements there are."""

    index: list[int]
    value: str
    count: int


@dataclass
class TensorFacts:
    """Facts about a tensor, as far as they are known, with its `path` in a tree.

    Stride and storage offset count elements. `layout` is set for a tensor without strides, whose shape is
    None if it is nested. `nan`, `inf` and `zero` are counts. Min, max and mean cover the finite values, and
    are left out for a dtype without order; `skipped` says why no values were read. A leaf that is not a
    tensor has its `value` as text, and its class as `kind`.
    """

    path: Optional[str] = None
    kind: Optional[str] = None
    value: Optional[Number] = None
    dtype: Optional[str] = None
    device: Optional[str] = None
    shape: Optional[list[int]] = None
    layout: Optional[str] = None
    stride: Optional[list[int]] = None
    storage_offset: Optional[int] = None
    contiguous: Optional[bool] = None
    alignment: Optional[int] = None
    bytes: Optional[int] = None
    nan: Optional[int] = None
    inf: Optional[int] = None
    zero: Optional[int] = None
    min: Union[int, float, None] = None
    max: Union[int, float, None] = None
    mean: Optional[float] = None
    checksum: Optional[str] = None
    skipped: Optional[str] = None

    @property
    def not_finite(self) -> bool:
        return bool(self.nan or self.inf)


@dataclass
class Overrun:
    """A tensor that an operator allocated, and how many bytes `before` and `after` it the operator wrote."""

    shape: list[int]
    dtype: str
    before: int
    after: int


@dataclass
class Attempt:
    """One change that was tried on a failed export or compile, and the result.

    `outcome`: passes, differs (from eager mode) or fails. `again` is the error that returned without the
    change; `sizes` counts the sizes of inputs at which the results matched eager mode. `more_lines` are
    changed too; `reached` is the line at which the export stopped next, with its code. `widened` holds
    (tensor, dimension) of each dimension whose bound (`name`: min or max) was moved; `note` then says what
    failed.
    """

    name: str
    action: str
    note: str = ""
    file: str = ""
    line: int = 0
    before: str = ""
    after: str = ""
    outcome: str = "fails"
    error: str = ""
    again: str = ""
    sizes: int = 0
    more_lines: list[int] = field(default_factory=list)
    reached: int = 0
    reached_code: str = ""
    widened: list[tuple[int, int]] = field(default_factory=list)
