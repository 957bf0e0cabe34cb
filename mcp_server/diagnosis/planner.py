"""Chooses what to observe next, how long a run may take, and what is said when the budget ends."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Finished
from mcp_server.model import NextStep, Verdict
from mcp_server.tools.context import Context

MORE = 4  # times the budget that did not do
LEAST_S = 120.0
MOST_S = 86_400.0
MOST_OPEN = 3  # categories that are named
MOST_TEXT = 200  # characters of an error


class BudgetTooShort(ProblemError):
    """A run was cut short by the budget alone, and so is evidence of nothing."""


def with_budget(verdict: Verdict, case: DiagnosisState, context: Context) -> Verdict:
    """`verdict`, and where it is not proven and the budget ended: what the reader has to know to go on."""
    if not case.cut_short or (verdict.outcome == "fault" and verdict.confidence == "proven"):
        return verdict
    phases = ", ".join(dict.fromkeys(case.cut_short))
    job, budget_s = context.directory.name, min(MOST_S, max(LEAST_S, MORE * case.budget_s))
    step = NextStep(
        why=f"continue where the budget ended ({phases}); finished checks are not repeated",
        tool="diagnose",
        arguments={"log": job, "budget_s": budget_s},
    )
    waited = case.clock.waited_s
    ended = (
        f"The budget of {case.budget_s:g} s ended during {phases}"
        f"{f' ({waited:.0f} s of waiting for a GPU are not counted)' if waited >= 1 else ''}. "
        f"Known so far: {_known(case)}. "
        f"To continue: aoti-debug diagnose --resume {job} --budget-s {budget_s:g}"
    )
    return verdict.model_copy(
        update={
            "summary": " ".join(filter(None, (verdict.summary.strip(), ended))),
            "next_steps": [step, *verdict.next_steps],
        }
    )


def _known(case: DiagnosisState) -> str:
    """How the workload failed, as far as that was seen, and which categories are open."""
    failed = next((run for run in case.runs.values() if run.failure != "none"), None)
    how = "no run has failed" if case.runs else "no run has finished"
    if failed is not None:
        text = failed.root.text[:MOST_TEXT].rstrip(". ") if failed.root is not None else ""
        end = failed.finished.signal or failed.failure.replace("_", " ")
        how = f"{failed.label}: {end}{f' ({text})' if text else ''}"
    still = open_categories(case)
    return f"{how}; possible causes: {still}" if still else how


def open_categories(case: DiagnosisState) -> str:
    """The categories of the suspects, each once."""
    return ", ".join(list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_OPEN])


class Observation(ABC):
    """Something that can be observed; `registry` finds the classes of `observe/` by themselves.

    `seconds` is about what it costs. `alone` marks one that must not share the machine with another run,
    `extra` one that the verdict is complete without: it is made where the budget has room for it.
    """

    name: str
    seconds: float
    alone: bool = False
    extra: bool = False

    @abstractmethod
    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect], /) -> float:
        """How much of the open question it answers (0-1); 0 when it cannot act or would tell nothing."""

    @abstractmethod
    async def act(self, case: DiagnosisState, context: Context, /) -> None:
        """Observe, and write what was seen into the state."""


@dataclass(frozen=True)
class Choice:
    """An observation with what spoke for it."""

    observation: Observation
    gain: float


def choose(
    observations: Sequence[Observation],
    case: DiagnosisState,
    suspects: Sequence[Suspect],
    *,
    whatever_it_takes: bool = False,
) -> list[Choice]:
    """The best observation, and one that can run at the same time; empty when nothing is worth its time.

    An observation that takes longer than the budget leaves is tried only if there is no other and nothing has
    run yet.
    """
    open_ones = [each for each in observations if each.name not in case.done]
    possible = [each for each in open_ones if whatever_it_takes or each.seconds < case.seconds_left]
    choices = [Choice(each, gain) for each in possible if (gain := each.gain(case, suspects)) > 0]
    best = sorted(choices, key=lambda c: c.gain / (c.observation.seconds + 1), reverse=True)
    if not best and not case.runs and not whatever_it_takes:
        return choose(observations, case, suspects, whatever_it_takes=True)
    if not best or best[0].observation.alone:
        return best[:1]
    return [best[0], *(c for c in best[1:2] if not c.observation.alone)]


async def perform(choices: Sequence[Choice], case: DiagnosisState, context: Context) -> None:
    """Make the chosen observations side by side; one that cannot do its job leaves a note."""
    still = open_categories(case)
    for choice in choices:
        each = choice.observation
        why = f"gain {choice.gain:.2f}, about {each.seconds:.0f} s{f'; open: {still}' if still else ''}"
        case.done.append(each.name)
        case.decisions.append(f"{each.name} ({why})")
    case.running = [choice.observation.name for choice in choices]
    async with anyio.create_task_group() as group:
        for choice in choices:
            group.start_soon(_attempt, choice.observation, case, context)


async def _attempt(observation: Observation, case: DiagnosisState, context: Context) -> None:
    try:
        await observation.act(case, context)
    except ProblemError as problem:
        case.notes.append(f"{observation.name}: {problem}")
        if isinstance(problem, BudgetTooShort):
            case.cut_short.append(observation.name)
    except Exception as error:  # one broken observation must not cost the others
        logging.getLogger(__name__).exception("%s broke", observation.name)
        case.notes.append(f"{observation.name} broke: {type(error).__name__}: {error}")


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
    return "timeout" in (case.failure_of("script"), case.failure_of("plain"))


def eager_limit(case: DiagnosisState) -> float:
    """Seconds for the exported program in eager mode."""
    longest = EAGER_OF_HANG_S if hangs(case) else EAGER_S
    return min(limit_of(case, share=EAGER_SHARE).seconds, longest)
