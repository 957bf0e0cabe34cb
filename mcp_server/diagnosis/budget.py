"""A budget that ended before the cause was found: in which phase, what was known, and how to go on."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.errors import ProblemError
from mcp_server.model import NextStep, Verdict
from mcp_server.steps.context import Context

MORE = 4  # times the budget that did not do
LEAST_S = 120.0
MOST_S = 86_400.0
MOST_OPEN = 3
MOST_TEXT = 200  # characters of an error


class BudgetTooShort(ProblemError):
    """A run was cut short by the budget alone, and so is evidence of nothing."""


def with_budget(verdict: Verdict, case: Case, context: Context) -> Verdict:
    """`verdict`, and where it is not proven and the budget ended: what the reader has to know to go on."""
    if not case.cut_short or (verdict.outcome == "fault" and verdict.confidence == "proven"):
        return verdict
    step = going_on(case, context)
    waited = case.clock.waited_s
    told = (
        f"The budget of {case.budget_s:g} s ended during {_phases(case)}"
        f"{f', {waited:.0f} s of waiting for a GPU not counted' if waited >= 1 else ''}. "
        f"Known by then: {known(case)}. To go on from here: {_command(step)}"
    )
    return verdict.model_copy(
        update={
            "summary": " ".join(filter(None, (verdict.summary.strip(), told))),
            "next_steps": [step, *verdict.next_steps],
        }
    )


def _phases(case: Case) -> str:
    return ", ".join(dict.fromkeys(case.cut_short))


def going_on(case: Case, context: Context) -> NextStep:
    """The same diagnosis with more time; what it has gathered is not gathered again."""
    budget_s = min(MOST_S, max(LEAST_S, MORE * case.budget_s))
    return NextStep(
        why=f"the budget ended during {_phases(case)}: go on there, with what was gathered",
        tool="diagnose",
        arguments={"log": context.directory.name, "budget_s": budget_s},
    )


def _command(step: NextStep) -> str:
    """The same as a command."""
    return f"aoti-debug diagnose --resume {step.arguments['log']} --budget-s {step.arguments['budget_s']:g}"


def known(case: Case) -> str:
    """How the workload failed, as far as that was seen, and which categories are open."""
    failed = next((told for run in case.runs.values() if (told := _failed(run))), "")
    still = list(dict.fromkeys(suspect.category for suspect in case.suspects))[:MOST_OPEN]
    parts = [
        failed or ("nothing failed in what was run" if case.runs else "nothing was run to its end"),
        f"open: {', '.join(still)}" if still else "",
    ]
    return "; ".join(filter(None, parts))


def _failed(run: RunSeen) -> str:
    if run.failure == "none":
        return ""
    text = run.root.text[:MOST_TEXT].rstrip(". ") if run.root is not None else ""
    how = run.finished.signal or run.failure.replace("_", " ")
    return f"{run.label}: {how}{f' ({text})' if text else ''}"
