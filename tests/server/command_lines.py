"""Command lines as our own parser sees them, without anything being run."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import typer

from mcp_server.cli.app import app


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
