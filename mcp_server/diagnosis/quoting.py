"""The output of the failing run as evidence."""

from __future__ import annotations

from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence


def said(error: ErrorFact) -> Evidence:
    """What the plain run printed, and where."""
    return Evidence(step="run", fact=error.text[:300], source=f"line {error.line} of the output")
