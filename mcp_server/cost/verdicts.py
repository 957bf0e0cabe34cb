"""The verdicts of the category `cost`: a timed change, work visible in a call, or no loss found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.model import Component, Confirmed, Cost, Evidence, Fix, FixRun, Outcome, Verdict

ISA_OK = "TORCHINDUCTOR_VEC_ISA_OK"  # skips the test of the processor's vector instructions
LEAST_WIN = 1.15  # for the lower quartile of the paired ratios


@dataclass(frozen=True)
class Lever:
    """A change that may win time: its description (`with one thread`), what to write, and what it costs."""

    what: str
    fix: str
    code: str = ""
    note: str = ""


@dataclass(frozen=True)
class Win:
    """A timed lever: seconds before, with the change, and after undoing it, and how sure the gain is."""

    lever: Lever
    before: float
    after: float
    again: float
    spread: str
    subject: Literal["call", "load", "build"] = "call"
    same: str = ""

    @property
    def fix(self) -> Fix:
        ran = FixRun(result=f"the {self.subject} is {self.spread}", command="")
        return Fix(text=self.lever.fix, after=self.lever.code, ran=ran)

    @property
    def confirmed(self) -> Confirmed:
        return Confirmed(
            what=self.lever.what,
            subject=self.subject,
            before=f"took {told(self.before)}",
            after=f"took {told(self.after)}{self.same}",
            again=f"took {told(self.again)}",
            side_effects=self.lever.note,
        )


def told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def loss(
    headline: str,
    summary: str,
    party: Component,
    how: Win | Fix,
    cost: Cost,
    evidence: Sequence[Evidence] = (),
    unproven: str = "",
) -> Verdict:
    """Build the verdict for a proven or likely loss. `unproven` says what would prove the latter."""
    won = how if isinstance(how, Win) else None
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="proven" if won is not None else "likely",
        headline=headline,
        summary=summary,
        guilty=party,
        evidence=list(evidence),
        fix=how.fix if isinstance(how, Win) else how,
        confirmed=won.confirmed if won is not None else None,
        remarks=[f"Not proven: {unproven}"] if unproven else [],
        cost=cost,
    )


def no_loss(
    summary: str, cost: Cost, evidence: Sequence[Evidence] = (), outcome: Outcome = "no_fault"
) -> Verdict:
    """Build the verdict for no loss; `inconclusive` if too little could be timed to say so."""
    return Verdict(
        outcome=outcome, confidence="possible", summary=summary, evidence=list(evidence), cost=cost
    )
