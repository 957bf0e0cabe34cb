"""What an agent gets: how many tokens a result costs it, and command lines as our own parser sees them."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import typer

from mcp_server.cli.app import app
from mcp_server.server.tools import compact

MOST_TOKENS = 2000  # a verdict of version 2 holds the trial and the run of the fix, with their commands

# The fewest characters of compact JSON that a token stood for in 117 recorded verdicts, counted with the
# o200k vocabulary: 2.77. The mean is 3.3.
CHARACTERS_PER_TOKEN = 2.75


def tokens(result: object) -> float:
    """At most so many; both channels of a tool's answer carry this text."""
    return len(compact(result)) / CHARACTERS_PER_TOKEN


@cache
def _group() -> Any:
    return typer.main.get_command(app)


def parse(command: str) -> None:
    """Let our command line parse it; raises for an unknown command, option or missing argument."""
    program, name, *arguments = shlex.split(command)
    assert program == "aoti-debug"
    context = _group().make_context(program, ["--help"], resilient_parsing=True)
    subcommand = _group().get_command(context, name)
    assert subcommand is not None, name
    subcommand.make_context(name, arguments, parent=context)
