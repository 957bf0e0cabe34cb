"""A server with what the official conformance suite calls by name: operations, a resource, prompts.

It uses the server class of the product with other operations, so the suite checks the product's protocol.
"""

import socket
import sys
from pathlib import Path

import anyio
import uvicorn

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.model import Record
from mcp_server.operations.arguments import READS, Arguments, Operation
from mcp_server.runtime.context import Context
from mcp_server.server.app import exit_on_signals, make_server
from mcp_server.server.tools import ToolServer


class NoArguments(Arguments):
    """Nothing."""


class Said(Record):
    """What was said."""

    text: str


async def say(_context: Context, _arguments: NoArguments) -> Said:
    return Said(text="This is a simple text response for testing.")


async def refuse(_context: Context, _arguments: NoArguments) -> Said:
    raise ProblemError("this tool intentionally returns an error")


async def progress(context: Context, _arguments: NoArguments) -> Said:
    for part in (0, 50, 100):
        context.progress(f"{part} of 100")
        await anyio.sleep(0.4)
    return Said(text="done")


OPERATIONS = (
    Operation("test_simple_text", "Text", "Says a text.", NoArguments, READS, say),
    Operation("test_error_handling", "Refuse", "Refuses.", NoArguments, READS, refuse),
    Operation("test_tool_with_progress", "Progress", "Reports progress.", NoArguments, READS, progress),
)


def suite_server(state: Path) -> ToolServer:
    """The server, with its jobs in `state`."""
    server = make_server(Store(state), OPERATIONS)

    @server.resource("test://static-text", name="static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://template/{id}/data", name="template", mime_type="application/json")
    def template(id: str) -> str:
        return f'{{"id": "{id}", "data": "Data for ID: {id}"}}'

    @server.prompt("test_simple_prompt")
    def simple_prompt() -> str:
        """Without arguments."""
        return "This is a simple prompt for testing."

    @server.prompt("test_prompt_with_arguments")
    def prompt_with_arguments(arg1: str, arg2: str) -> str:
        """With two arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    return server


def main() -> None:
    """Serve on HTTP for the suite. The product serves MCP only on stdio."""
    exit_on_signals()
    app = suite_server(Path(sys.argv[1])).streamable_http_app()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        anyio.run(uvicorn.Server(uvicorn.Config(app, log_config=None)).serve, [listening])


if __name__ == "__main__":
    main()
