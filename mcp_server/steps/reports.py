"""Reads what the worker reported: a file of JSON lines, which may end in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mcp_server.json_text import read_json

Event = dict[str, Any]


def read_events(path: Path, but: Sequence[str] = ()) -> tuple[Event, ...]:
    """Events of a report or journal, less those named in `but`; no file is no events."""
    left_out = tuple(map(_beginning, but))
    return tuple(_events(path, lambda line: not line.startswith(left_out)))


def stream_events(path: Path, name: str) -> Iterator[Event]:
    """The events of that name, one after another."""
    return _events(path, lambda line: line.startswith(_beginning(name)))


def _beginning(name: str) -> str:
    """How the line of such an event begins (worker/report.py)."""
    return f'{{"event": "{name}"'


def _events(path: Path, wanted: Callable[[str], bool]) -> Iterator[Event]:
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in filter(wanted, file):
            try:
                event = read_json(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event
