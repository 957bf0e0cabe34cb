"""Chooses what to observe next: what tells the open hypotheses apart, per second spent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from mcp_server.diagnosis.budget import BudgetTooShort
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.steps.context import Context

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

    def gain(self, case: Case, open_suspects: Sequence[Suspect]) -> float: ...

    async def act(self, case: Case, context: Context) -> None: ...


@dataclass(frozen=True)
class Choice:
    """An action with what spoke for it."""

    action: Action
    gain: float

    @property
    def worth(self) -> float:
        return self.gain / (self.action.seconds + 1)


def choose(actions: Sequence[Action], case: Case, suspects: Sequence[Suspect]) -> list[Choice]:
    """The best action, and those that can run beside it; empty when nothing is worth its time.

    What is expected to take longer than the budget leaves is tried only when nothing else can be, and nothing
    has run yet: then it is all that there is to learn from.
    """
    possible = _possible(actions, case)
    affordable = [action for action in possible if action.seconds < case.seconds_left]
    return _best(affordable, case, suspects) or ([] if case.runs else _best(possible, case, suspects))


def too_long(actions: Sequence[Action], case: Case, suspects: Sequence[Suspect]) -> list[str]:
    """What would be worth its time, had the budget not too little left for it."""
    return [choice.action.name for choice in _best(_possible(actions, case), case, suspects)]


def _possible(actions: Sequence[Action], case: Case) -> list[Action]:
    return [action for action in actions if action.name not in case.done]


def _best(actions: Sequence[Action], case: Case, suspects: Sequence[Suspect]) -> list[Choice]:
    choices = [Choice(action, action.gain(case, suspects)) for action in actions]
    best = sorted((c for c in choices if c.gain > 0), key=lambda c: c.worth, reverse=True)
    if not best or best[0].action.alone:
        return best[:1]
    return [best[0], *(c for c in best[1:2] if not c.action.alone)]


def decision(choice: Choice, case: Case) -> str:
    """A choice in words: what spoke for it, and which categories were open then."""
    still = list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_NAMED]
    told = f"gain {choice.gain:.2f}, about {choice.action.seconds:.0f} s"
    return f"{choice.action.name} ({told}{'; open: ' + ', '.join(still) if still else ''})"


async def perform(choices: Sequence[Choice], case: Case, context: Context) -> None:
    """Do the chosen actions side by side; one that cannot do its job leaves a note."""
    for choice in choices:
        case.done.append(choice.action.name)
        case.decisions.append(decision(choice, case))
    case.running = [choice.action.name for choice in choices]
    async with anyio.create_task_group() as group:
        for choice in choices:
            group.start_soon(_attempt, choice.action, case, context)


async def _attempt(action: Action, case: Case, context: Context) -> None:
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
