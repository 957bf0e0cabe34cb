"""What the comparison with eager comes to: departure, its kind, or agreement."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.steps.context import WorkerRun
from mcp_server.steps.eager_departure import Judge, first_change
from mcp_server.steps.eager_records import (
    Changed,
    Departure,
    Difference,
    Kind,
    LaunchCompared,
    Outcome,
    OutputCompared,
)


class Repeats:
    """The runs of one call: `first` and `second` as they are, `filled` with unset memory set to NaN.

    `filled_again` is there when the first two differ.
    """

    def __init__(self, done: WorkerRun) -> None:
        self.steady_eager = bool((done.last("eager_again") or {"same": True})["same"])
        self.outputs = {event["run"]: event["checksums"] for event in done.all("outputs")}
        self.written = {
            kind: [event for event in done.all("rerun") if event["run"] == kind]
            for kind in ("first", "second", "filled")
        }
        self.anything_filled = bool(done.all("filled"))

    def same(self, one: str, other: str) -> bool | None:
        """Whether two runs gave the same outputs; None when one did not come back."""
        if one not in self.outputs or other not in self.outputs:
            return None
        return bool(self.outputs[one] == self.outputs[other])

    def change(self, one: str, other: str) -> Changed | None:
        """The first tensor that differs between two runs whose outputs differ."""
        return (
            first_change(self.written[one], self.written[other]) if self.same(one, other) is False else None
        )

    @property
    def reads_unset(self) -> bool | None:
        """Whether filling unset memory changes steady outputs, or steadies outputs that differ.

        None without probes, and where outputs differ for another reason too.
        """
        steady = self.same("first", "second")
        if steady is None or not self.written["filled"]:
            return None
        if not steady:
            return (self.anything_filled and self.same("filled", "filled_again")) or None
        same = self.same("first", "filled")
        return None if same is None else not same

    @property
    def unset_from(self) -> Changed | None:
        """The first tensor that shows what unset memory held."""
        if not self.reads_unset:
            return None
        return self.change("first", "second") or self.change("first", "filled")


def find_departure(judge: Judge, outputs: Sequence[OutputCompared], repeats: Repeats) -> Departure | None:
    """Launches are looked at when an output departs: else a difference has no effect."""
    wrong = next((one for one in outputs if one.agreement in ("departs", "layout")), None)
    if wrong is None or not repeats.steady_eager:
        return None
    row = judge.first()
    kind = _kind(judge, row, repeats)
    if row is not None:
        return judge.departure(row, kind)
    known = Difference(**wrong.model_dump(include=set(Difference.model_fields)))
    values = f": {wrong.values[1]} for {wrong.values[0]} at {wrong.first}" if wrong.values else ""
    summary = f"output {wrong.index} departs from eager{values}; no launch could be told to be the first"
    return Departure(kind=kind, difference=known, summary=summary)


def _kind(judge: Judge, row: LaunchCompared | None, repeats: Repeats) -> Kind:
    if repeats.reads_unset:
        return "uninitialised"
    if repeats.same("first", "second") is False:
        return "nondeterministic"
    coarse = row is not None and row.within_tf32 and row.device == "cuda" and row.dtype == "float32"
    return "tf32" if coarse and judge.multiplies(row) else "error"


def conclude(
    done: WorkerRun, outputs: Sequence[OutputCompared], first: Departure | None, repeats: Repeats
) -> tuple[Outcome, str]:
    """The outcome, and one sentence for it."""
    if first is not None:
        return "departs", first.summary + _other_constants(done) + _not_updated(done)
    counted = done.last("counted_outputs")
    if counted is None:
        return "inconclusive", _unfinished(done)
    if not repeats.steady_eager:
        return "inconclusive", "eager itself differs from run to run on these inputs"
    if counted["package"] != counted["eager"]:
        return "departs", f"the package gives {counted['package']} outputs and eager {counted['eager']}"
    if repeats.reads_unset:
        return "agrees", "all outputs agree with eager here, but depend on memory that nothing wrote"
    if repeats.same("first", "second") is False:
        return "agrees", "all outputs agree with eager here, but runs of this call differ"
    equal = sum(one.agreement == "equal" for one in outputs)
    rest = f", {len(outputs) - equal} but for rounding" if equal < len(outputs) else ""
    agree = f"all {len(outputs)} outputs agree with eager: {equal} bit for bit{rest}"
    return "agrees", agree + _not_finite(outputs) + _other_constants(done)


def _not_finite(outputs: Sequence[OutputCompared]) -> str:
    """NaN that eager has too is of the model or of the inputs."""
    lost = [
        f"{one.non_finite} of {one.elements} elements of output {one.index}"
        for one in outputs
        if one.non_finite
    ]
    return f"; NaN or infinity in both: {', '.join(lost[:3])}" if lost else ""


def _other_constants(done: WorkerRun) -> str:
    names = [str(event["name"]) for event in done.all("constant_differs")]
    return f"; the package holds other values than the program in {', '.join(names[:3])}" if names else ""


def _not_updated(done: WorkerRun) -> str:
    """Captured updates that only the package got, which looks at neither shape nor dtype."""
    kept = done.all("not_applied")
    return f"; only the package got the update of {kept[0]['name']}: {kept[0]['what']}" if kept else ""


def _unfinished(done: WorkerRun) -> str:
    """Which of the two sides did not come to its end."""
    failed = done.last("failed") or {}
    if failed.get("during") == "loading_exported":
        return (
            f"the exported program cannot be loaded: {str(failed['text'])[:200]} (custom ops: extra_imports)"
        )
    ended = done.finished.signal
    text = f": {str(failed.get('text', ''))[:200]}" if failed else f": {ended}" if ended else ""
    if done.last("outputs") is None and done.last("loading") is None:
        return f"eager itself fails on these inputs{text}"
    return f"the package fails on these inputs{text}{_not_updated(done)}"
