"""Facts about the user's program: the symptom, how its runs ended, and what the hook recorded.

A call that returns may still be wrong.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from mcp_server.diagnosis.interventions.base import Failure
from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Finished
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
from mcp_server.model import Attached, ExportedWorkload, ModelLocation, Workload
from mcp_server.plurals import counted, is_
from mcp_server.recorder.replay import KernelCapture, TakenCall
from mcp_server.runtime.context import E, WorkerRun
from mcp_server.runtime.failure import RankEnd
from mcp_server.tools.capture import Capture
from mcp_server.tools.requests import failing_phase
from mcp_server.tools.running_process import ProcessSeen
from mcp_server.worker import events
from mcp_server.worker.report import TensorFacts

_CPP_SOURCE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|h|hpp)$")
# Runs that repeat what the user did, as opposed to experiments.
OWN_RUNS = ("alone", "script", "plain", "command")


Seen = Literal["wrong-output", "nan", "crash", "hang", "memory"]


@dataclass(frozen=True)
class Symptom:
    """What the user sees, and the expected outputs.

    `expect` is a file with one tensor for each output, compared with `rtol` and `atol` (None: those of the
    dtype). For a package, `expect` has the outputs of its call; for a program, those of the failed call, or
    else of its last call. `check` is a command that gets a file of outputs and exits with status 0 if they
    are right. `program` is the exported program of a package; eager mode's outputs count as correct.
    """

    seen: Seen | None = None
    expect: Path | None = None
    rtol: float | None = None
    atol: float | None = None
    check: tuple[str, ...] = ()
    program: Path | None = None

    @property
    def judges(self) -> bool:
        """Whether the user says which outputs are correct."""
        return self.expect is not None or bool(self.check)

    @property
    def infinities(self) -> bool:
        """Whether an infinite output is also a failure."""
        return self.seen == "nan"

    def request(self) -> dict[str, object]:
        if not self.judges:
            return {}
        return {"expect": self.expect, "rtol": self.rtol, "atol": self.atol, "check": list(self.check)}


@dataclass(frozen=True)
class RunSeen:
    """One run of the user's program, or of the call in the worker. `label` names its conditions.

    With `infinities`, an infinite output is also a failure.
    """

    label: str
    finished: Finished
    log: LogFacts
    worker: WorkerRun | None = None
    infinities: bool = False

    @property
    def root(self) -> ErrorFact | None:
        return self.log.root

    def last(self, kind: type[E]) -> E | None:
        """The last event of that kind that the worker reported."""
        return self.worker.last(kind) if self.worker is not None else None

    @property
    def outputs(self) -> list[TensorFacts]:
        """The facts of each output of the last call that returned. Empty if none did."""
        called = self.last(events.Called)
        return called.outputs if called is not None else []

    @property
    def failure(self) -> Failure:
        """How the run failed, judged by its end."""
        ending = self.finished.ending
        if ending in ("timeout", "out_of_memory", "signal"):
            return ending
        if not self.finished.ok:
            # The program's own watchdog ended the run: `faulthandler.dump_traceback_later(SECONDS,
            # exit=True)`.
            root = self.root
            watchdog = root is not None and root.family.id == "timeout" and "limit" in root.fields
            return "timeout" if watchdog else "exception"
        if self.as_expected:
            return "none"
        if any(out.nan or (self.infinities and out.inf) for out in self.outputs):
            return "nonfinite"
        checked = self.last(events.CheckFacts)
        return "differs" if self.differs or (checked is not None and checked.status) else "none"

    @property
    def as_expected(self) -> bool:
        """Whether the outputs match the user's expected file, check command, or both."""
        compared, checked = self.last(events.ComparedExpected), self.last(events.CheckFacts)
        given = compared is not None and compared.given
        if not given and checked is None:
            return False  # the user gave no expectation
        return not (given and compared and not compared.equal) and not (checked and checked.status)

    @property
    def differs(self) -> bool:
        """Whether the outputs have the shapes of the reference, but different values."""
        compared = self.last(events.ComparedExpected)
        if compared is None or compared.equal:
            return False
        return all(each.same_shape for each in compared.outputs)

    @property
    def left_alone(self) -> list[int]:
        """Inputs that the call should have changed and did not, as the package wrote to a copy."""
        return [each.input for each in self._looked_at if each.misaligned and not each.changed]

    @property
    def changed(self) -> list[int]:
        """Inputs that the call should have changed, and did."""
        return [each.input for each in self._looked_at if each.changed]

    @property
    def _looked_at(self) -> list[events.ChangedInput]:
        found = self.last(events.ChangedInputs)
        return found.inputs if found is not None else []

    @property
    def family(self) -> str | None:
        return self.root.family.id if self.root else None


