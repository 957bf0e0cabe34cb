"""What `reduce` returns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.steps.reduce.failing import FailureShown


class ReducedNode(Record):
    """One operator of the reproduction, and the model's lines that it comes from."""

    name: str
    operator: str
    locations: list[ModelLocation] = Field(default_factory=list)


class Reduced(Record):
    """A reproduction, seen to fail in the same way under a plain interpreter; or why there is none.

    `replayed` is a launch that was healthy in the call, and is alone.

    `files` are the script and what must lie beside it. `real` names tensors that hold values of the workload,
    `seeded` those that the script makes. `complete` is False when the time was over before everything was
    tried. Exit status of the script: 0 no fault, 1 an exception, 3 an output is not finite, 4 it departs from
    eager (for one launch: what it wrote is not what was recorded), 5 it cannot be exported.
    """

    outcome: Literal["reduced", "replayed", "not_reduced"]
    scope: Literal["graph", "launch"] = "graph"
    summary: str
    failure: FailureShown | None
    command: str = ""
    exit_status: int | None = None
    files: list[Artifact] = Field(default_factory=list)
    nodes: list[ReducedNode] = Field(default_factory=list)
    nodes_before: int = 0
    real: list[str] = Field(default_factory=list)
    seeded: list[str] = Field(default_factory=list)
    candidates: int = 0
    complete: bool = True
    notes: list[str] = Field(default_factory=list)
    log: Artifact
    cost: Cost
