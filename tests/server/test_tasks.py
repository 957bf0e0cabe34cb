"""The tasks extension: slow calls of a client that declares it are tasks, polled to the same result."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from mcp_types.jsonrpc import INVALID_PARAMS
from pydantic import ConfigDict

from mcp_server.server.running import IDENTIFIER
from tests.server.clients import ROOT, data_of, text_of
from tests.server.test_http import serving
from tests.server.test_server import alive, written

MISSING_CAPABILITY = -32021


class TaskResult(Result):
    """A task, as both the call and tasks/get answer it."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class TaskId(RequestParams):
    task_id: str


class TaskRequest(Request[TaskId, str]):
    name_param: ClassVar[str | None] = "taskId"


class Polls(ClientExtension):
    """Polls a task to its end, as clients do; remembers every state it saw."""

    identifier = IDENTIFIER

    def __init__(self, on_task: Callable[[ClaimContext, str], Awaitable[None]] | None = None) -> None:
        self.seen: list[dict[str, Any]] = []
        self._on_task = on_task

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskResult, resolve=self._resolve)]

    async def _resolve(self, claimed: TaskResult, ctx: ClaimContext) -> CallToolResult:
        self.seen.append(claimed.model_dump(by_alias=True))
        task_id = self.seen[-1]["taskId"]
        if self._on_task:
            await self._on_task(ctx, task_id)
        while (task := await ask(ctx, "tasks/get", task_id))["status"] == "working":
            self.seen.append(task)
            await anyio.sleep(0.2)
        self.seen.append(task)
        return CallToolResult.model_validate(task.get("result") or {"content": []})


async def ask(ctx: ClaimContext, method: str, task_id: str) -> dict[str, Any]:
    answer = await ctx.session.send_request(
        TaskRequest(method=method, params=TaskId(task_id=task_id)), CompleteResult
    )
    return answer.model_dump(by_alias=True)


class CompleteResult(Result):
    model_config = ConfigDict(extra="allow")


def server(state: Path, module: str = "suite_server") -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", f"tests.server.{module}", str(state)], cwd=ROOT
    )


def drive(
    target: StdioServerParameters | str,
    talk: Callable[[Client], Awaitable[None]],
    *extensions: ClientExtension,
) -> None:
    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(target, extensions=extensions) as client:
                await talk(client)

    anyio.run(main)


async def slow_calls(client: Client, polls: Polls) -> None:
    """A fast call, a slow one and one that fails."""
    assert data_of(await client.call_tool("greet", {"name": "Ada"})) == {"text": "Hello, Ada!"}
    assert polls.seen == []
    assert data_of(await client.call_tool("slow_compute", {"seconds": 1.0})) == {"text": "slept 1.0 s"}
    assert [task["status"] for task in polls.seen[:1] + polls.seen[-1:]] == ["working", "completed"]
    assert all(task["pollIntervalMs"] > 0 and task["createdAt"] for task in polls.seen)
    failed = await client.call_tool("failing_job", {})
    assert failed.is_error and "this job fails" in text_of(failed)


def test_slow_calls_become_tasks_on_stdio(tmp_path: Path) -> None:
    """A fast call is answered at once; a slow one is a task with the same result."""
    polls = Polls()
    drive(server(tmp_path / "state"), lambda client: slow_calls(client, polls), polls)


def test_slow_calls_become_tasks_on_http(tmp_path: Path) -> None:
    """The same over HTTP, where the id is repeated in a header."""
    polls = Polls()
    with serving(["-m", "tests.server.suite_server", str(tmp_path / "state"), "--http"]) as (_, url):
        drive(url, lambda client: slow_calls(client, polls), polls)


def test_wrong_arguments_are_refused_at_once(tmp_path: Path) -> None:
    """A call with a misspelt argument is an error result and no task, as for every other client."""
    polls = Polls()

    async def talk(client: Client) -> None:
        refused = await client.call_tool("slow_compute", {"second": 1.0})
        assert refused.is_error and "did you mean 'seconds'?" in text_of(refused)
        assert polls.seen == []

    drive(server(tmp_path / "state"), talk, polls)


def test_a_cancelled_task_leaves_no_process(tmp_path: Path) -> None:
    """tasks/cancel kills the job's whole tree, and the task ends as cancelled."""
    ids = tmp_path / "ids"

    async def cancel(ctx: ClaimContext, task_id: str) -> None:
        await written(ids)
        assert await ask(ctx, "tasks/update", task_id) == await ask(ctx, "tasks/cancel", task_id)

    polls = Polls(cancel)

    async def talk(client: Client) -> None:
        await client.call_tool("run_child", {"file": str(ids)})
        assert polls.seen[-1]["status"] == "cancelled"
        assert not await alive(ids)

    drive(server(tmp_path / "state", "sample"), talk, polls)


def test_a_client_without_the_extension_gets_no_task(tmp_path: Path) -> None:
    """Its slow call is answered with the result, and the methods of tasks are refused."""

    async def talk(client: Client) -> None:
        assert data_of(await client.call_tool("slow_compute", {"seconds": 1.0})) == {"text": "slept 1.0 s"}
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(
                TaskRequest(method="tasks/get", params=TaskId(task_id="job_00000000")), CompleteResult
            )
        assert refused.value.error.code == MISSING_CAPABILITY

    drive(server(tmp_path / "state"), talk)


def test_unknown_tasks_are_refused(tmp_path: Path) -> None:
    """An id that is no job, or none of this machine, is an invalid parameter."""

    async def ask_for_others(ctx: ClaimContext, _task_id: str) -> None:
        for task_id in ("../../etc", "job_00000000"):
            for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                with pytest.raises(MCPError) as refused:
                    await ask(ctx, method, task_id)
                assert refused.value.error.code == INVALID_PARAMS

    polls = Polls(ask_for_others)

    async def talk(client: Client) -> None:
        await client.call_tool("slow_compute", {"seconds": 0.7})
        assert polls.seen[-1]["status"] == "completed"

    drive(server(tmp_path / "state"), talk, polls)
