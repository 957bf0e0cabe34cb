"""Finds the first launch that diverges from eager mode in the worker's comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.package.provenance import read_provenance
from mcp_server.package.view import PackageView
from mcp_server.runtime.failure import Failure
from mcp_server.worker import events

Status = Literal["matches", "differs", "partial", "unmatched"]
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
    def alone(self) -> Difference:
        """Only the fields of `Difference`."""
        return Difference(**{name: getattr(self, name) for name in Difference.model_fields})

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


class LaunchCompared(Difference):
    """One tensor that a launch wrote.

    `matches`: within the tolerance of `node`. `differs`: beyond that of every node that this launch
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


class Divergence(Record):
    """Where the package diverges from eager, and why as far as that was seen.

    `suspects` are launches before `launch` that could not be matched, and on which it depends: the divergence
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

    `deterministic`: whether two runs gave the same outputs; `varies_from` where they first differ.
    `reads_unset`: whether outputs change when memory that nothing wrote is filled with NaN, or no longer
    differ from run to run; `unset_from` where that shows.
    `every_launch` judges each launch on right inputs, and `precision` says which launches need a wider one,
    where that was asked for.
    `other_constants` have other values than the program's: then the package is not one of that program.
    `launches` holds those that differ first, then the others in order, at most as many as asked for.
    """

    outcome: Outcome
    summary: str
    first: Divergence | None = None
    outputs: list[OutputCompared] = Field(default_factory=list)
    deterministic: bool | None = None
    varies_from: Changed | None = None
    reads_unset: bool | None = None
    unset_from: Changed | None = None
    counts: dict[Status, int] = Field(default_factory=dict)
    launches: list[LaunchCompared] = Field(default_factory=list)
    left_out: int = 0
    other_constants: list[OtherConstant] = Field(default_factory=list)
    every_launch: EveryLaunch | None = None
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    json_file: Artifact | None = None
    log: Artifact
    cost: Cost


PRODUCTS = ("mm", "conv", "linear", "attention", "einsum")
_WHY: dict[Kind, str] = {
    "error": "",
    "tf32": "; as much as TF32 products explain",
    "nondeterministic": "; runs of this call differ from each other",
    "uninitialised": "; it depends on memory that nothing wrote",
}


@dataclass(frozen=True)
class Nodes:
    """The nodes of the exported program that each launch carries out, by the package's provenance."""

    model: PackageView

    @cached_property
    def of(self) -> dict[int, list[str]]:
        """By launch the nodes before Inductor's own passes; empty without INDUCTOR_PROVENANCE."""
        information = self.model.package.kernel_information
        found = {
            launch.index: list(read_provenance(launch, information).pre_grad)
            for launch in self.model.wrapper.launches
        }
        return {launch: names for launch, names in found.items() if names}

    @cached_property
    def completed(self) -> dict[str, int]:
        """The launch at which a node's value is whole: the last one that carries it.

        Not in branches and loops, whose launches carry the node of the whole branch or loop.
        """
        straight = {launch.index for launch in self.model.wrapper.launches if not launch.context}
        last = {name: launch for launch, names in sorted(self.of.items()) for name in names}
        return {name: launch for name, launch in last.items() if launch in straight}


def read_launches(known: Sequence[events.LaunchCompared], nodes: Nodes) -> list[LaunchCompared]:
    """The worker's comparisons in the order of the call, each with its status.

    The nearest node comes first in `closest`; `within` says that it is within the tolerance.
    """
    # The nodes whose value a launch wrote, by its place in the call.
    nearest = [(event.sequence, event.closest[0]) for event in known if event.closest]
    found = {(sequence, one.node) for sequence, one in nearest if one.within}
    rows = []
    for event in known:
        closest = event.closest
        status: Status = "unmatched"
        if closest and closest[0].within:
            status = "matches"
        elif closest and nodes.of:  # without provenance every node of that shape was tried: none may be meant
            missed = [one.node for one in closest if (event.sequence, one.node) not in found]
            whole = any(nodes.completed.get(node) == event.launch for node in missed)
            status = "differs" if whole else "partial"
        rows.append(
            LaunchCompared(
                launch=event.launch,
                sequence=event.sequence,
                kernel=event.kernel,
                argument=event.name,
                dtype=event.dtype,
                device=event.device,
                shape=event.shape,
                status=status,
                within_tf32=any(one.within_tf32 for one in closest),
                **dict(read_difference(closest[0] if closest else None)),
            )
        )
    return rows


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


class DivergenceAnalysis:
    """Finds where the package diverges among the launches of one call, by its dataflow."""

    def __init__(self, launches: Sequence[LaunchCompared], nodes: Nodes) -> None:
        self.launches = launches
        self.nodes = nodes
        self.model = nodes.model
        self.matching = {row.launch for row in launches if row.status == "matches"}

    def first(self) -> LaunchCompared | None:
        """The first tensor that differs and that no matching launch was computed from.

        Of several in one launch the nearest: the others may be statistics that no node has.
        """
        rows = [row for row in self.launches if row.status == "differs" and not self._excused(row)]
        same = [row for row in rows if row.sequence == rows[0].sequence]
        return min(same, key=lambda row: (row.error or 0.0) / (row.allowed or 1e-300), default=None)

    def _excused(self, row: LaunchCompared) -> bool:
        """A later launch that matches was computed from it: it is right, though it is no node's value."""
        reached = self.model.flow.forward([row.argument], row.launch).launches
        return any(launch > row.launch and launch in self.matching for launch in reached)

    def settled(self, diverged: bool) -> list[LaunchCompared]:
        """The launches; `differs` stays where an output is wrong and no matching launch speaks against it."""
        return [
            row.model_copy(update={"status": "partial"})
            if row.status == "differs" and (not diverged or self._excused(row))
            else row
            for row in self.launches
        ]

    def divergence(self, row: LaunchCompared, kind: Kind) -> Divergence:
        """The divergence that begins at `row`, with the launches before it that were not seen to be right."""
        behind = [n for n in self.model.flow.backward_from(row.launch).launches if n < row.launch]
        excused = {r.launch for r in self.launches if r.launch in behind and self._excused(r)}
        suspects = [n for n in behind if n not in self.matching and n not in excused]
        where = f"launch {row.launch}, {row.kernel}, is the first to differ from eager: {row.argument}"
        values = f", {row.example}" if row.values else ""
        beyond = f"{row.beyond} of {row.elements} elements"
        before = f"; it may begin in launch {', '.join(map(str, suspects))}, not matched" if suspects else ""
        return Divergence(
            kind=kind,
            launch=row.launch,
            kernel=row.kernel,
            argument=row.argument,
            difference=row.alone,
            suspects=suspects,
            locations=self.model.locations(row.launch),
            summary=f"{where} against {row.node}{values} ({beyond}){_WHY[kind]}{before}",
        )

    def multiplies(self, row: LaunchCompared) -> bool:
        """Whether matrix products are behind a launch."""
        launches = self.model.wrapper.launches
        behind = self.model.flow.backward_from(row.launch).launches
        names = [name for n in behind for name in (launches[n].kernel, *self.nodes.of.get(n, ()))]
        return any(word in name for name in names for word in PRODUCTS)
