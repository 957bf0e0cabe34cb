"""Results as text for people: formatters yield what rich can print, `write` prints it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType

from mcp_server.model import Record, Verdict
from mcp_server.render.records import record_lines
from mcp_server.render.verdict import verdict_lines

__all__ = ["rendered", "write"]

PIPE_WIDTH = 200
"""Columns in a pipe, where no terminal says how wide it is; lines are never folded there."""


def rendered(result: Record) -> Iterator[RenderableType]:
    """The parts of a result in reading order."""
    return verdict_lines(result) if isinstance(result, Verdict) else record_lines(result)


def console(*, stderr: bool = False) -> Console:
    """A console that colours on a terminal and stays plain and wide in a pipe."""
    probe = Console(stderr=stderr)
    return probe if probe.is_terminal else Console(stderr=stderr, width=PIPE_WIDTH, soft_wrap=True)


def write(result: Record) -> None:
    """Print a result on stdout: the only function that prints results."""
    out = console()
    for part in rendered(result):
        out.print(part)
