"""The launch at fault as lines of PyTorch, for the verdict."""

from __future__ import annotations

import logging

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import Component
from mcp_server.package.pytorch.program import write_program

MOST_LINES = 12


def lines_of(party: Component | None, case: DiagnosisState) -> list[str]:
    """The launch of a component, where it is read and short; a verdict does without it otherwise."""
    number = party.launch_index if party is not None else None
    if number is None or case.view is None:
        return []
    try:
        program = write_program(case.view, only=[number])
    except Exception:  # a verdict must not be lost for its illustration
        logging.getLogger(__name__).exception("launch %d was not written", number)
        return []
    found = next((each for each in program.launches if each.index == number), None)
    lines = program.text_of([number]).splitlines() if found is not None and not found.not_read else []
    return lines if len(lines) <= MOST_LINES else []
