"""MCP's tasks extension (SEP-2663) for clients that declare it: a call that takes long answers with a task.

The task is the job, under the same id; clients without the extension get a handle for `wait_job` instead.
mcp 2.3 leaves the whole extension to servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp import MCPError
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp_types import CallToolRequestParams, RequestParams
from mcp_types.jsonrpc import HEADER_MISMATCH, INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import Operation, validated
from mcp_server.server.running import Running, answered
from mcp_server.server.tools import Result, result_of

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from mcp_server.jobs.manager import JobState

    Request = ServerRequestContext[Any, Any]

IDENTIFIER = "io.modelcontextprotocol/tasks"
INLINE_S = 0.5
"""A call that ends within this time is answered at once, without a task."""
POLL_MS = 1000

STATUS: Mapping[str, str] = {
    "running": "working",
    "finished": "completed",
    "failed": "completed",  # with an error result; the protocol keeps `failed` for errors of its own
    "stopped": "cancelled",
}


class TaskParams(RequestParams):
    """What the methods take; `tasks/update` also answers questions, and none is ever asked here."""

    task_id: str


class Tasks(Extension):
    """Turns the jobs of `running` into tasks."""

    identifier = IDENTIFIER

    def __init__(self, running: Running, operations: Sequence[Operation]) -> None:
        self._running = running
        self._operations = {operation.name: operation for operation in operations}

    def methods(self) -> Sequence[MethodBinding]:
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        handlers = {"tasks/get": self._get, "tasks/cancel": self._cancel, "tasks/update": self._update}
        return [MethodBinding(name, TaskParams, handler, versions) for name, handler in handlers.items()]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        """A task for an operation that is not done at once, if the client can handle one."""
        operation = self._operations.get(params.name)
        if operation is None or not _declared(ctx):
            return await call_next(ctx)
        try:
            arguments = validated(operation.arguments, params.arguments or {})
            state = await self._running.begin(operation, arguments, INLINE_S, _silently)
        except ProblemError:
            return await call_next(ctx)  # which says what is wrong, as it does to every client
        if state.state == "running":
            return {"resultType": "task", **self._task(state)}
        return await result_of(params.name, lambda: _answered(state))

    async def _get(self, ctx: Request, params: TaskParams) -> Result:
        state = await self._state(ctx, params)
        task = {"resultType": "complete", **self._task(state)}
        if task["status"] == "completed":
            result = await result_of(state.kind, lambda: _answered(state))
            task["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return task

    async def _cancel(self, ctx: Request, params: TaskParams) -> Result:
        await self._state(ctx, params)
        await self._running.manager.stop(params.task_id)
        return {"resultType": "complete"}

    async def _update(self, ctx: Request, params: TaskParams) -> Result:
        await self._state(ctx, params)
        return {"resultType": "complete"}

    async def _state(self, ctx: Request, params: TaskParams) -> JobState:
        """Where the task stands. Raises MCPError: not declared, routed wrongly, or no such task."""
        require_client_extension(ctx, IDENTIFIER)
        _check_routing(ctx, params.task_id)
        try:
            self._running.ownership.check(params.task_id)
            return await self._running.manager.wait(params.task_id, 0)
        except ProblemError as problem:
            raise MCPError(code=INVALID_PARAMS, message=str(problem)) from problem

    def _task(self, state: JobState) -> Result:
        folder = self._running.manager.store.find(state.job_id).path
        task: Result = {
            "taskId": state.job_id,
            "status": STATUS[state.state],
            "createdAt": _time(folder / "job.json"),
            "lastUpdatedAt": _time(folder),
            "ttlMs": None,
            "pollIntervalMs": POLL_MS,
        }
        if state.progress:
            task["statusMessage"] = state.progress[-1]
        return task


async def _answered(state: JobState) -> Result:
    return answered(state)


async def _silently(_progress: str) -> None:
    """Progress of a task is in its status."""


def _declared(ctx: Request) -> bool:
    capabilities = ctx.session.client_capabilities
    declared = (capabilities.extensions if capabilities else None) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and IDENTIFIER in declared


def _check_routing(ctx: Request, task_id: str) -> None:
    """On HTTP the Mcp-Name header repeats the id for proxies (SEP-2243); mcp 2.3 checks its own methods."""
    if ctx.request is not None and ctx.request.headers.get("mcp-name", "").strip() != task_id:
        raise MCPError(code=HEADER_MISMATCH, message="the Mcp-Name header differs from params.taskId")


def _time(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat()
