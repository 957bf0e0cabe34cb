"""What the user sees, given with a workload: a call that ends well may still be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mcp_server.errors import ProblemError

if TYPE_CHECKING:
    from mcp_server.diagnosis.state import RunSeen

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
