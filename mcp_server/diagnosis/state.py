"""Everything observed so far about one failing (or healthy) workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_server.diagnosis.call_seen import CallSeen
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Trial
from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.program_seen import OWN_RUNS
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.jobs.gpus import Clock
from mcp_server.model import Artifact, Verdict
from mcp_server.package.prover import Finding
from mcp_server.runtime.context import E, WorkerRun
from mcp_server.tools.compare_with_eager import ComparedWithEager
from mcp_server.tools.decompile import Comparison
from mcp_server.tools.every_launch import WrongLaunch
from mcp_server.tools.kernel_io import FirstBad, KernelIO
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.tools.machine import Problem
from mcp_server.tools.trace_launches import Trace
from mcp_server.worker import events

if TYPE_CHECKING:  # `bisect` has heavy imports that are rarely needed
    from mcp_server.tools.switches import Bisected
    from mcp_server.worker.protocol import InputSlice


def explained_by_rounding(run: WorkerRun | None) -> events.Rounding | None:
    """The comparison of a run with the program in float64, if rounding explains the differences."""
    found = run.last(events.Rounding) if run is not None else None
    return found if found and all(each.within for each in found.outputs) else None


def equal_to_program(run: WorkerRun | None) -> bool | None:
    """Whether package and exported program gave equal outputs in a run. None if it did not compare them."""
    compared = run.last(events.Compared) if run is not None else None
    return compared.equal or explained_by_rounding(run) is not None if compared is not None else None


HANGING_S = 45.0  # a call that takes longer may hang


@dataclass(frozen=True)
class UsersKernel:
    """A kernel in the user's file; `line` counts from 1, `code` is its text."""

    name: str
    file: Path
    line: int
    code: str


