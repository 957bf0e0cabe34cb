"""The MCP server: tools and resources on stdio or HTTP, and how it ends on a signal. It decides nothing.

It never imports torch: a workload runs in the worker, and the server starts in well under a second.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.apps import Apps, ResourceCsp

from mcp_server import __version__
from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import Manager, most_at_once
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import Operation
from mcp_server.operations.table import CORE, OPERATIONS
from mcp_server.operations.work import open_store
from mcp_server.server.resources import INSTRUCTIONS, add_resources
from mcp_server.server.running import Ownership, Running
from mcp_server.server.standard_streams import log_briefly
from mcp_server.server.tools import VERDICT_URI, ToolServer

TOOLS_VARIABLE = "AOTI_DEBUG_TOOLS"
_VERDICT_PAGE = Path(__file__).with_name("verdict_app.html")
# The style sheet is in a folder that is not imported, since the import would delay the start.
_STYLE = _VERDICT_PAGE.parent.parent / "report" / "page.css"


def verdict_app() -> Apps:
    """The verdict as an MCP App (SEP-1865): a page that a client with that extension shows beside the text.

    It loads nothing and talks only to its host. Clients without the extension ignore the tools' mark.
    """
    apps = Apps()
    apps.add_html_resource(
        VERDICT_URI,
        verdict_page(),
        name="verdict",
        title="Verdict of aoti-debug",
        description="What a diagnosis found: root cause, crash site, fix and evidence.",
        csp=ResourceCsp(connect_domains=[], resource_domains=[]),
    )
    return apps


def verdict_page() -> str:
    """Return the verdict page with the report's style sheet inlined."""
    html = _VERDICT_PAGE.read_text(encoding="utf-8")
    return html.replace("/* page.css */", _STYLE.read_text(encoding="utf-8"))


def exit_on_signals() -> None:
    """End this process at once on SIGINT, SIGTERM and SIGHUP, with status 128 + n.

    A thread that reads standard input cannot be cancelled, so an orderly end would hang. Ending at once loses
    nothing: the kernel closes the lifelines, and each supervisor then kills its tree. A signal that this
    process was started to ignore (nohup) stays ignored.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _frame: os._exit(128 + received))


def end_with_uv() -> None:
    """End this process when the `uv run` that started it is gone: a killed uv does not end its child.

    This applies only to uv, whose only task is to wait for us. A client may well start a server through a
    process that ends.
    """
    parent = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() != "uv":
            return
        waited = os.pidfd_open(parent)

        def end() -> None:
            select.select([waited], [], [])
            os._exit(128 + signal.SIGHUP)

        threading.Thread(target=end, daemon=True).start()


def listed_tools(given: str = "") -> str:
    """Return `core` or `all`: `given`, else what AOTI_DEBUG_TOOLS says. Raise ProblemError for others."""
    chosen = given or os.environ.get(TOOLS_VARIABLE, "") or "core"
    if chosen not in ("core", "all"):
        raise ProblemError(
            "not a set of tools", value=chosen, allowed=f"core or all, as --tools or {TOOLS_VARIABLE}"
        )
    return chosen


def make_server(
    store: Store,
    operations: tuple[Operation, ...] = OPERATIONS,
    *,
    share_jobs: bool = False,
    tools: str = "",
) -> ToolServer:
    """Create a server of `operations` whose jobs keep their files in `store` and end with it.

    Clients on HTTP see their own jobs, or all jobs with `share_jobs`. `tools` says which tools are listed
    (`core`, `all`); calls of unlisted tools are answered too. Raise ProblemError for an invalid setting.
    """
    hidden = {each.name for each in operations} - CORE if listed_tools(tools) == "core" else set()
    ownership, at_once = Ownership(shared=share_jobs), most_at_once()
    running = Running(ownership)

    @asynccontextmanager
    async def lifespan(_: MCPServer[Any]) -> AsyncIterator[Manager]:
        async with anyio.create_task_group() as tasks, Manager.open(store, at_once) as manager:
            running.serve(manager, tasks)
            yield manager
            tasks.cancel_scope.cancel()

    server = ToolServer(
        "aoti-debug",
        running.tools(operations),
        hidden=frozenset(hidden),
        title="AOTInductor debugger",
        instructions=INSTRUCTIONS,
        version=__version__,
        log_level="WARNING",
        lifespan=lifespan,
        extensions=[verdict_app()],
        subscriptions=False,
        middleware=[ownership.middleware],
    )
    add_resources(server, store, ownership)
    return server


def serve(tools: str = "") -> None:
    """Serve on stdio until the client closes it or a signal arrives; then no job is left."""
    log_briefly()
    exit_on_signals()
    end_with_uv()
    project = os.environ.get("CLAUDE_PROJECT_DIR", "")
    if project and Path(project).is_dir():  # relative paths start at the client's directory
        os.chdir(project)
    make_server(open_store(), tools=tools).run("stdio")
