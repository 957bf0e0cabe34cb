"""The MCP face: declares tools, resources and prompts, and serves them on stdio or HTTP. It decides nothing.

Never imports torch: a workload lives in the worker, and the server starts in well under a second.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer

from mcp_server import __version__
from mcp_server.faces.completions import add_completions
from mcp_server.faces.instructions import INSTRUCTIONS
from mcp_server.faces.listening import Listening
from mcp_server.faces.ownership import Ownership
from mcp_server.faces.prompts import add_prompts
from mcp_server.faces.resources import add_resources
from mcp_server.faces.running import Running
from mcp_server.faces.server_log import log_briefly
from mcp_server.faces.tasks import Tasks
from mcp_server.faces.tools import ToolServer
from mcp_server.jobs.manager import Manager, most_at_once
from mcp_server.jobs.shutdown import exit_on_signals
from mcp_server.jobs.store import Store
from mcp_server.operations.declaration import Operation
from mcp_server.operations.table import OPERATIONS
from mcp_server.operations.work import open_store


def make_server(
    store: Store, operations: tuple[Operation, ...] = OPERATIONS, *, share_jobs: bool = False
) -> ToolServer:
    """A server of `operations` whose jobs keep their files in `store` and end with it.

    Clients on HTTP see their own jobs, or with `share_jobs` all. Raises ProblemError for a wrong setting.
    """
    ownership, at_once = Ownership(shared=share_jobs), most_at_once()
    running = Running(ownership)

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncIterator[Manager]:
        async with anyio.create_task_group() as tasks, Manager.open(store, at_once) as manager:
            with running.using(manager, tasks):
                yield manager
            tasks.cancel_scope.cancel()

    server = ToolServer(
        "aoti-debug",
        running.tools(operations),
        title="AOTInductor debugger",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        lifespan=lifespan,
        extensions=[Tasks(running, operations)],
        subscriptions=False,
        middleware=[ownership.middleware],
    )
    add_resources(server, store, ownership)
    add_prompts(server)
    add_completions(server, store, ownership)
    return server


def serve() -> None:
    """Serve on stdio until the client closes it or a signal comes; then no job is left."""
    log_briefly()
    exit_on_signals()
    _enter_project()
    make_server(open_store()).run("stdio")


def serve_http(listening: Listening) -> None:
    """Serve on HTTP until a signal comes; then no job is left. Raises ProblemError for a bad address."""
    from mcp_server.faces import http  # its web server would delay the start on stdio

    log_briefly()
    exit_on_signals()
    http.serve_http(make_server(open_store(), share_jobs=listening.share_jobs), listening)


def _enter_project() -> None:
    """Relative paths start where the client works: some start servers elsewhere and say so."""
    project = os.environ.get("CLAUDE_PROJECT_DIR", "")
    if project and Path(project).is_dir():
        os.chdir(project)
