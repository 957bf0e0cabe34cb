"""From the worker's comparisons to the first launch that diverges from eager mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.package.launches import Launch
from mcp_server.package.provenance import read_provenance
from mcp_server.tools.context import Event
from mcp_server.tools.failure import Failure
from mcp_server.tools.first_bad import Model

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


class Divergence(Record):
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
    notes: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    json_file: Artifact | None = None
    log: Artifact
    cost: Cost


PRODUCTS = ("mm", "conv", "linear", "attention", "einsum")
_DIFFERENCE = tuple(Difference.model_fields)


@dataclass(frozen=True)
class Nodes:
    """Which nodes of the exported program each launch carries out, as the package's provenance tells."""

    model: Model

    @cached_property
    def of(self) -> dict[int, list[str]]:
        """By launch the nodes before Inductor's own passes; empty without INDUCTOR_PROVENANCE."""
        return {launch.index: names for launch in self._launches if (names := self._names(launch))}

    @cached_property
    def completed(self) -> dict[str, int]:
        """The launch at which a node's value is whole: the last one that carries it.

        Not in branches and loops, whose launches carry the node of the whole branch or loop.
        """
        straight = {launch.index for launch in self._launches if not launch.context}
        last = {name: launch for launch, names in sorted(self.of.items()) for name in names}
        return {name: launch for name, launch in last.items() if launch in straight}

    @property
    def _launches(self) -> Sequence[Launch]:
        return self.model.wrapper.launches

    def _names(self, launch: Launch) -> list[str]:
        return list(read_provenance(launch, self.model.package.kernel_information).pre_grad)


def read_launches(events: Iterable[Event], nodes: Nodes) -> list[LaunchCompared]:
    """The worker's `beside` events in the order of the call, each with its status."""
    known = list(events)
    found = {(event["sequence"], near[0]["node"]) for event in known if _matches(near := event["closest"])}
    return [_launch(event, nodes, found) for event in known]


def _launch(event: Event, nodes: Nodes, found: Collection[tuple[int, str]]) -> LaunchCompared:
    """`found`: the nodes whose value a launch wrote, by its place in the call."""
    closest = event["closest"]
    missed = [one["node"] for one in closest if (event["sequence"], one["node"]) not in found]
    status = _status(int(event["launch"]), closest, missed, nodes)
    return LaunchCompared(
        launch=event["launch"],
        sequence=event["sequence"],
        kernel=event["kernel"],
        argument=event["name"],
        dtype=event["dtype"],
        device=event["device"],
        shape=event["shape"],
        status=status,
        within_tf32=bool(closest) and any(one["within_tf32"] for one in closest),
        **(difference(closest[0]) if closest else {}),
    )


def _status(launch: int, closest: Sequence[Mapping[str, Any]], missed: Iterable[str], nodes: Nodes) -> Status:
    """`missed` are the nodes of that shape whose value this launch did not write elsewhere."""
    if not closest:
        return "unmatched"
    if _matches(closest):
        return "matches"
    if not nodes.of:  # every node of that shape was tried: none may be meant
        return "unmatched"
    whole = any(nodes.completed.get(node) == launch for node in missed)
    return "departs" if whole else "partial"


def _matches(closest: Sequence[Mapping[str, Any]]) -> bool:
    return bool(closest) and bool(closest[0]["within"])


