"""Tool calls as jobs: a bounded wait, then the result or a handle, for the session that owns the job."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import (
    CONTROLS,
    READS,
    Declaration,
    JobArguments,
    Operation,
    WaitArguments,
    WaitJobArguments,
    joined,
)
from mcp_server.operations.work import resumed, work_of
from mcp_server.server.tools import Progress, Result, ToolFace, shorten

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_server.jobs.manager import JobState, Manager
    from mcp_server.tools.shared_import import WarmImports


SESSION_HEADER = "mcp-session-id"
WITHOUT_SESSION = ""
"""The owner of a job that was started by a request of no session, as those of protocol 2026-07-28 are."""

_client: ContextVar[str | None] = ContextVar("client", default=None)
"""The session of the request that is handled; None on stdio, where one client has the server alone."""


class Ownership:
    """Which jobs a client may see, read and stop.

    Without sessions, a job's handle is the right to it: whoever knows it may use the job, and nobody is told
    of it. `shared`: every client may use every job of the state directory. On stdio that is so anyway.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._owners: dict[str, str] = {}

    async def middleware(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Remember while a request is handled which session it belongs to."""
        headers = getattr(ctx.request, "headers", None)
        client = None if headers is None else str(headers.get(SESSION_HEADER, WITHOUT_SESSION))
        before = _client.set(client)
        try:
            return await call_next(ctx)
        finally:
            _client.reset(before)

    def claim(self, job_id: str) -> None:
        """A new job belongs to the client whose request is handled."""
        client = _client.get()
        if client is not None:
            self._owners[job_id] = client

    def check(self, job_id: str) -> None:
        """Raise ProblemError for a job of another session, as for one that does not exist."""
        if not self._may_use(job_id):
            raise ProblemError(
                "no such job of this session",
                value=job_id,
                allowed="a job that this session started; with `serve --share-jobs` every job",
            )

    def listed(self, job_ids: Iterable[str]) -> list[str]:
        """Those that the client is told of."""
        client = _client.get()
        if client is None or self._shared:
            return list(job_ids)
        return [job_id for job_id in job_ids if client and self._owners.get(job_id) == client]

    def _may_use(self, job_id: str) -> bool:
        client = _client.get()
        return client is None or self._shared or self._owners.get(job_id) in (client, WITHOUT_SESSION)


LONGEST_WAIT_S = 45.0
"""Kimi CLI cuts a call at 60 s; the other clients allow more."""

STEP_S = 0.25

WAIT_JOB = Declaration(
    name="wait_job",
    title="Wait for a job",
    description=joined(
        """
        Waits for a job that another tool started: its result when it is done, else its state and progress.
        wait_s 0 only looks. Call again until state is not 'running'. A job ends with this server; its result
        stays until it is swept.
        """
    ),
    arguments=WaitJobArguments,
    hints=READS,
)
STOP_JOB = Declaration(
    name="stop_job",
    title="Stop a job",
    description=joined(
        """
        Ends a job and kills all its processes, within about a second. What it wrote stays readable as
        artifacts.
        """
    ),
    arguments=JobArguments,
    hints=CONTROLS,
)


class Running:
    """Answers tool calls with jobs of a manager, which exists only while the server serves."""

    def __init__(self, ownership: Ownership) -> None:
        self.ownership = ownership
        self._manager: Manager | None = None
        self._tasks: TaskGroup | None = None
        self._home: WarmImports | None = None

    @property
    def manager(self) -> Manager:
        assert self._manager is not None, "tools are called while the server serves"
        return self._manager

    @contextmanager
    def using(self, manager: Manager, tasks: TaskGroup) -> Iterator[None]:
        """`tasks` end with the server."""
        self._manager, self._tasks = manager, tasks
        try:
            yield
        finally:
            self._manager = self._tasks = self._home = None

    def _warm(self) -> WarmImports | None:
        """Where imports of torch are kept between calls; None when none shall be. Raises ProblemError."""
        from mcp_server.tools.shared_import import WarmImports, limits_here  # the server starts without it

        if self._home is None and self._tasks is not None and (limits := limits_here()).idle_s:
            self._home = WarmImports(self._tasks, limits)
        return self._home

    def tools(self, operations: tuple[Operation, ...]) -> list[ToolFace]:
        """One tool per operation, and the two that handle jobs."""
        faces = [self._tool(operation) for operation in operations]
        return [*faces, ToolFace(WAIT_JOB, self._wait_job), ToolFace(STOP_JOB, self._stop_job)]

    def _tool(self, operation: Operation) -> ToolFace:
        async def answer(arguments: Any, progress: Progress) -> Result:
            wait_s = arguments.wait_s if isinstance(arguments, WaitArguments) else LONGEST_WAIT_S
            return answered(await self.begin(operation, arguments, wait_s, progress))

        return ToolFace(operation, answer)

    async def begin(
        self, operation: Operation, arguments: Any, wait_s: float, progress: Progress
    ) -> JobState:
        """Start the operation as a job and wait for it `wait_s` seconds at most.

        Until the caller has the handle, the job is the call's: cancelling the call stops it.
        """
        arguments, again = resumed(self.manager.store, arguments)
        if again:
            self.ownership.check(again)
        work = work_of(operation, arguments, home=self._warm())
        job = self.manager.start(operation.name, work, again=again, heavy=operation.runs_workload)
        if not again:
            self.ownership.claim(job.id)
        try:
            return await self._watched(job.id, wait_s, progress)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.manager.stop(job.id)
            raise

    async def _wait_job(self, arguments: WaitJobArguments, progress: Progress) -> Result:
        self.ownership.check(arguments.job_id)
        return answered(await self._watched(arguments.job_id, arguments.wait_s, progress))

    async def _stop_job(self, arguments: JobArguments, _progress: Progress) -> Result:
        self.ownership.check(arguments.job_id)
        return answered(await self.manager.stop(arguments.job_id))

    async def _watched(self, job_id: str, wait_s: float, progress: Progress) -> JobState:
        """Wait in steps and pass new progress on."""
        limit, told = time.monotonic() + wait_s, ""
        while True:
            left = limit - time.monotonic()
            state = await self.manager.wait(job_id, max(0.0, min(STEP_S, left)))
            if state.progress and state.progress[-1] != told:
                told = state.progress[-1]
                await progress(told)
            if state.state != "running" or left <= 0:
                return state


def answered(state: JobState) -> Result:
    """The result of a job that is done, else a handle. Raises the ProblemError of one that failed."""
    if state.state == "failed" and state.problem:
        problem = state.problem
        raise ProblemError(
            problem.what, value=problem.value, allowed=problem.allowed, next_call=problem.next_call
        )
    if state.state == "finished" and state.result is not None:
        return shorten(state.result, full=_whole(state.job_id))
    return _handle(state)


def _whole(job_id: str) -> Result:
    return {"uri": f"aoti-debug://jobs/{job_id}/result.json", "key": "result"}


def _handle(state: JobState) -> Result:
    handle: Result = {
        "job_id": state.job_id,
        "tool": state.kind,
        "state": state.state,
        "wall_s": state.wall_s,
        "progress": state.progress,
    }
    if state.state == "running":
        arguments = {"job_id": state.job_id, "wait_s": 30}
        handle["next_steps"] = [{"why": "the job still runs", "tool": "wait_job", "arguments": arguments}]
    if state.state == "stopped" and state.kind == "diagnose":
        why = "go on with the evidence that was gathered"
        handle["next_steps"] = [{"why": why, "tool": "diagnose", "arguments": {"log": state.job_id}}]
    if state.problem:
        handle["problem"] = state.problem.model_dump(mode="json")
    if state.result is None:
        return handle
    return shorten({**handle, "result": state.result}, full=_whole(state.job_id))
