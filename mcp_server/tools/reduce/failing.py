"""How a workload or its reproduction fails, and what a reduction returns."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Command, Finished
from mcp_server.logs.families import BY_ID
from mcp_server.model import Artifact, Cost, ExportedWorkload, ModelLocation, PackageWorkload, Record
from mcp_server.runtime.context import WORKER_ENV, Context, WorkerRun
from mcp_server.runtime.failure import Failure, read_failure
from mcp_server.worker import events
from mcp_server.worker.protocol import FailureClass

Kind = Literal["crash", "error", "not_finite", "departs"]

# Exit status of a reproduction (worker/reduction/script.py).
STATUS: dict[Kind, int] = {"error": 1, "not_finite": 3, "departs": 4}
NOT_EXPORTED = 5
# Events of the worker's `attempt` that begin a phase of AOTInductor's.
PHASES = {"compiling": "compiling", "loading": "loading", "loaded": "loading", "calling": "calling"}
SCRIPT = "repro.py"
SMALL = 1 << 20  # bytes that are easily passed on


class FailureShown(Record):
    """`kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (`nan`: also NaN) or
    departs (from eager). `family` and `text` are of the root error, where there is one.
    """

    kind: Kind
    phase: str = ""
    signal: str | None = None
    family: str = ""
    text: str = ""
    nan: bool = False

    def __str__(self) -> str:
        if self.kind == "not_finite":
            return "NaN in an output" if self.nan else "infinity in an output"
        if self.kind == "departs":
            return "an output that differs from eager"
        how = f"killed by {self.signal}" if self.kind == "crash" else f"an exception while {self.phase}"
        return f"{how}: {self.text}" if self.text else how

    def same_as(self, other: FailureShown | None) -> bool:
        if other is None or (self.kind, self.signal, self.family) != (other.kind, other.signal, other.family):
            return False
        return other.nan or not self.nan

    def same_cause_as(self, other: FailureShown | None) -> bool:
        """Whether the same error was raised: a caller may have caught what ends a bare launch's process."""
        known = bool(self.family) and other is not None and self.family == other.family
        return known or self.same_as(other)

    def request(self) -> FailureClass:
        """The class as the worker takes it."""
        family = BY_ID.get(self.family)
        return FailureClass(
            kind=self.kind,
            signal=int(signal.Signals[self.signal]) if self.signal else 0,
            phase=self.phase,
            patterns=[pattern.pattern for pattern in family.patterns] if family else [],
            # Families of the compiler's errors are wide: any operator without a lowering, any missing name.
            essence="" if family and self.phase != "compiling" else self.text,
            nan=self.nan,
        )


def of_attempt(done: WorkerRun) -> FailureShown | None:
    """How the worker's `attempt` failed; None when the program is healthy.

    Raises `ProblemError` for a run that did not end in time, or that failed before the compile.
    """
    judged = done.last(events.Judged)
    called = done.last(events.Called)
    if judged is None and called is not None:  # eager failed where the package did not: judge the package
        not_finite = any(output.not_finite for output in called.outputs)
        judged = events.Judged(not_finite, any(output.nan for output in called.outputs), departs=False)
    if judged is not None:
        if judged.not_finite:
            return FailureShown(kind="not_finite", phase="calling", nan=judged.nan)
        return FailureShown(kind="departs", phase="calling") if judged.departs else None
    failure = read_failure(done.finished)
    assert failure is not None
    phase = next((PHASES[e.event] for e in reversed(done.events) if e.event in PHASES), "")
    if not phase:
        raise ProblemError(
            "the program cannot be loaded: " + failure.text,
            allowed="extra_imports for its operators; script, which needs no saved program",
            next_call="diagnose",
        )
    return of_ending(done.finished, failure, phase)


def of_script(finished: Finished) -> FailureShown | None:
    """How a reproduction failed, from its exit status and its output."""
    if finished.ok or finished.returncode == NOT_EXPORTED:
        return None
    text = finished.output.read_text(encoding="utf-8", errors="replace") if finished.output.exists() else ""
    if finished.returncode == STATUS["not_finite"]:
        found = [line for line in text.splitlines() if line.startswith("not finite: ")]
        nan = any(" 0 nan " not in line for line in found)
        return FailureShown(kind="not_finite", phase="calling", nan=nan)
    if finished.returncode == STATUS["departs"]:
        return FailureShown(kind="departs", phase="calling")
    phases = [line.removeprefix("phase: ") for line in text.splitlines() if line.startswith("phase: ")]
    failure = read_failure(finished)
    return of_ending(finished, failure, phases[-1] if phases else "") if failure is not None else None


def of_ending(finished: Finished, failure: Failure, phase: str) -> FailureShown:
    """A child that was killed or raised. Raises `ProblemError` for any other end."""
    if finished.ending not in ("exit", "signal"):
        raise ProblemError(
            f"it ended with {finished.ending}, which smaller programs cannot be compared with",
            value=failure.text,
            allowed="a crash, an exception, an output that is not finite or differs from eager",
            next_call="trace_launches",
        )
    kind: Kind = "crash" if finished.signal else "error"
    return FailureShown(
        kind=kind, phase=phase, signal=finished.signal, family=failure.family, text=failure.text[:300]
    )


class ReducedNode(Record):
    """One operator of the reproduction, and the model's lines that it comes from."""

    name: str
    operator: str
    locations: list[ModelLocation] = Field(default_factory=list)


class Reduced(Record):
    """A reproduction, seen to fail in the same way under a plain interpreter; or why there is none.

    `replayed` is a launch that was healthy in the call, and is alone.

    `files` are the script and what must be in the same folder. `real` names tensors that hold values of the
    workload, `seeded` those that the script makes. `complete` is False when the time was over before
    everything was tried. Exit status of the script: 0 no fault, 1 an exception, 3 an output is not finite, 4
    it differs from eager (for one launch: what it wrote is not what was recorded), 5 it cannot be exported.
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


async def run_script(
    context: Context,
    workload: ExportedWorkload | PackageWorkload,
    directory: Path,
    gpus: tuple[int, ...] | None,
) -> Finished:
    """Run the reproduction in `directory` as anybody would: the interpreter and the script."""
    argv = (str(context.python_for(workload)), SCRIPT)
    env = {**WORKER_ENV, "PYTHONDONTWRITEBYTECODE": "1"}
    command = Command(argv=argv, cwd=directory, env=env, timeout_s=workload.timeout_s, gpus=gpus)
    return await context.run(command, "reproduction-run", runs=1)


def one_line(text: str) -> str:
    """Bounded, and safe in the docstring of a script."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())[:200]
