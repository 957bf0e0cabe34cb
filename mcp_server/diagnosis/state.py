"""Everything observed so far about one failing (or healthy) workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from mcp_server.diagnosis.interventions.base import Failure, Intervention, Trial
from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.symptom import RunSeen, Symptom
from mcp_server.errors import ProblemError
from mcp_server.jobs.clock import Clock
from mcp_server.logs.captured import (
    Captured,
    CapturedCall,
    CapturedCompile,
    CapturedHost,
    CapturedLoad,
    CapturedUpdate,
    Phase,
)
from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.model import Artifact, ExportedWorkload, ModelLocation, PackageWorkload, Workload
from mcp_server.package.archive import Package
from mcp_server.package.exported import ExportedFacts
from mcp_server.package.launches import Launch
from mcp_server.package.mismatch import Mismatch, symbol_values
from mcp_server.package.problems import PackageError
from mcp_server.package.prover import Finding
from mcp_server.package.signature import CompiledInput
from mcp_server.package.view import PackageView
from mcp_server.recorder.replay import TakenCall
from mcp_server.runtime.context import E, WorkerRun
from mcp_server.runtime.launchers import RankEnd
from mcp_server.tools.capture import Capture
from mcp_server.tools.check_devices import Given
from mcp_server.tools.decompile import Comparison
from mcp_server.tools.divergence import ComparedWithEager, WrongLaunch
from mcp_server.tools.kernel_io import KernelIO
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.tools.machine import Problem
from mcp_server.tools.requests import failing_phase
from mcp_server.tools.trace_launches import Trace
from mcp_server.worker import events
from mcp_server.worker.capture.events import TensorFacts
from mcp_server.worker.protocol import ReplayRequest, Step

if TYPE_CHECKING:  # `bisect` brings what few need
    from mcp_server.tools.switches import Bisected
    from mcp_server.worker.protocol import InputSlice

HANGING_S = 45.0  # long enough to call it a hang, for a call that has not ended in the program either
# Runs that are what the user did, as opposed to experiments.
OWN_RUNS = ("alone", "script", "plain", "command")


class Surroundings(TypedDict, total=False):
    """Where a call is made; empty without a workload. Keyword arguments of `Context.worker`."""

    env: Mapping[str, str]
    python: Path | None
    cwd: Path | None


@dataclass(frozen=True)
class CallSpec:
    """A call that the worker can make: `operation` is `run` or `replay`, `request` its arguments."""

    operation: Literal["run", "replay"]
    request: ReplayRequest
    package: Path
    inputs: Path | None = None

    @property
    def steps(self) -> Sequence[Step]:
        """What a replay does before the call: loads, updates of constants, earlier calls."""
        return self.request.get("steps", [])

    @property
    def updated(self) -> bool:
        """Whether constants are updated before the call."""
        return any(step["do"] == "constants" for step in self.steps)


@dataclass(frozen=True)
class GeneratedKernel:
    """A kernel in a file that the compiler wrote, or in the user's; `line` counts from 1, `code` is its text.

    `model` are the lines of the program that the failed line of a generated kernel may come from.
    """

    name: str
    file: Path
    line: int
    code: str
    model: tuple[ModelLocation, ...] = ()


@dataclass
class DiagnosisState:
    """The growing record. Causes read it; only observations write to it.

    None, or empty, is what was not looked at.
    """

    workload: Workload | None
    budget_s: float = 300.0
    clock: Clock = field(default_factory=Clock)
    log: LogFacts | None = None
    log_source: str = ""
    package: Package | None = None
    package_error: PackageError | None = None
    leaves: list[TensorFacts] = field(default_factory=list)
    given: Given | None = None
    symptom: Symptom = field(default_factory=Symptom)
    unfit: ProblemError | None = None  # why expectation or check cannot be used: the diagnosis ends with it
    scalar_edits: list[Intervention] = field(default_factory=list)
    sharing: list[list[int]] = field(default_factory=list)
    exported: ExportedFacts | None = None
    mismatches: tuple[Mismatch, ...] = ()
    runs: dict[str, RunSeen] = field(default_factory=dict)
    capture: Capture | None = None
    may_be_a_host: bool = False  # the program may call a package from a process that is not Python
    host_package: Path | None = None  # the one package among the arguments of that process, or of the program
    call: CallSpec | None = None
    taken: TakenCall | None = None  # from a recording
    kernel_io: KernelIO | None = None
    with_eager: ComparedWithEager | None = None
    by_source: Comparison | None = None  # with the package read as PyTorch, launch by launch
    bisected: tuple[Suspect, Bisected] | None = None  # what the compiler was suspected of, and what came out
    interpreted: WorkerRun | None = None
    operators: WorkerRun | None = None
    repeated: WorkerRun | None = None
    repeated_watched: WorkerRun | None = None
    trace: Trace | None = None
    located: LocatedFault | None = None
    generated: GeneratedKernel | None = None
    problems: tuple[Problem, ...] = ()
    kernel_defects: dict[Finding, Intervention | None] | None = None  # with what removes each
    index_values: dict[InputSlice, events.IndexValues] = field(default_factory=dict)
    origin: Origin | None = None
    origin_changes: list[Intervention] = field(default_factory=list)  # remove what is at the origin
    origin_fix: Intervention | None = None  # the expression at the origin, corrected
    trials: dict[str, Trial] = field(default_factory=dict)  # by the key of the intervention
    suspects: list[Suspect] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    cut_short: list[str] = field(default_factory=list)  # what the budget ended, or left no time for
    decisions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    put_back: list[str] = field(default_factory=list)  # what became of files that the program wrote over
    refused: list[ProblemError] = field(default_factory=list)  # of observations that could not do their job
    artifacts: list[Artifact] = field(default_factory=list)
    parsed: PackageView | None = None  # of `package`, if that has a wrapper

    @property
    def view(self) -> PackageView | None:
        """Launches, dataflow and model lines of the package, once there is one with a wrapper."""
        if self.parsed is None and self.package is not None and self.package.wrapper_text:
            self.parsed = PackageView(self.package)
        return self.parsed

    @property
    def launches(self) -> tuple[Launch, ...]:
        return self.view.wrapper.launches if self.view is not None else ()

    @property
    def wrong_launches(self) -> list[WrongLaunch]:
        """The launches that computed something else than the exported program, on right inputs."""
        return self.with_eager.every_launch.wrong if self.with_eager is not None else []

    @property
    def compiled_inputs(self) -> tuple[CompiledInput, ...]:
        return self.package.inputs if self.package is not None else ()

    @property
    def captured(self) -> Captured:
        """What the capture hook recorded; nothing where no program ran under it."""
        return self.capture if self.capture is not None else Captured()

    @property
    def failed_rank(self) -> RankEnd | None:
        return self.capture.rank if self.capture is not None else None

    @property
    def calls(self) -> list[CapturedCall]:
        return self.captured.calls

    @property
    def updates(self) -> list[CapturedUpdate]:
        return self.captured.updates

    @property
    def sizes(self) -> dict[str, int]:
        """The symbols of the package with their values in this call, as far as its inputs were described."""
        if self.package is None or self.given is None:
            return {}
        return dict(symbol_values(self.package.signature, self.given.tensors))

    @property
    def lines_in_place(self) -> list[ModelLocation]:
        """The model's lines that write in place, as the exported program tells."""
        return self.exported.in_place if self.exported is not None else []

    @property
    def named_leaves(self) -> list[tuple[str, TensorFacts]]:
        """The arguments of the call with their paths (`args[1]`), where the inputs were described."""
        return list(zip(self.given.paths, self.leaves, strict=False)) if self.given is not None else []

    def eager_events(self, kind: type[E]) -> list[E]:
        return self.interpreted.all(kind) if self.interpreted is not None else []

    @property
    def compared_with_program(self) -> events.Compared | None:
        """How the outputs of the call compare with the exported program's; None: nobody looked."""
        return self.interpreted.last(events.Compared) if self.interpreted is not None else None

    @property
    def suspect_call(self) -> CapturedCall | None:
        """The call of a program that failed, or that is to blame if one is."""
        return self.captured.suspect

    @property
    def suspect_load(self) -> CapturedLoad | None:
        call = self.suspect_call
        return self.captured.load_of(call) if call is not None else None

    @property
    def suspect_compile(self) -> CapturedCompile | None:
        """The compile that wrote the package of the suspect call."""
        call = self.suspect_call
        return self.captured.compile_of(call) if call is not None else None

    @property
    def outputs_nonfinite(self) -> bool:
        """Whether NaN or infinities came out of a call, seen without probes."""
        infinite = any(out.inf for run in self.runs.values() for out in run.outputs)
        return self.outputs_nan or infinite or (self.suspect_call is not None and self.suspect_call.nonfinite)

    @property
    def outputs_nan(self) -> bool:
        """Whether NaN came out of a call, seen without probes."""
        call = self.suspect_call
        called = any(out.nan for run in self.runs.values() for out in run.outputs)
        return called or (call is not None and any(leaf.nan for leaf in call.outputs))

    @property
    def script_run(self) -> RunSeen | None:
        return self.runs.get("script")

    @property
    def plain_run(self) -> RunSeen | None:
        """The call by itself, made again as it was."""
        return self.runs.get("plain")

    def failure_of(self, run: str) -> Failure | None:
        """How the run of that label failed; None where it was not made."""
        return self.runs[run].failure if run in self.runs else None

    @property
    def loader_words(self) -> str:
        """What the loader, or the system, said when it refused the package; empty where no load failed.

        Of the call made again, else of the program's own load.
        """
        plain = self.plain_run
        if plain is not None and plain.worker is not None:
            failed = plain.worker.last(events.Failed)
            if failed is not None and failed.during == "loading":
                return failed.text or failed.type
            return plain.finished.ending if plain.worker.phase == "loading" else ""
        load = self.failing_phase if isinstance(self.failing_phase, CapturedLoad) else None
        return load.error.text if load is not None and load.error is not None else ""

    @property
    def loads(self) -> bool:
        """Whether the loader took the package, in the call made again or in the program."""
        plain, load = self.plain_run, self.suspect_load
        if plain is not None and plain.worker is not None and plain.worker.phases("loaded"):
            return True
        return load is not None and load.outcome == "ok"

    @property
    def call_fails(self) -> bool:
        """Whether the call by itself, made again, fails or diverges from the reference."""
        return self.failure_of("plain") not in (None, "none")

    @property
    def plain_diverges(self) -> bool:
        """Whether the call, made as it was, gives what the script found wrong."""
        return self.plain_run is not None and self.plain_run.differs

    @property
    def call_locations(self) -> list[ModelLocation]:
        """The user's lines that make the suspect call, innermost first."""
        if self.taken is not None:
            return self.taken.lines[:2]
        return self.suspect_call.stack[:2] if self.suspect_call is not None else []

    def differs_in(self, run: str) -> bool | None:
        """Whether the call gave other outputs when repeated, as `second` or with new memory `filled`.

        None if that was not tried.
        """
        repeats = self.repeated.all(events.Repeated) if self.repeated is not None else []
        return next((not event.equal for event in repeats if event.run == run), None)

    @property
    def reads_unset(self) -> bool:
        """Whether the outputs, else the same in each call, change with what new memory holds."""
        return self.differs_in("second") is False and bool(self.differs_in("filled"))

    @property
    def surroundings(self) -> Surroundings:
        """Variables, interpreter and directory of the workload, as the worker takes them."""
        workload = self.workload
        return {"env": workload.env, "python": workload.python, "cwd": workload.cwd} if workload else {}

    def surroundings_with(self, below: Mapping[str, str], above: Mapping[str, str]) -> Surroundings:
        """The same with more variables: some that the workload overrides, and some that override its own."""
        env = self.workload.env if self.workload else {}
        return {**self.surroundings, "env": {**below, **env, **above}}

    @property
    def inputs(self) -> Any:
        """The inputs of the call: specs, or the file of a captured or given call."""
        if self.call is None:
            return None
        return self.call.inputs if self.call.inputs is not None else self.call.request.get("inputs")

    @property
    def device_index(self) -> int:
        """The device that the call asks for; -1 where it says nothing."""
        return int(self.call.request.get("device_index", -1)) if self.call is not None else -1

    @property
    def program_path(self) -> Path | None:
        """The exported program: as given, or saved by the compile that wrote the suspect call's package."""
        if isinstance(self.workload, ExportedWorkload):
            return self.workload.exported
        if self.symptom.program is not None:
            return self.symptom.program
        seen = self.captured
        phase = seen.suspect or next(reversed(seen.loads), None)
        compiled = seen.compile_of(phase) if phase is not None else None
        path = compiled.exported if compiled is not None else None
        return path if path is not None and path.exists() else None

    @property
    def judged_by_program(self) -> bool:
        """Whether the user gave the exported program, so that other numbers than eager's are a failure."""
        return isinstance(self.workload, ExportedWorkload) or self.symptom.program is not None

    @property
    def package_call(self) -> PackageWorkload:
        """The call as a package with its inputs, for steps that take one."""
        assert self.call is not None
        request, workload = self.call.request, self.workload
        return PackageWorkload(
            package=self.call.package,
            inputs=self.inputs,
            model_name=request.get("model_name", "model"),
            device_index=self.device_index,
            extra_imports=[str(name) for name in request.get("extra_imports", ())],
            cwd=workload.cwd if workload else None,
            env=workload.env if workload else {},
            python=workload.python if workload else None,
            timeout_s=min(workload.timeout_s, 300) if workload else 300,
        )

    @property
    def seconds_left(self) -> float:
        return self.budget_s - self.clock.worked_s

    @property
    def own_run(self) -> RunSeen | None:
        """The run that is nearest to what the user did."""
        return next((self.runs[label] for label in OWN_RUNS if label in self.runs), None)

    @property
    def logs(self) -> list[tuple[str, LogFacts]]:
        """Every log with the name of where it came from, the user's own first."""
        own = [(self.log_source, self.log)] if self.log else []
        return own + [(run.label, run.log) for run in self.runs.values() if not self._fails_otherwise(run)]

    def _fails_otherwise(self, run: RunSeen) -> bool:
        """Whether the program hung inside of a call, and this run of the call alone failed in another way."""
        script = self.script_run
        hung = script is not None and script.failure == "timeout" and run is not script
        inside = hung and any(call.outcome == "unfinished" for call in self.captured.calls)
        return inside and run.failure not in ("timeout", "none")

    @property
    def own_logs(self) -> list[tuple[str, LogFacts]]:
        """The logs of what the user did, without those of our experiments."""
        return [(label, log) for label, log in self.logs if label in (*OWN_RUNS, self.log_source)]

    @property
    def roots(self) -> list[tuple[str, ErrorFact]]:
        """The root error of each log that has one, with the name of the log."""
        return [(source, log.root) for source, log in self.logs if log.root is not None]

    @property
    def own_roots(self) -> list[tuple[str, ErrorFact]]:
        return [(source, log.root) for source, log in self.own_logs if log.root is not None]

    @property
    def errors(self) -> list[tuple[str, ErrorFact]]:
        return [(source, error) for source, log in self.logs for error in log.errors]

    @property
    def device(self) -> str | None:
        return self.package.device_type if self.package else None

    @property
    def failed(self) -> bool:
        """Whether anything failed where the user could see it."""
        if self.package_error is not None or (self.log is not None and self.log.root is not None):
            return True
        if not self.ended_well:
            return any(run.failure != "none" for label, run in self.runs.items() if label in OWN_RUNS)
        # A program may end well, though a call that it took for good fails when it is made again.
        call = self.suspect_call
        if call is None or call.outcome != "ok" or not self.call_fails:
            return False
        return not (self.failure_of("plain") == "nonfinite" and self.nan_accepted)

    @property
    def ended_well(self) -> bool:
        """Whether the user's program ran to a good end, under the hook and, where that was tried, alone."""
        return {self.failure_of("script"), self.failure_of("alone")} - {None} == {"none"}

    @property
    def fails_only_alone(self) -> bool:
        """Whether the program fails without the hook, and succeeded under it, which waits for each call."""
        return self.failure_of("script") == "none" and self.failure_of("alone") not in (None, "none")

    @property
    def rounding(self) -> events.Rounding | None:
        """How the outputs compare with the program in float64, where rounding explains what differs."""
        found = self.interpreted.last(events.Rounding) if self.interpreted is not None else None
        return found if found and not any(each.unexplained for each in found.outputs) else None

    @property
    def equals_eager(self) -> bool | None:
        """Whether the call gives what its exported program gives, NaN included, except for rounding.

        None: nobody looked.
        """
        compared = self.compared_with_program
        return compared.equal or self.rounding is not None if compared is not None else None

    @property
    def nan_accepted(self) -> bool:
        """Whether the program took NaN that eager mode gives, too; never where NaN is the symptom."""
        meant = self.ended_well and self.symptom.seen != "nan"
        return meant and self.outputs_nonfinite and bool(self.equals_eager)

    @property
    def exit_locations(self) -> list[ModelLocation]:
        """The user's lines that ended the program with `sys.exit` and a status of failure."""
        last = next(reversed(self.captured.ends), None)
        exited = last is not None and last.error is not None and last.error.type.endswith("SystemExit")
        return last.stack[:2] if last is not None and exited else []

    @property
    def own_check(self) -> bool:
        """Whether the program failed over a check of its own, which raised or ended it with `sys.exit`."""
        script = self.script_run
        if script is None or script.failure != "exception":
            return False
        return script.family == "own_check" or (script.root is None and bool(self.exit_locations))

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether what the user saw is that memory did not suffice."""
        return any(root.candidates[:1] == ("out_of_memory",) for _, root in self.own_roots)

    @property
    def handled(self) -> bool:
        """Whether the suspect call raised, and the program went on and succeeded all the same."""
        return self.suspect_call is not None and self.suspect_call.outcome == "failed" and not self.failed

    @property
    def failing_phase(self) -> Phase | None:
        """Where the program failed inside AOTInductor; the call to suspect when it failed nowhere there."""
        seen = self.capture
        return failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None

    @property
    def host(self) -> CapturedHost | None:
        """The process in another language that a failed program started with a package, if it is to blame."""
        seen = self.capture
        return seen.host if seen is not None and not seen.finished.ok else None

    @property
    def failing_locations(self) -> list[ModelLocation]:
        """The user's lines of the compile, load, update or call that failed, or that start the host."""
        phase = self.failing_phase
        if phase is not None and phase.outcome != "ok":
            return phase.stack[:2]
        return self.host.stack[:2] if self.host is not None else []

    @property
    def only_compiled(self) -> bool:
        """Whether what failed is a compile: of the program given, or the one that ended a script."""
        if isinstance(self.workload, ExportedWorkload):
            return self.log_source == "compile"
        phase = self.failing_phase
        return isinstance(phase, CapturedCompile) and phase.outcome == "failed"

    @property
    def never_reached(self) -> bool:
        """Whether a program ran in which no Python process that could be seen used a package."""
        seen = self.capture
        return seen is not None and not (seen.processes or seen.compiles or seen.loads or seen.calls)

    @property
    def healthy(self) -> bool:
        """Whether the workload ran to a good end, and nothing that was tried says otherwise.

        A program that never reached AOTInductor is no evidence for a package, however well it ends.
        """
        ran = self.own_run is not None and not self.only_loaded and not self.never_reached
        return ran and not self.failed

    @property
    def only_loaded(self) -> bool:
        """Whether the package takes inputs and none were given, so that its model was not called."""
        workload, package = self.workload, self.package
        if not isinstance(workload, PackageWorkload) or workload.inputs is not None or package is None:
            return False
        return not package.signature.known or bool(package.inputs)
