"""How a run ended, and what the user sees of the workload. A call that returns may still be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.diagnosis.interventions.base import Failure
from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.runtime.context import E, WorkerRun
from mcp_server.worker import events
from mcp_server.worker.capture.events import TensorFacts

Seen = Literal["wrong-output", "nan", "crash", "hang", "memory"]


@dataclass(frozen=True)
class Symptom:
    """What the user sees, and the expected outputs.

    `expect` is a file with one tensor for each output, compared with `rtol` and `atol` (None: the dtype's).
    They are about the call of a package, or about that of a program that failed, else its last one.
    `check` are the words of a command that gets a file of outputs, and ends with status 0 for good ones.
    `program` is the exported program of a package: what eager gives is right.
    """

    seen: Seen | None = None
    expect: Path | None = None
    rtol: float | None = None
    atol: float | None = None
    check: tuple[str, ...] = ()
    program: Path | None = None

    @property
    def judges(self) -> bool:
        """Whether it says which outputs are correct."""
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
    """One run of the user's program, or of the call in our worker. `label` names its conditions.

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
        """Facts of each output of the last call that returned; empty if none did."""
        called = self.last(events.Called)
        return called.outputs if called is not None else []

    @property
    def failure(self) -> Failure:
        """How the run failed, as far as its end shows."""
        ending = self.finished.ending
        if ending in ("timeout", "out_of_memory", "signal"):
            return ending
        if not self.finished.ok:
            # Ended by its own watchdog: `faulthandler.dump_traceback_later(SECONDS, exit=True)`.
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
        """Whether the outputs are what the user expects: by the file, by the check command, or by both."""
        compared, checked = self.last(events.ComparedExpected), self.last(events.CheckFacts)
        given = compared is not None and compared.given
        if not given and checked is None:
            return False  # nobody said which outputs are right
        return not (given and compared and not compared.equal) and not (checked and checked.status)

    @property
    def differs(self) -> bool:
        """Whether the outputs have the shapes of the script's own reference, but different values."""
        compared = self.last(events.ComparedExpected)
        if compared is None or compared.equal:
            return False
        return all(each.same_shape for each in compared.outputs)

    @property
    def left_alone(self) -> list[int]:
        """Inputs that the call should have changed but did not, at addresses that make the package copy."""
        return [each.input for each in self._looked_at if each.misaligned and not each.changed]

    @property
    def changed(self) -> list[int]:
        """Inputs that the call should have changed and did."""
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
    # A replay reports the program's own comparison under the same name, which always fits.
    if compared is not None and compared.given and compared.layout:
        expected, given = compared.counts
        what = f"the call gives {given} tensors, the expectation has {expected}"
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
