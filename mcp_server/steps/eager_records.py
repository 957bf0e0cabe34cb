"""The records of `compare_with_eager`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.steps.failure import Failure

Status = Literal["matches", "departs", "partial", "unmatched"]
Agreement = Literal["equal", "rounding", "departs", "layout"]
Outcome = Literal["agrees", "departs", "inconclusive"]
Kind = Literal["error", "tf32", "nondeterministic", "uninitialised"]


class Difference(Record):
    """One tensor against eager. `error` is the largest against the float64 reference, `eager_error` eager's
    own, `allowed` the largest tolerance; `first` the first element beyond it, with eager's value and ours.
    """

    node: str = ""
    elements: int = 0
    beyond: int = 0
    error: float | None = None
    eager_error: float | None = None
    allowed: float | None = None
    first: list[int] = Field(default_factory=list)
    values: list[str] = Field(default_factory=list)


class OutputCompared(Difference):
    """One output. `layout`: other shapes or dtypes than eager's, in `layouts`. `non_finite` counts elements
    that are NaN or infinite in eager too.
    """

    index: int
    agreement: Agreement
    non_finite: int = 0
    layouts: list[str] = Field(default_factory=list)


class LaunchCompared(Difference):
    """One tensor that a launch wrote.

    `matches`: within the tolerance of `node`. `departs`: beyond that of every node that this launch
    completes. `partial`: part of a node that a later launch completes, or harmless as later launches show.
    `unmatched`: no node has its shape.
    """

    launch: int
    sequence: int
    kernel: str
    argument: str
    dtype: str = ""
    device: str = ""
    shape: list[int] = Field(default_factory=list)
    status: Status
    within_tf32: bool = False


class Departure(Record):
    """Where the package leaves eager, and why as far as that was seen.

    `suspects` are launches before `launch` that could not be matched, and on which it depends: the departure
    may begin in one of them. `launch` is None when every launch that could be matched does match.
    """

    kind: Kind
    launch: int | None = None
    kernel: str = ""
    argument: str = ""
    difference: Difference
    suspects: list[int] = Field(default_factory=list)
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class Changed(Record):
    """The first tensor that differs between two runs of the same call."""

    launch: int
    kernel: str
    argument: str


class OtherConstant(Record):
    """A constant of the package with other values than the program's; `launch` is the first to read it."""

    name: str
    launch: int
    elements: int
    different: int

    @property
    def told(self) -> str:
        return (
            f"constant {self.name} of the package is not the program's own: {self.different} of "
            f"{self.elements} elements differ"
        )


class ComparedWithEager(Record):
    """The outcome.

    `deterministic`: whether two runs gave the same outputs; `varies_from` where they part. `reads_unset`:
    whether outputs change when memory that nothing wrote is filled with NaN, or no longer differ from run to
    run; `unset_from` where that shows.
    `other_constants` have other values than the program's: then the package is not one of that program.
    `launches` holds those that depart first, then the others in order, at most as many as asked for.
    """

    outcome: Outcome
    summary: str
    first: Departure | None = None
    outputs: list[OutputCompared] = Field(default_factory=list)
    deterministic: bool | None = None
    varies_from: Changed | None = None
    reads_unset: bool | None = None
    unset_from: Changed | None = None
    counts: dict[Status, int] = Field(default_factory=dict)
    launches: list[LaunchCompared] = Field(default_factory=list)
    left_out: int = 0
    other_constants: list[OtherConstant] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    json_file: Artifact | None = None
    log: Artifact
    cost: Cost
