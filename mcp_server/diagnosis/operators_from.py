"""Where the operators came from with which the call of a program was made again."""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.model import Evidence
from mcp_server.steps.replay_plan import failing_phase

MISSING = "op_not_registered"
MOST_LINES = 6


def operator_missing_here(run: RunSeen, case: Case) -> str:
    """Why a call cannot be made outside its program: an operator that the program had is missing; or "".

    Such a run shows nothing about the program.
    """
    root, seen = run.root, case.capture
    if root is None or root.family.id != MISSING or seen is None:
        return ""
    op = root.fields.get("operator") or root.fields.get("op") or ""
    phase = failing_phase(seen, ended_well=seen.finished.ok)
    told = phase.error.text if phase is not None and phase.error is not None else ""
    own = case.runs.get("script")
    if (own is not None and own.family == MISSING) or (op and op in told):
        return ""
    refused = next((str(event["refused"]) for event in _taken(run) if event["refused"]), "")
    why = f" ({refused})" if refused else ""
    return f"the call cannot be made outside the program, which alone registers {op}{why}"


def operators_from(case: Case) -> list[Evidence]:
    """The lines of a program that were run, and no others, for the operators of its call."""
    plain = case.runs.get("plain")
    found = [event for event in _taken(plain) if event["lines"]] if plain is not None else []
    return [Evidence(step="run", fact=_fact(event["file"], event["lines"])) for event in found[:1]]


def _taken(run: RunSeen) -> list[dict[str, object]]:
    return run.worker.all("operators_taken") if run.worker is not None else []


def _fact(file: object, lines: object) -> str:
    assert isinstance(lines, list)
    told = ", ".join(str(line) for line in lines[:MOST_LINES]) + (", …" if len(lines) > MOST_LINES else "")
    return (
        f"to make the call again, its operators were registered as at line {told} of {Path(str(file)).name}; "
        "the program itself was not run for that"
    )