def misfit(what: str, expect: Path | None = None) -> ProblemError:
    """The error about an expectation that does not fit this call's outputs."""
    return ProblemError(
        f"the expectation does not fit the outputs of the call: {what}",
        value=str(expect) if expect is not None else None,
        allowed="a file of torch.save with one tensor for each output, of the shapes of the outputs",
    )


def refuse_misfit(run: RunSeen, symptom: Symptom) -> None:
    """Raise `ProblemError` if the expectation or the check does not fit this call's outputs."""
    compared = run.last(events.ComparedExpected)
    # A replay also reports the comparison with the program's tensors, which always fit.
    if compared is not None and compared.given and compared.layout:
        expected, given = compared.counts
        what = f"the call returns {counted(given, 'tensor')}, and {expected} {is_(expected)} expected"
        if expected == given:
            place = next(each.output for each in compared.outputs if each.layout)
            what = f"output {place} has {compared.layout}"
        raise misfit(what, symptom.expect)
    begun = run.worker is not None and run.worker.phases("checking_outputs")
    if begun and run.last(events.CheckFacts) is None:
        raise ProblemError(
            "the check command did not end in the time that the budget leaves",
            value=" ".join(symptom.check),
            allowed="a command that ends by itself, or a longer budget",
        )


class Surroundings(TypedDict, total=False):
    """Where a call is made: keyword arguments of `Context.worker`. Empty without a workload."""

    env: Mapping[str, str]
    python: Path | None
    cwd: Path | None


@dataclass(frozen=True)
class OtherOutput:
    """An output whose sum in the program (`in_program`) differs from its sum in a repeated call (`alone`)."""

    output: int
    in_program: float
    alone: float


SAME_SUM = 1e-4  # difference of two sums, by element, as a share of the largest value; rounding causes less


@dataclass(frozen=True)
class FilledInput:
    """An input in memory that a run of the host filled because it was freed or never written.

    `offset` is the first filled byte of the input, `elements` the number of completely filled elements.
    """

    number: int
    memory: Literal["freed", "unwritten"]
    offset: int
    element: list[int]
    elements: int