def difference(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Difference` that the worker measured."""
    known = {name: facts[name] for name in _DIFFERENCE if facts.get(name) is not None}
    return {
        name: _number(value) if name in ("error", "eager_error", "allowed") else value
        for name, value in known.items()
    }


def _number(value: float | str) -> float:
    """The report writes inf and nan as text."""
    return float(value)


def read_outputs(events: Iterable[Event]) -> list[OutputCompared]:
    """The worker's `output` events."""
    return [_output(event) for event in events]


def _output(event: Event) -> OutputCompared:
    if "within" not in event or event["dtypes"][0] != event["dtypes"][1]:
        layouts = [f"{dtype} {shape}" for dtype, shape in zip(event["dtypes"], event["shapes"], strict=True)]
        return OutputCompared(index=event["index"], agreement="layout", layouts=layouts, **difference(event))
    agreement: Agreement = "equal" if event["equal"] else "rounding" if event["within"] else "departs"
    lost = int(event.get("non_finite", 0))
    return OutputCompared(index=event["index"], agreement=agreement, non_finite=lost, **difference(event))


def first_change(one: Sequence[Event], other: Sequence[Event]) -> Changed | None:
    """The first tensor whose checksum differs between two runs."""
    known = {(event["sequence"], event["name"]): event["checksum"] for event in one}
    for event in other:
        if known.get((event["sequence"], event["name"]), event["checksum"]) != event["checksum"]:
            return Changed(launch=event["launch"], kernel=event["kernel"], argument=event["name"])
    return None


class DivergenceAnalysis:
    """Finds the departure among the launches of one call, by the package's dataflow."""

    def __init__(self, launches: Sequence[LaunchCompared], model: Model, nodes: Nodes) -> None:
        self.launches = launches
        self.model = model
        self.nodes = nodes
        self.matching = {row.launch for row in launches if row.status == "matches"}

    def first(self) -> LaunchCompared | None:
        """The first tensor that departs and that no matching launch was computed from.

        Of several in one launch the nearest: the others may be statistics that no node has.
        """
        rows = [row for row in self.launches if row.status == "departs" and not self._excused(row)]
        same = [row for row in rows if row.sequence == rows[0].sequence]
        return min(same, key=_excess, default=None)

    def _excused(self, row: LaunchCompared) -> bool:
        """A later launch that matches was computed from it: it holds what it should, only no node's value."""
        reached = self.model.flow.forward([row.argument], row.launch).launches
        return any(launch > row.launch and launch in self.matching for launch in reached)

    def settled(self, diverged: bool) -> list[LaunchCompared]:
        """The launches; `departs` is left where an output is wrong and no matching launch speaks against."""
        return [self._settled(row, diverged) for row in self.launches]

    def _settled(self, row: LaunchCompared, diverged: bool) -> LaunchCompared:
        if row.status != "departs" or (diverged and not self._excused(row)):
            return row
        return row.model_copy(update={"status": "partial"})

    def suspects(self, row: LaunchCompared) -> list[int]:
        """Launches behind `row` of which nothing is known to be right."""
        behind = [n for n in self.model.flow.backward_from(row.launch).launches if n < row.launch]
        proven = {n for n in behind if n in self.matching}
        excused = {r.launch for r in self.launches if r.launch in behind and self._excused(r)}
        return [n for n in behind if n not in proven | excused]

    def divergence(self, row: LaunchCompared, kind: Kind) -> Divergence:
        suspects = self.suspects(row)
        return Divergence(
            kind=kind,
            launch=row.launch,
            kernel=row.kernel,
            argument=row.argument,
            difference=Difference(**row.model_dump(include=set(_DIFFERENCE))),
            suspects=suspects,
            locations=self.model.locations(row.launch),
            summary=_summary(row, suspects, kind),
        )

    def multiplies(self, row: LaunchCompared | None) -> bool:
        """Whether matrix products are behind a launch, or anywhere when no launch is given."""
        wrapper = self.model.wrapper
        behind = self.model.flow.backward_from(row.launch).launches if row else range(len(wrapper.launches))
        names = [name for n in behind for name in (wrapper.launches[n].kernel, *self.nodes.of.get(n, ()))]
        return any(word in name for name in names for word in PRODUCTS)


def _excess(row: LaunchCompared) -> float:
    return (row.error or 0.0) / (row.allowed or 1e-300)


def _summary(row: LaunchCompared, suspects: Sequence[int], kind: Kind) -> str:
    where = f"launch {row.launch}, {row.kernel}, is the first to depart from eager: {row.argument}"
    values = f", {row.values[1]} for {row.values[0]} at {row.first}" if row.values else ""
    before = f"; it may begin in launch {', '.join(map(str, suspects))}, not matched" if suspects else ""
    return f"{where} against {row.node}{values} ({row.beyond} of {row.elements} elements){_why(kind)}{before}"


def _why(kind: Kind) -> str:
    return {
        "error": "",
        "tf32": "; as much as TF32 products explain",
        "nondeterministic": "; runs of this call differ from each other",
        "uninitialised": "; it depends on memory that nothing wrote",
    }[kind]
