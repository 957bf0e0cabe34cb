"""Calls tools as the server does: torch stays imported between the tests of a process.

Otherwise each step of a tool would start a Python that imports torch, which takes more than a second of
processor time. Here, as in the server, steps are forks of a process that has imported torch.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from typing import Concatenate, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcp_server.jobs.shared_import import WarmImports
from mcp_server.runtime.context import Context

Asked = ParamSpec("Asked")
Result = TypeVar("Result")

_running = ExitStack()


def served(
    tool: Callable[Concatenate[Context, Asked], Awaitable[Result]],
    context: Context,
    /,
    *arguments: Asked.args,
    **options: Asked.kwargs,
) -> Result:
    """Return what the tool returns, or raise what it raises."""
    portal, home = _server()

    async def call() -> Result:
        context.home = home
        async with context.sharing_imports():
            return await tool(context, *arguments, **options)

    return portal.call(call)


def end_server() -> None:
    """End the processes. A later call starts others."""
    _running.close()
    _server.cache_clear()


@cache
def _server() -> tuple[BlockingPortal, WarmImports]:
    portal = _running.enter_context(start_blocking_portal())
    return portal, _running.enter_context(portal.wrap_async_context_manager(_home()))


@asynccontextmanager
async def _home() -> AsyncIterator[WarmImports]:
    async with anyio.create_task_group() as tasks:
        yield WarmImports(tasks)
        tasks.cancel_scope.cancel()
