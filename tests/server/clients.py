"""Real servers driven by the SDK's client, results as agents get them, and command lines."""

import json
import shlex
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import anyio
import typer
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from mcp_server.cli.app import app
from mcp_server.server.tools import compact
from tests.conftest import ROOT

Era = Literal["legacy", "auto"]
ERAS: tuple[Era, ...] = ("legacy", "auto")


def sample_server(state: Path) -> StdioServerParameters:
    args = ["-m", "tests.server.sample", str(state)]
    return StdioServerParameters(command=sys.executable, args=args, cwd=ROOT)


def real_server(state: Path, **env: str) -> StdioServerParameters:
    variables = {"AOTI_DEBUG_STATE": str(state), **env}
    return StdioServerParameters(command=sys.executable, args=["-m", "mcp_server"], cwd=ROOT, env=variables)


def drive(
    server: StdioServerParameters, talk: Callable[[Client], Awaitable[None]], era: Era = "auto"
) -> None:
    """Run `talk` with a connected client."""

    async def main() -> None:
        with anyio.fail_after(600):
            async with Client(server, mode=era) as client:
                await talk(client)

    anyio.run(main)


def text_of(result: CallToolResult) -> str:
    assert len(result.content) == 1
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


def data_of(result: CallToolResult) -> dict[str, Any]:
    """The structured result. The text channel must carry the same, or the lines of the verdict."""
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    if "format_version" in result.structured_content:
        assert result.structured_content["summary"][:80] in text_of(result)
    else:
        assert json.loads(text_of(result)) == result.structured_content
    return dict(result.structured_content)


MOST_TOKENS = 1000  # the main fields of a verdict, without commands

# The least number of characters of compact JSON per token is 2.77 in 117 recorded verdicts (o200k
# vocabulary). The mean is 3.3.
CHARACTERS_PER_TOKEN = 2.75


def tokens(result: object) -> float:
    """An upper limit of the tokens of a result, which both channels of an answer carry."""
    return len(compact(result)) / CHARACTERS_PER_TOKEN


@cache
def _group() -> Any:
    return typer.main.get_command(app)


def parse(command: str) -> None:
    """Parse a command as our command line does. Fails for an unknown command, option or missing argument."""
    program, name, *arguments = shlex.split(command)
    assert program == "aoti-debug"
    context = _group().make_context(program, ["--help"], resilient_parsing=True)
    subcommand = _group().get_command(context, name)
    assert subcommand is not None, name
    subcommand.make_context(name, arguments, parent=context)
