"""Reading what a child printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mcp_server.evidence.facts import LogFacts
from mcp_server.evidence.log import read_log


def read_output(path: Path, process: str = "") -> LogFacts:
    """Facts of an output file, of one process where it is named; no facts when the child left no file."""
    return read_log(_lines(path), process)


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
