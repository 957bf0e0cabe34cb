"""How long one run may take, and when a run that was cut short says nothing."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.diagnosis.budget import BudgetTooShort
from mcp_server.diagnosis.case import Case
from mcp_server.jobs.types import Finished

HANGING_S = 45.0  # long enough to call it a hang, for a call that has not ended in the program either
SHORTEST_S = 1.0
EAGER_SHARE = 0.4  # of what the budget leaves: a model that hangs in eager, too, must leave time for its call
EAGER_S = 120.0
EAGER_OF_HANG_S = 30.0  # once the program hangs: eager may hang alike, and need not be shown to


@dataclass(frozen=True)
class Limit:
    """Seconds for one run. `cut` marks a limit that the budget made too short to show a hang."""

    seconds: float
    cut: bool

    def check(self, finished: Finished, what: str) -> None:
        """Raise BudgetTooShort for a run that only the budget ended: it is evidence of nothing."""
        if self.cut and finished.ending == "timeout":
            raise BudgetTooShort(
                f"{what} did not end within the {self.seconds:.0f} s that the budget left for it, "
                "too short to tell a slow one from one that hangs: give a larger budget_s"
            )


def limit_of(case: Case, *, share: float = 1.0) -> Limit:
    """The workload's own limit, a `share` of what the budget leaves, little for a known hang."""
    asked = case.workload.timeout_s if case.workload else HANGING_S
    if hangs(case):
        asked = min(asked, HANGING_S)
    left = max(case.seconds_left * share, SHORTEST_S)
    return Limit(min(asked, left), cut=left < min(asked, HANGING_S))


def hangs(case: Case) -> bool:
    """Whether the program, or the call made again, was ended by its time limit."""
    return any(label in case.runs and case.runs[label].failure == "timeout" for label in ("script", "plain"))


def eager_limit(case: Case) -> float:
    """Seconds for the exported program in eager mode."""
    longest = EAGER_OF_HANG_S if hangs(case) else EAGER_S
    return min(limit_of(case, share=EAGER_SHARE).seconds, longest)
