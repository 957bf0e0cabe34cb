"""What a comparison of a package with its exported program in eager mode says."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.runtime.failure import Failure
from mcp_server.worker import events

Agreement = Literal["equal", "rounding", "differs", "layout"]
Outcome = Literal["agrees", "differs", "inconclusive"]
Kind = Literal["error", "tf32", "nondeterministic", "uninitialised"]


class Difference(Record):
    """One tensor compared with eager.

    `error` is the largest difference from the float64 reference, `eager_error` eager's own, `allowed` the
    largest tolerance; `first` is the first element beyond it, with eager's value and the package's.
    """

    node: str = ""
    elements: int = 0
    beyond: int = 0
    error: float | None = None
    eager_error: float | None = None
    allowed: float | None = None
    first: list[int] = Field(default_factory=list)
    values: list[str] = Field(default_factory=list)

    @property
    def example(self) -> str:
        """The package's value, eager's, and where; only with `values`."""
        return f"{self.values[1]} for {self.values[0]} at {self.first}"


class OutputCompared(Difference):
    """One output. `layout`: other shapes or dtypes than eager's, in `layouts`. `non_finite` counts elements
    that are NaN or infinite in eager too.
    """

    index: int
    agreement: Agreement
    non_finite: int = 0
    layouts: list[str] = Field(default_factory=list)


class WrongLaunch(Record):
    """A launch that stored wrong values though it read right ones: `difference` is of `argument`.

    `suspects` are launches before it that were not judged, and whose values it reads: then it may be one of
    them. `constant` is one that it reads and that is not the program's. `tf32`: no more than TF32 explains.
    """

    launch: int
    kernel: str
    argument: str
    difference: Difference
    suspects: list[int] = Field(default_factory=list)
    constant: str = ""
    tf32: bool = False
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class UnjudgedLaunch(Record):
    """A launch of which the program has no value to compare with."""

    launch: int
    kernel: str
    why: str


class EveryLaunch(Record):
    """Each launch judged by itself: after every launch the program's values of what it wrote were copied in.

    `outputs_right`: whether the outputs are right with the wrong launches corrected. `plan` names what is
    needed to make the call with launches done in eager mode, and `eager_outputs` what eager mode returns.
    """

    summary: str
    judged: int = 0
    wrong: list[WrongLaunch] = Field(default_factory=list)
    unjudged: list[UnjudgedLaunch] = Field(default_factory=list)
    unjudged_count: int = 0
    outputs_right: bool | None = None
    plan: Artifact | None = None
    eager_outputs: Artifact | None = None


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
    def sentence(self) -> str:
        return (
            f"constant {self.name} of the package is not the program's own: {self.different} of "
            f"{self.elements} elements differ"
        )


class ComparedWithEager(Record):
    """The outcome.

    `kind`: why outputs differ from eager's, as far as that was seen; None where they agree or were not
    compared. `every_launch` judges each launch on right inputs.
    `deterministic`: whether two runs gave the same outputs; `varies_from` where they first differ.
    `reads_unset`: whether outputs change when memory that nothing wrote is filled with NaN, or no longer
    differ from run to run; `unset_from` where that shows.
    `other_constants` have other values than the program's: then the package is not one of that program.
    """

    outcome: Outcome
    summary: str
    kind: Kind | None = None
    outputs: list[OutputCompared] = Field(default_factory=list)
    every_launch: EveryLaunch
    deterministic: bool | None = None
    varies_from: Changed | None = None
    reads_unset: bool | None = None
    unset_from: Changed | None = None
    other_constants: list[OtherConstant] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    log: Artifact
    cost: Cost


def read_output(event: events.Output) -> OutputCompared:
    found, known = event.compared, dict(read_difference(event.compared))
    if found is None or event.dtypes[0] != event.dtypes[1]:
        layouts = [f"{dtype} {shape}" for dtype, shape in zip(event.dtypes, event.shapes, strict=True)]
        return OutputCompared(index=event.index, agreement="layout", layouts=layouts, **known)
    agreement: Agreement = "equal" if found.equal else "rounding" if found.within else "differs"
    return OutputCompared(index=event.index, agreement=agreement, non_finite=found.non_finite, **known)


def read_difference(found: events.Closeness | None) -> Difference:
    """What the worker measured; it writes inf and nan as text."""
    return Difference() if found is None else Difference.model_validate(found)
