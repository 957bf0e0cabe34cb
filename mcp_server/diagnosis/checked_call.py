"""Which of a program's calls its own check refused."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.model import Evidence


def checked_call(case: Case) -> list[Evidence]:
    """The number of the call among those of its process, where the check told it and it is the suspect."""
    seen = case.capture
    call = seen.refused if seen is not None else None
    if seen is None or call is None or call is not seen.suspect:
        return []
    calls = [each for each in seen.calls if each.pid == call.pid]
    place = calls.index(call) + 1
    if len(calls) == 1:
        return []
    fact = f"the check that failed looked at what call {place} of {len(calls)} gave: that call was examined"
    return [Evidence(step="capture", fact=fact)]
