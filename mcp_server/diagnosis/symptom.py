"""How a run ended, and what the user sees of the workload: a call that ends well may still be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcp_server.diagnosis.interventions.base import Failure
from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Finished
from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.tools.context import Event, WorkerRun

Seen = Literal["wrong-output", "nan", "crash", "hang", "memory"]


@dataclass(frozen=True)
class Symptom:
    """What is seen, and what the outputs are to be.

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
        """Whether it says which outputs are right."""
        return self.expect is not None or bool(self.check)

    @property
    def infinities(self) -> bool:
        """Whether an infinite output is a failure, too."""
        return self.seen == "nan"

    def request(self) -> dict[str, object]:
        """For the worker's `run`."""
        if not self.judges:
            return {}
        return {"expect": self.expect, "rtol": self.rtol, "atol": self.atol, "check": list(self.check)}


@dataclass(frozen=True)
class RunSeen:
    """One run: of the user's program, or of the call in our worker. `label` says under what.

    With `infinities` an infinite output is a failure, too.
    """

    label: str
    finished: Finished
    log: LogFacts
    worker: WorkerRun | None = None
    infinities: bool = False

    @property
    def root(self) -> ErrorFact | None:
        return self.log.root

    def last(self, event: str) -> Event:
        """The last event of that name that the worker reported; empty when there is none."""
        return (self.worker.last(event) if self.worker is not None else None) or {}

    @property
    def outputs(self) -> list[Event]:
        """Facts of each output of the last call that came back; empty when none did."""
        return list(self.last("called").get("outputs", ()))

    @property
    def failure(self) -> Failure:
        """How the run failed, as far as its end tells."""
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
        if any(out.get("nan") or (self.infinities and out.get("inf")) for out in self.outputs):
            return "nonfinite"
        return "differs" if self.differs or self.last("checked_outputs").get("status") else "none"

    @property
    def as_expected(self) -> bool:
        """Whether the outputs are what the user expects: by the file, by the check command, or by both."""
        compared, checked = self.last("compared_expected"), self.last("checked_outputs")
        if not (compared.get("given") or checked):
            return False  # nobody said which outputs are right
        return (not compared.get("given") or bool(compared["equal"])) and not checked.get("status")

    @property
    def differs(self) -> bool:
        """Whether the outputs have the shapes of the script's own reference, and other values."""
        compared = self.last("compared_expected")
        if not compared or compared["equal"]:
            return False
        return all(shape[0] == shape[1] for shape in (pair["shape"] for pair in compared["outputs"]))

    @property
    def frame_tensors(self) -> dict[str, bool]:
        """For each tensor that the program had when its own check failed: whether the call gives it."""
        return dict(self.last("compared_frame_tensors").get("equal", {}))

    @property
    def left_alone(self) -> list[int]:
        """Inputs that the call should change and did not, at addresses at which the package copies them."""
        inputs = self.last("changed_inputs").get("inputs", ())
        return [each["input"] for each in inputs if each["misaligned"] and not each["changed"]]

    @property
    def changed(self) -> list[int]:
        """Inputs that the call should change and did."""
        return [each["input"] for each in self.last("changed_inputs").get("inputs", ()) if each["changed"]]

    @property
    def family(self) -> str | None:
        return self.root.family.id if self.root else None


def misfit(what: str, expect: Path | None = None) -> ProblemError:
    """The error about an expectation that cannot be one of this call's outputs."""
    return ProblemError(
        f"the expectation does not fit the outputs of the call: {what}",
        value=str(expect) if expect is not None else None,
        allowed="a file of torch.save with one tensor for each output, of the shapes of the outputs",
    )


def refuse_misfit(run: RunSeen, symptom: Symptom) -> None:
    """Raise `ProblemError` where the expectation or the check cannot be one of this call's outputs."""
    compared = run.last("compared_expected")
    # A replay reports the program's own comparison under the same name: that fits by its making.
    if compared.get("given") and compared["layout"]:
        expected, given = compared["counts"]
        what = f"the call gives {given} tensors, the expectation has {expected}"
        if expected == given:
            place = next(each["output"] for each in compared["outputs"] if each["layout"])
            what = f"output {place} has {compared['layout']}"
        raise misfit(what, symptom.expect)
    if run.last("checking_outputs") and not run.last("checked_outputs"):
        raise ProblemError(
            "the check command did not end in the time that the budget leaves",
            value=" ".join(symptom.check),
            allowed="a command that ends by itself, or a longer budget",
        )