@dataclass
class ProgramSeen:
    """The workload and its runs by label, including the runs of its call."""

    workload: Workload | None
    log: LogFacts | None = None
    log_source: str = ""
    symptom: Symptom = field(default_factory=Symptom)
    runs: dict[str, RunSeen] = field(default_factory=dict)
    capture: Capture | None = None
    may_be_a_host: bool = False  # the program may call a package from a process that is not Python
    host_package: Path | None = None  # the package that the host probably calls
    taken: TakenCall | None = None  # the recording that the call comes from
    filled: FilledInput | None = None  # filled input in a second run of the host
    captures: Sequence[KernelCapture] = ()  # captured launches of another run
    attached: Attached | None = None  # the running process to look at in place of a workload
    process: ProcessSeen | None = None

    @property
    def unowned(self) -> list[int]:
        """Inputs whose memory the program had freed, never wrote, or does not have in full."""
        taken, gone = self.taken, [each for each in self.captured.memory if each.act == "unmapped"]
        found = [self.filled.number if self.filled is not None else None]
        found += [each.input for each in gone if each.storage == "input"]
        found += [taken.on_ended_frame, *taken.short] if taken is not None else []
        return list(dict.fromkeys(number for number in found if number is not None))

    @property
    def captured(self) -> Captured:
        """The recording of the capture hook. Empty if no program ran under it."""
        return self.capture if self.capture is not None else Captured()

    @property
    def failed_rank(self) -> RankEnd | None:
        return self.capture.rank if self.capture is not None else None

    @property
    def calls(self) -> list[CapturedCall]:
        return self.captured.calls

    @property
    def updates(self) -> list[CapturedUpdate]:
        given = self.taken.weights if self.taken is not None else None
        return [*self.captured.updates, *([given] if given is not None else [])]

    @property
    def suspect_call(self) -> CapturedCall | None:
        """The program's call that failed, or that is to blame for a later failure."""
        return self.captured.suspect

    @property
    def suspect_load(self) -> CapturedLoad | None:
        call = self.suspect_call
        return self.captured.load_of(call) if call is not None else None

    @property
    def outputs_nonfinite(self) -> bool:
        """Whether a call returned NaN or infinities, seen without probes."""
        infinite = any(out.inf for run in self.runs.values() for out in run.outputs)
        return self.outputs_nan or infinite or (self.suspect_call is not None and self.suspect_call.nonfinite)

    @property
    def finite_calls(self) -> int:
        """The number of calls that a program made if all are known to return finite outputs; otherwise 0."""
        finite = all(call.outcome == "ok" and call.outputs and not call.nonfinite for call in self.calls)
        return len(self.calls) if finite else 0

    @property
    def outputs_nan(self) -> bool:
        """Whether a call returned NaN, seen without probes."""
        call = self.suspect_call
        called = any(out.nan for run in self.runs.values() for out in run.outputs)
        return called or (call is not None and any(leaf.nan for leaf in call.outputs))

    @property
    def script_run(self) -> RunSeen | None:
        return self.runs.get("script")

    @property
    def plain_run(self) -> RunSeen | None:
        """The run that repeats the call alone and unchanged."""
        return self.runs.get("plain")

    def failure_of(self, run: str) -> Failure | None:
        """How the run with that label failed. None if it was not made."""
        return self.runs[run].failure if run in self.runs else None

    @property
    def loader_words(self) -> str:
        """The text with which the loader or the system rejected the package. Empty if no load failed.

        It comes from the repeated call, or from the program's own load.
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
        """Whether the loader accepted the package, in the repeated call or in the program."""
        plain, load = self.plain_run, self.suspect_load
        if plain is not None and plain.worker is not None and plain.worker.phases("loaded"):
            return True
        return load is not None and load.outcome == "ok"

    @property
    def call_fails(self) -> bool:
        """Whether the call fails or diverges from the reference when it is repeated alone."""
        return self.failure_of("plain") not in (None, "none")

    @property
    def plain_diverges(self) -> bool:
        """Whether the repeated call returns other values than the user or the script expects."""
        return self.plain_run is not None and self.plain_run.differs

    @property
    def otherwise_alone(self) -> OtherOutput | None:
        """The first output that differs between the program and the call in a fresh process.

        None if there is none, or if the sums of the outputs are unknown.
        """
        call, plain = self.suspect_call, self.plain_run
        pairs = (
            zip(call.outputs, plain.outputs, strict=False) if call is not None and plain is not None else ()
        )
        for place, (then, now) in enumerate(pairs):
            if then.sum is None or now.mean is None or now.not_finite or then.shape != now.shape:
                continue
            elements = math.prod(then.shape or ())
            largest = max(abs(now.min or 0), abs(now.max or 0), abs(then.sum) / max(elements, 1))
            if abs(then.sum - now.mean * elements) > SAME_SUM * elements * largest:
                return OtherOutput(place, then.sum, now.mean * elements)
        return None

    @property
    def call_locations(self) -> list[ModelLocation]:
        """The user's lines that make the suspect call, innermost first."""
        if self.taken is not None:
            return self.taken.lines[:2]
        return self.suspect_call.stack[:2] if self.suspect_call is not None else []

    @property
    def of_cpp_host(self) -> bool:
        """Whether the call was made by a program without Python, or in a line of C++."""
        recorded = self.taken is not None and self.taken.program is not None
        in_cpp = any(_CPP_SOURCE.search(each.file) for each in self.call_locations[:1])
        return self.host is not None or recorded or in_cpp

    @property
    def died_outside(self) -> bool:
        """Whether the program was killed by a signal after every load and call of a package had returned."""
        script, calls = self.script_run, self.calls
        died = script is not None and script.failure == "signal"
        return died and bool(calls) and all(p.outcome == "ok" for p in (*self.captured.loads, *calls))

    @property
    def surroundings(self) -> Surroundings:
        """Variables, interpreter and directory of the workload, as the worker takes them."""
        workload = self.workload
        return {"env": workload.env, "python": workload.python, "cwd": workload.cwd} if workload else {}

    def surroundings_with(self, below: Mapping[str, str], above: Mapping[str, str]) -> Surroundings:
        """The surroundings with more variables. The workload's variables override `below` but not `above`."""
        env = self.workload.env if self.workload else {}
        return {**self.surroundings, "env": {**below, **env, **above}}

    @property
    def own_run(self) -> RunSeen | None:
        """The run that is most like what the user did."""
        return next((self.runs[label] for label in OWN_RUNS if label in self.runs), None)

    @property
    def logs(self) -> list[tuple[str, LogFacts]]:
        """Every relevant log with the name of its source, the user's own first."""
        own = [(self.log_source, self.log)] if self.log else []
        return own + [(run.label, run.log) for run in self.runs.values() if not self._fails_otherwise(run)]

    def _fails_otherwise(self, run: RunSeen) -> bool:
        """Whether the program hung inside a call, but this repeated call failed in another way."""
        script = self.script_run
        hung = script is not None and script.failure == "timeout" and run is not script
        inside = hung and any(call.outcome == "unfinished" for call in self.captured.calls)
        return inside and run.failure not in ("timeout", "none")

    @property
    def own_logs(self) -> list[tuple[str, LogFacts]]:
        """The logs of runs that repeat what the user did, without our experiments."""
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
    def ended_well(self) -> bool:
        """Whether the user's program succeeded, under the hook and, if tried, also without it."""
        return {self.failure_of("script"), self.failure_of("alone")} - {None} == {"none"}

    @property
    def fails_only_alone(self) -> bool:
        """Whether the program fails without the hook, but succeeds with it. The hook waits for each call."""
        return self.failure_of("script") == "none" and self.failure_of("alone") not in (None, "none")

    @property
    def exit_locations(self) -> list[ModelLocation]:
        """The user's lines that ended the program with `sys.exit` and a status of failure."""
        last = next(reversed(self.captured.ends), None)
        exited = last is not None and last.error is not None and last.error.type.endswith("SystemExit")
        return last.stack[:2] if last is not None and exited else []

    @property
    def own_check(self) -> bool:
        """Whether a check in the program failed, by an exception or by an exit without one."""
        script = self.script_run
        if script is None or script.failure != "exception":
            return False
        return script.family == "own_check" or script.root is None

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the user saw that memory ran out."""
        return any(root.candidates[:1] == ("out_of_memory",) for _, root in self.own_roots)

    @property
    def failing_phase(self) -> Phase | None:
        """The phase in which the program failed inside AOTInductor, or the suspect call."""
        seen = self.capture
        return failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None

    @property
    def host(self) -> CapturedHost | None:
        """The non-Python process that a failed program started with a package, if it is to blame."""
        seen = self.capture
        return seen.host if seen is not None and not seen.finished.ok else None

    @property
    def failing_locations(self) -> list[ModelLocation]:
        """The user's lines that make the failed compile, load, update or call, or that start the host."""
        phase = self.failing_phase
        if phase is not None and phase.outcome != "ok":
            return phase.stack[:2]
        return self.host.stack[:2] if self.host is not None else []

    @property
    def only_compiled(self) -> bool:
        """Whether the compile of the given program failed, or a failed compile ended the script."""
        if isinstance(self.workload, ExportedWorkload):
            return self.log_source == "compile"
        phase = self.failing_phase
        return isinstance(phase, CapturedCompile) and phase.outcome == "failed"

    @property
    def never_reached(self) -> bool:
        """Whether a program ran without any use of a package that the hook or the recorder saw."""
        seen = self.capture if self.taken is None else None
        return seen is not None and not (seen.processes or seen.compiles or seen.loads or seen.calls)
