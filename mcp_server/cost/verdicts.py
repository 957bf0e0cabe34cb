"""The verdicts of the category `cost`: a change that was timed, work that a call shows, or no loss found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.model import Component, Confirmed, Cost, Evidence, Fix, FixRun, Verdict

LEAST_WIN = 1.15  # of the lower quartile of the paired ratios


@dataclass(frozen=True)
class Win:
    """A change that was timed: seconds as it is, changed, as it is again, and how sure the gain is."""

    what: str
    before: float
    after: float
    again: float
    spread: str
    fix: str
    code: str
    subject: Literal["call", "load", "build"] = "call"
    note: str = ""
    same: str = ""


def told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def proven(
    win: Win, headline: str, summary: str, party: Component, cost: Cost, evidence: Sequence[Evidence] = ()
) -> Verdict:
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="proven",
        headline=headline,
        summary=summary,
        guilty=party,
        evidence=list(evidence),
        fix=Fix(text=win.fix, after=win.code, ran=FixRun(result=win.spread, command="")),
        confirmed=Confirmed(
            what=win.what,
            subject=win.subject,
            before=f"took {told(win.before)}",
            after=f"took {told(win.after)}{win.same}",
            again=f"took {told(win.again)}",
            side_effects=win.note,
        ),
        cost=cost,
    )


def likely(
    headline: str,
    summary: str,
    party: Component,
    fix: Fix,
    why: str,
    cost: Cost,
    evidence: Sequence[Evidence] = (),
) -> Verdict:
    """Work that was seen, and not taken out: `why` says what would prove it."""
    return Verdict(
        outcome="fault",
        category="cost",
        confidence="likely",
        headline=headline,
        summary=summary,
        guilty=party,
        evidence=list(evidence),
        fix=fix,
        remarks=[f"Not proven: {why}"],
        cost=cost,
    )


def no_loss(summary: str, cost: Cost, evidence: Sequence[Evidence] = ()) -> Verdict:
    return Verdict(
        outcome="no_fault", confidence="possible", summary=summary, evidence=list(evidence), cost=cost
    )
