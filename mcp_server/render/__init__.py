"""Results as text for people: formatters yield what rich can print, `write` prints it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from rich.console import Console, RenderableType

from mcp_server.model import Record, Verdict
from mcp_server.render.text import checkup_lines, record_lines, verdict_lines
from mcp_server.tools.machine import Checkup

__all__ = ["as_text", "rendered", "write"]

PIPE_WIDTH = 10_000
"""Columns in a pipe: nothing is folded there, so that commands can be copied and lines searched."""


def rendered(result: Record, verbose: bool = False) -> Iterator[RenderableType]:
    """The parts of a result in reading order; `verbose` adds to a verdict why each check was chosen."""
    if isinstance(result, Verdict):
        return verdict_lines(result, verbose)
    return checkup_lines(result) if isinstance(result, Checkup) else record_lines(result)


def write(result: Record, verbose: bool = False) -> None:
    """Print a result on stdout, the only function that does: coloured on a terminal, plain in a pipe."""
    console = Console(highlight=False)
    if console.is_terminal:
        for part in rendered(result, verbose):
            console.print(part)
    else:
        sys.stdout.write(as_text(result, verbose=verbose))


def as_text(result: Record, width: int = PIPE_WIDTH, verbose: bool = False) -> str:
    """The result as plain text: no colour, no spaces at the ends of lines."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    for part in rendered(result, verbose):
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
