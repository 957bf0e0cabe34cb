"""How a workload fails, as a class that a smaller one can be held against."""

from __future__ import annotations

import signal
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.evidence.families import BY_ID
from mcp_server.jobs.types import Finished
from mcp_server.model import Record
from mcp_server.steps.context import WorkerRun
from mcp_server.steps.failure import Failure, read_failure

Kind = Literal["crash", "error", "not_finite", "departs"]

# Exit status of a reproduction (worker/reduction/show.py).
STATUS: dict[Kind, int] = {"error": 1, "not_finite": 3, "departs": 4}
# Events of the worker's `attempt` that begin a phase of AOTInductor's.
PHASES = {"compiling": "compiling", "loading": "loading", "loaded": "loading", "calling": "calling"}


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
            return "an output that departs from eager"
        how = f"killed by {self.signal}" if self.kind == "crash" else f"an exception while {self.phase}"
        return f"{how}: {self.text}" if self.text else how

    def same_as(self, other: FailureShown | None) -> bool:
        """Whether `other` is of the same class."""
        if other is None or (self.kind, self.signal, self.family) != (other.kind, other.signal, other.family):
            return False
        return other.nan or not self.nan

    def same_cause_as(self, other: FailureShown | None) -> bool:
        """Whether the same error was met: a caller may have caught what ends a bare launch's process."""
        known = bool(self.family) and other is not None and self.family == other.family
        return known or self.same_as(other)

    def request(self) -> dict[str, object]:
        """The class as the worker takes it (worker/reduction/sameness.py)."""
        family = BY_ID.get(self.family)
        return {
            "kind": self.kind,
            "signal": int(signal.Signals[self.signal]) if self.signal else 0,
            "phase": self.phase,
            "patterns": [pattern.pattern for pattern in family.patterns] if family else [],
            # Families of the compiler's errors are wide: any operator without a lowering, any missing name.
            "essence": "" if family and self.phase != "compiling" else self.text,
            "nan": self.nan,
        }


def of_attempt(done: WorkerRun) -> FailureShown | None:
    """How the worker's `attempt` failed; None when the program is healthy.

    Raises `ProblemError` for a run that did not end in time, or that failed before the compile.
    """
    judged = done.last("judged")
    called = done.last("called")
    failure = read_failure(done.finished)
    if judged is None and called is not None:  # eager failed where the package did not: judge the package
        bad = [output for output in called["outputs"] if output.get("nan") or output.get("inf")]
        judged = {"not_finite": bool(bad), "nan": any(o.get("nan") for o in bad), "departs": False}
    if judged is not None:
        return _of_values(bool(judged["not_finite"]), bool(judged["nan"]), bool(judged["departs"]))
    assert failure is not None
    phase = next((PHASES[e["event"]] for e in reversed(done.events) if e["event"] in PHASES), "")
    if not phase:
        raise ProblemError(
            "the program cannot be loaded: " + failure.text,
            allowed="extra_imports for its operators; script, which needs no saved program",
            next_call="diagnose",
        )
    return of_ending(done.finished, failure, phase)


def of_script(finished: Finished) -> FailureShown | None:
    """How a reproduction failed, from its exit status and its output."""
    text = finished.output.read_text(encoding="utf-8", errors="replace") if finished.output.exists() else ""
    if finished.ok or finished.returncode == 5:
        return None
    if finished.returncode in (STATUS["not_finite"], STATUS["departs"]):
        found = [line for line in text.splitlines() if line.startswith("not finite: ")]
        nan = any(" 0 nan " not in line for line in found)
        return _of_values(finished.returncode == STATUS["not_finite"], nan, True)
    said = [line for line in text.splitlines() if line.startswith("phase: ")]
    failure = read_failure(finished)
    return of_ending(finished, failure, said[-1].removeprefix("phase: ") if said else "") if failure else None


def of_ending(finished: Finished, failure: Failure, phase: str) -> FailureShown:
    """A child that was killed or raised. Raises `ProblemError` for any other end."""
    if finished.ending not in ("exit", "signal"):
        raise ProblemError(
            f"it ended with {finished.ending}, which smaller programs cannot be held against",
            value=failure.text,
            allowed="a crash, an exception, an output that is not finite or departs from eager",
            next_call="trace_launches",
        )
    kind: Kind = "crash" if finished.signal else "error"
    return FailureShown(
        kind=kind, phase=phase, signal=finished.signal, family=failure.family, text=failure.text[:300]
    )


def _of_values(not_finite: bool, nan: bool, departs: bool) -> FailureShown | None:
    if not_finite:
        return FailureShown(kind="not_finite", phase="calling", nan=nan)
    return FailureShown(kind="departs", phase="calling") if departs else None
