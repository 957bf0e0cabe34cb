"""Chooses what to observe next, how long a run may take, and what is said when the budget ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Finished
from mcp_server.model import NextStep, Verdict
from mcp_server.tools.context import Context

MORE = 4  # times the budget that did not do
LEAST_S = 120.0
MOST_S = 86_400.0
MOST_OPEN = 3
MOST_TEXT = 200  # characters of an error


class BudgetTooShort(ProblemError):
    """A run was cut short by the budget alone, and so is evidence of nothing."""


def with_budget(verdict: Verdict, case: DiagnosisState, context: Context) -> Verdict:
    """`verdict`, and where it is not proven and the budget ended: what the reader has to know to go on."""
    if not case.cut_short or (verdict.outcome == "fault" and verdict.confidence == "proven"):
        return verdict
    step = going_on(case, context)
    waited = case.clock.waited_s
    told = (
        f"The budget of {case.budget_s:g} s ended during {_phases(case)}"
        f"{f' ({waited:.0f} s of waiting for a GPU are not counted)' if waited >= 1 else ''}. "
        f"Known so far: {known(case)}. To continue: {_command(step)}"
    )
    return verdict.model_copy(
        update={
            "summary": " ".join(filter(None, (verdict.summary.strip(), told))),
            "next_steps": [step, *verdict.next_steps],
        }
    )


def _phases(case: DiagnosisState) -> str:
    return ", ".join(dict.fromkeys(case.cut_short))


def going_on(case: DiagnosisState, context: Context) -> NextStep:
    """The same diagnosis with more time; what it has gathered is not gathered again."""
    budget_s = min(MOST_S, max(LEAST_S, MORE * case.budget_s))
    return NextStep(
        why=f"continue where the budget ended ({_phases(case)}); finished checks are not repeated",
        tool="diagnose",
        arguments={"log": context.directory.name, "budget_s": budget_s},
    )


def _command(step: NextStep) -> str:
    """The same as a command."""
    return f"aoti-debug diagnose --resume {step.arguments['log']} --budget-s {step.arguments['budget_s']:g}"


def known(case: DiagnosisState) -> str:
    """How the workload failed, as far as that was seen, and which categories are open."""
    failed = next((told for run in case.runs.values() if (told := _failed(run))), "")
    still = list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_OPEN]
    parts = [
        failed or ("no run has failed" if case.runs else "no run has finished"),
        f"possible causes: {', '.join(still)}" if still else "",
    ]
    return "; ".join(filter(None, parts))


def _failed(run: RunSeen) -> str:
    if run.failure == "none":
        return ""
    text = run.root.text[:MOST_TEXT].rstrip(". ") if run.root is not None else ""
    how = run.finished.signal or run.failure.replace("_", " ")
    return f"{run.label}: {how}{f' ({text})' if text else ''}"


MOST_NAMED = 3  # open categories in one decision


class Action(Protocol):
    """Something that can be observed.

    `seconds` is about what it costs. `alone` marks one that must not share the machine with another run.
    `gain` is 0 when it cannot act or would tell nothing, else how much of the open question it answers (0-1).
    """

    seconds: float
    alone: bool

    @property
    def name(self) -> str: ...

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float: ...

    async def act(self, case: DiagnosisState, context: Context) -> None: ...


@dataclass(frozen=True)
class Choice:
    """An action with what spoke for it."""

    action: Action
    gain: float

    @property
    def worth(self) -> float:
        return self.gain / (self.action.seconds + 1)


def choose(actions: Sequence[Action], case: DiagnosisState, suspects: Sequence[Suspect]) -> list[Choice]:
    """The best action, and those that can run beside it; empty when nothing is worth its time.

    What is expected to take longer than the budget leaves is tried only when nothing else can be, and nothing
    has run yet: then it is all that there is to learn from.
    """
    possible = _possible(actions, case)
    affordable = [action for action in possible if action.seconds < case.seconds_left]
    return _best(affordable, case, suspects) or ([] if case.runs else _best(possible, case, suspects))


def too_long(actions: Sequence[Action], case: DiagnosisState, suspects: Sequence[Suspect]) -> list[str]:
    """What would be worth its time, had the budget not too little left for it."""
    return [choice.action.name for choice in _best(_possible(actions, case), case, suspects)]


def _possible(actions: Sequence[Action], case: DiagnosisState) -> list[Action]:
    return [action for action in actions if action.name not in case.done]


def _best(actions: Sequence[Action], case: DiagnosisState, suspects: Sequence[Suspect]) -> list[Choice]:
    choices = [Choice(action, action.gain(case, suspects)) for action in actions]
    best = sorted((c for c in choices if c.gain > 0), key=lambda c: c.worth, reverse=True)
    if not best or best[0].action.alone:
        return best[:1]
    return [best[0], *(c for c in best[1:2] if not c.action.alone)]


def decision(choice: Choice, case: DiagnosisState) -> str:
    """A choice in words: what spoke for it, and which categories were open then."""
    still = list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_NAMED]
    told = f"gain {choice.gain:.2f}, about {choice.action.seconds:.0f} s"
    return f"{choice.action.name} ({told}{'; open: ' + ', '.join(still) if still else ''})"


async def perform(choices: Sequence[Choice], case: DiagnosisState, context: Context) -> None:
    """Do the chosen actions side by side; one that cannot do its job leaves a note."""
    for choice in choices:
        case.done.append(choice.action.name)
        case.decisions.append(decision(choice, case))
    case.running = [choice.action.name for choice in choices]
    async with anyio.create_task_group() as group:
        for choice in choices:
            group.start_soon(_attempt, choice.action, case, context)


async def _attempt(action: Action, case: DiagnosisState, context: Context) -> None:
    try:
        await action.act(case, context)
    except BudgetTooShort as problem:
        case.cut_short.append(action.name)
        case.notes.append(f"{action.name}: {problem}")
    except ProblemError as problem:
        case.notes.append(f"{action.name}: {problem}")
    except Exception as error:  # one broken observation must not cost the others
        logging.getLogger(__name__).exception("%s broke", action.name)
        case.notes.append(f"{action.name} broke: {type(error).__name__}: {error}")


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


def limit_of(case: DiagnosisState, *, share: float = 1.0) -> Limit:
    """The workload's own limit, a `share` of what the budget leaves, little for a known hang."""
    asked = case.workload.timeout_s if case.workload else HANGING_S
    if hangs(case):
        asked = min(asked, HANGING_S)
    left = max(case.seconds_left * share, SHORTEST_S)
    return Limit(min(asked, left), cut=left < min(asked, HANGING_S))


def hangs(case: DiagnosisState) -> bool:
    """Whether the program, or the call made again, was ended by its time limit."""
    return any(label in case.runs and case.runs[label].failure == "timeout" for label in ("script", "plain"))


def eager_limit(case: DiagnosisState) -> float:
    """Seconds for the exported program in eager mode."""
    longest = EAGER_OF_HANG_S if hangs(case) else EAGER_S
    return min(limit_of(case, share=EAGER_SHARE).seconds, longest)
