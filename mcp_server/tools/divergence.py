"""The result of comparing a package with its exported program in eager mode."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.runtime.failure import Failure
from mcp_server.worker.events import Closeness, ConstantDiffers, OutputCompared

Outcome = Literal["agrees", "differs", "inconclusive"]
Kind = Literal["error", "tf32", "nondeterministic", "uninitialised"]


class WrongLaunch(Record):
    """A launch that stored wrong values from correct inputs: `difference` is about `argument`.

    `suspects` are earlier unjudged launches whose values it reads, and which may be at fault instead.
    `constant` is one that it reads and that differs from the program's. `tf32`: TF32 explains the difference.
    """

    launch: int
    kernel: str
    argument: str
    difference: Closeness
    suspects: list[int] = Field(default_factory=list)
    constant: str = ""
    tf32: bool = False
    locations: list[ModelLocation] = Field(default_factory=list)
    summary: str


class LeftLaunch(Record):
    """A launch that could not be read or judged, and the reason."""

    launch: int
    kernel: str
    why: str


class EveryLaunch(Record):
    """Each launch judged by itself: after every launch the program's values of what it wrote were copied in.

    `outputs_right`: whether the outputs are correct with the wrong launches corrected. `plan` names what is
    needed to make the call with launches done in eager mode, and `eager_outputs` what eager mode returns.
    """

    summary: str
    judged: int = 0
    wrong: list[WrongLaunch] = Field(default_factory=list)
    unjudged: list[LeftLaunch] = Field(default_factory=list)
    unjudged_count: int = 0
    outputs_right: bool | None = None
    plan: Artifact | None = None
    eager_outputs: Artifact | None = None


class Changed(Record):
    """The first tensor that differs between two runs of the same call."""

    launch: int
    kernel: str
    argument: str


class ComparedWithEager(Record):
    """The result of the comparison.

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
    other_constants: list[ConstantDiffers] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    log: Artifact
    cost: Cost
