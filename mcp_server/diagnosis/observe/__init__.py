"""The base of all observations, and the time limits of their runs."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.diagnosis.state import HANGING_S, DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.jobs.child import Finished
from mcp_server.model import PackageWorkload
from mcp_server.runtime import context
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import BudgetTooShort, check_built

SHORTEST_S = 1.0
EAGER_SHARE = 0.4  # of the remaining budget; leaves time for the call if eager mode also hangs
EAGER_S = 120.0
EAGER_OF_HANG_S = 30.0  # limit after a hang of the program, as eager mode may also hang


# The share of the open question that an observation answers. The planner prefers the largest share per
# second (`diagnose.choose`), so only their ratios count.
NEEDED, DECIDES, REMOVES, LOCATES, EXPLAINS = 1.0, 0.9, 0.85, 0.8, 0.7
COMPARES, SEARCHES, GUESSES, LOOKS_TWICE = 0.6, 0.5, 0.3, 0.25
REASONS = {
    NEEDED: "a fact on which all the others build",
    DECIDES: "shows the failure by itself, or the value at fault",
    REMOVES: "removes a suspect: worth less than the unchanged call, and more than a second view of it",
    LOCATES: "a second view, which names the party at fault",
    EXPLAINS: "explains a sign that was seen",
    COMPARES: "most failures of this kind show there",
    SEARCHES: "the question is open, and nothing cheaper answers it",
    GUESSES: "nothing points there, but a silent fault is possible",
    LOOKS_TWICE: "the call returned, and is looked at once more",
}


class Observation(ABC):
    """Something that can be observed. The classes of this folder are discovered automatically.

    Its facts are arguments in the `class` line. The default for `name` is the class name in snake case.
    `seconds` is the approximate cost. `alone`: it must not share the machine with another run. `extra`: the
    verdict does not need it, and it runs only if the budget has room. `best` is its largest gain (`REASONS`).
    `decisive`: it settles the case, so it runs before cheaper observations that may not.
    """

    name: str
    seconds: float
    best: float
    alone: bool = False
    extra: bool = False
    decisive: bool = False

    def __init_subclass__(cls, name: str = "", **facts: float) -> None:
        cls.name = name or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        for fact, value in facts.items():
            assert fact in Observation.__annotations__, fact
            setattr(cls, fact, value)

    @abstractmethod
    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect], /) -> float:
        """How much of the open question it would answer (0-1). 0 if it cannot run or shows nothing."""

    def after_proof(self, _case: DiagnosisState) -> bool:
        """Whether this observation may contribute once a cause is proven."""
        return self.extra

    @abstractmethod
    async def act(self, case: DiagnosisState, context: Context, /) -> None:
        """Observe, and write what was seen into the state."""


@dataclass(frozen=True)
class Limit:
    """Seconds for one run. `cut` marks a limit that the budget made too short to show a hang."""

    seconds: float
    cut: bool

    def check(self, finished: Finished, what: str) -> None:
        """Raise BudgetTooShort if the budget ended the run, which then proves nothing."""
        check_built(finished, what)
        if self.cut and finished.ending == "timeout":
            raise BudgetTooShort(
                f"{what} did not end within the {self.seconds:.0f} s that the budget left for it. "
                "It may be slow or hang: give a larger budget_s"
            )


def limit_of(case: DiagnosisState, *, share: float = 1.0) -> Limit:
    """The limit of the workload, but at most a `share` of the remaining budget; less after a hang."""
    asked = case.workload.timeout_s if case.workload else HANGING_S
    if hangs(case):
        asked = min(asked, HANGING_S)
    left = max(case.seconds_left * share, SHORTEST_S)
    return Limit(min(asked, left), cut=left < min(asked, HANGING_S))


def hangs(case: DiagnosisState) -> bool:
    """Whether the program, or the repeated call, was ended by its time limit."""
    return "timeout" in (case.failure_of("script"), case.failure_of("plain"))


def eager_limit(case: DiagnosisState) -> float:
    longest = EAGER_OF_HANG_S if hangs(case) else EAGER_S
    return min(limit_of(case, share=EAGER_SHARE).seconds, longest)


def to_be_placed(case: DiagnosisState) -> bool:
    """Whether the inputs decide on which GPU to load the package. With one GPU there is no choice."""
    workload = case.workload
    unsaid = isinstance(workload, PackageWorkload) and workload.device_index < 0
    return unsaid and case.device == "cuda" and context.SECOND_GPU.exists()


def place(case: DiagnosisState) -> None:
    """Load the package on the device of its inputs, if no device was asked for.

    Saved inputs are on the device of their call. If they are on several devices, nothing is changed.
    """
    tensors = case.given.tensors if case.given is not None else ()
    indices = {tensor.device_index for tensor in tensors if tensor.device_type == "cuda"}
    index = indices.pop() if len(indices) == 1 else None
    if not index or case.call is None or not to_be_placed(case):
        return
    case.call.request["device_index"] = index
    note = f"no device_index was given: the package is loaded on cuda:{index}, where its inputs are"
    case.notes.append(note)