@dataclass
class DiagnosisState(CallSeen):
    """The growing record. Causes read it; only observations write to it.

    A field that is None or empty was not observed.
    """

    budget_s: float = 300.0
    clock: Clock = field(default_factory=Clock)
    unfit: ProblemError | None = None  # why expectation or check do not fit; ends the diagnosis
    kernel_io: KernelIO | None = None
    harmless: FirstBad | None = None  # first bad value, if the call fails in the same way without it
    with_eager: ComparedWithEager | None = None
    by_source: Comparison | None = None  # package read as PyTorch, compared launch by launch
    bisected: tuple[Suspect, Bisected] | None = None  # the suspected compiler fault, and the result
    interpreted: WorkerRun | None = None
    operators: WorkerRun | None = None
    repeated: WorkerRun | None = None
    repeated_watched: WorkerRun | None = None
    trace: Trace | None = None
    located: LocatedFault | None = None
    users_kernel: UsersKernel | None = None
    problems: tuple[Problem, ...] = ()
    kernel_defects: dict[Finding, Intervention | None] | None = None  # each with the change that removes it
    users_changes: dict[tuple[str, str], Intervention] = field(default_factory=dict)  # by kernel and mistake
    index_values: dict[InputSlice, events.IndexValues] = field(default_factory=dict)
    origin: Origin | None = None
    origin_changes: list[Intervention] = field(default_factory=list)  # each removes the bad value
    origin_fix: Intervention | None = None  # the expression at the origin, corrected
    trials: dict[str, Trial] = field(default_factory=dict)  # by the key of the intervention
    following: Verdict | None = None  # verdict on the second failure that remains without the first cause
    suspects: list[Suspect] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)  # steps ended or skipped for lack of budget
    stopped: bool = False  # whether the user stopped it
    decisions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    put_back: list[str] = field(default_factory=list)  # what happened to files that the program overwrote
    refused: list[ProblemError] = field(default_factory=list)  # observations that could not do their job
    artifacts: list[Artifact] = field(default_factory=list)

    @property
    def source_change(self) -> Intervention | None:
        """The change of the program's source that made its export or compile pass, if one did."""
        found = (trial.intervention for trial in self.trials.values())
        return next((each for each in found if each.kind is Kind.SOURCE), None)

    @property
    def wrong_launches(self) -> list[WrongLaunch]:
        """Launches whose results differ from the exported program's, on correct inputs."""
        return self.with_eager.every_launch.wrong if self.with_eager is not None else []

    def eager_events(self, kind: type[E]) -> list[E]:
        return self.interpreted.all(kind) if self.interpreted is not None else []

    @property
    def undefined(self) -> events.NodeOverflow | None:
        """A conversion of floats that do not fit: eager mode and package may each give something else."""
        overflows = self.eager_events(events.NodeOverflow) if self.equals_eager is False else []
        return next((each for each in overflows if each.undefined), None)

    @property
    def compared_with_program(self) -> events.Compared | None:
        """The comparison of the call with the exported program. None if it was not made."""
        return self.interpreted.last(events.Compared) if self.interpreted is not None else None

    def differs_in(self, run: str) -> bool | None:
        """Whether a repeated call gave other outputs: the `second` one, or one with new memory `filled`.

        None if it was not repeated.
        """
        repeats = self.repeated.all(events.Repeated) if self.repeated is not None else []
        return next((not event.equal for event in repeats if event.run == run), None)

    @property
    def reads_unset(self) -> bool:
        """Whether outputs that are otherwise the same in each call change with the content of new memory."""
        return self.differs_in("second") is False and bool(self.differs_in("filled"))

    @property
    def seconds_left(self) -> float:
        return self.budget_s - self.clock.worked_s

    @property
    def failed(self) -> bool:
        """Whether the workload failed, or the call to blame fails when it is repeated."""
        if self.package_error is not None or (self.log is not None and self.log.root is not None):
            return True
        if not self.ended_well:
            return any(run.failure != "none" for label, run in self.runs.items() if label in OWN_RUNS)
        call = self.suspect_call
        if call is None or call.outcome != "ok" or not self.call_fails:
            return False
        return not (self.failure_of("plain") == "nonfinite" and self.nan_accepted)

    @property
    def rounding(self) -> events.Rounding | None:
        """The result of `explained_by_rounding` for the interpreted program."""
        return explained_by_rounding(self.interpreted)

    @property
    def equals_eager(self) -> bool | None:
        """Whether call and exported program give the same values, NaN included, apart from rounding."""
        return equal_to_program(self.interpreted)

    @property
    def program_varies(self) -> bool:
        """Whether the outputs differ from the exported program's, which also differ between two runs."""
        ran = self.interpreted.last(events.EagerRan) if self.interpreted is not None else None
        return ran is not None and not ran.same and not self.equals_eager

    @property
    def nan_asked(self) -> bool:
        """Whether the user reports NaN, and has not said that these outputs are as expected."""
        return self.symptom.seen == "nan" and not (self.plain_run is not None and self.plain_run.as_expected)

    @property
    def nan_written(self) -> str:
        """Where the model itself writes the bad value, in words. Empty if it is computed, or if unknown."""
        return self.origin.explanation if self.origin is not None and self.origin.written else ""

    @property
    def nan_accepted(self) -> bool:
        """Whether NaN is expected, or the program accepted NaN that eager mode or its own inputs also have.

        If the user reports NaN, it is accepted only if a program succeeded whose model itself writes the NaN.
        """
        if not self.outputs_nonfinite:
            return False
        plain, meant = self.plain_run, self.equals_eager
        if self.nan_asked:
            return self.ended_well and bool(self.nan_written) and meant is not False
        if meant is None:
            meant = self.nan_given is not None
        return (plain is not None and plain.as_expected) or (self.ended_well and meant)

    @property
    def first_bad(self) -> FirstBad | None:
        """The first bad value that a watched launch read or wrote."""
        return self.kernel_io.first_bad if self.kernel_io is not None else None

    @property
    def nan_unjudged(self) -> bool:
        """Whether a kernel makes NaN that no check judged, and that eager mode may make as well.

        The model may intend the NaN, or be at fault.
        """
        first, plain = self.first_bad, self.plain_run
        checked = plain is not None and plain.as_expected
        made = first is not None and first.kind == "kernel" and first.what == "non_finite"
        open_question = self.symptom.seen is None and not checked and self.equals_eager is not False
        return made and self.outputs_nan and self.ended_well and open_question

    @property
    def nan_questioned(self) -> bool:
        """Whether NaN counts against the call, because nothing accepts it, or it is unjudged."""
        return self.nan_unjudged or not self.nan_accepted

    @property
    def nan_given(self) -> str | None:
        """The input whose NaN is the first bad value, if the outputs are finite once it is replaced."""
        first = self.first_bad
        if first is None or first.kind != "input" or first.element.value != "nan":
            return None
        filled = (t for t in self.trials.values() if t.gone and t.proves)
        changes = (each.intervention.changes for each in filled)
        finite = (all(c.where is not None and c.where.non_finite for c in each) for each in changes if each)
        return first.name if any(finite) else None

    @property
    def handled(self) -> bool:
        """Whether the suspect call raised, but the program continued and succeeded."""
        return self.suspect_call is not None and self.suspect_call.outcome == "failed" and not self.failed

    @property
    def healthy(self) -> bool:
        """Whether the workload succeeded, and no observation contradicts this.

        A program that never reached AOTInductor is no evidence for a package, even if it succeeds.
        """
        ran = self.own_run is not None and not self.only_loaded and not self.never_reached
        return ran and not self.failed
