"""Drives a real server process with the SDK's own client, in both protocol eras."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

ROOT = Path(__file__).resolve().parents[2]
Era = Literal["legacy", "auto"]
ERAS: tuple[Era, ...] = ("legacy", "auto")


def sample_server(state: Path) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "tests.server.sample", str(state)], cwd=ROOT
    )


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
    """The structured result, after a check that the text channel carries the same, or a verdict's lines."""
    assert not result.is_error, text_of(result)
    assert result.structured_content is not None
    if "format_version" in result.structured_content:
        assert result.structured_content["summary"][:80] in text_of(result)
    else:
        assert json.loads(text_of(result)) == result.structured_content
    return dict(result.structured_content)
