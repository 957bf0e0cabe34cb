"""Runs tool calls as jobs: waits for a limited time, then returns the result or a handle."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types import CallToolResult

from mcp_server.operations import arguments as args
from mcp_server.operations.work import resumed, work_of
from mcp_server.server.tools import Progress, Result, ToolFace, answer_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_server.jobs.manager import JobState, Manager
    from mcp_server.jobs.shared_import import WarmImports

LONGEST_WAIT_S = 45.0  # Kimi CLI cuts a call off at 60 s; the other clients allow more
STEP_S = 0.25
SO_FAR = re.compile(r": \d+ s so far.*")

WAIT_JOB = args.Declaration(
    name="wait_job",
    title="Wait for a job",
    description="Waits for a job that another tool started. Returns its result, or its progress if it still "
    "runs: then call again. A job ends with this server; its result is kept.",
    arguments=args.WaitJobArguments,
    hints=args.READS,
)
STOP_JOB = args.Declaration(
    name="stop_job",
    title="Stop a job",
    description="Ends a job and all its processes within about a second. Its files stay readable.",
    arguments=args.JobArguments,
    hints=args.CONTROLS,
)


class Running:
    """Answers tool calls with jobs."""

    manager: Manager  # set while the server serves, like `tasks`; both end with the server
    tasks: TaskGroup
    _home: WarmImports | None = None

    def serve(self, manager: Manager, tasks: TaskGroup) -> None:
        self.manager, self.tasks, self._home = manager, tasks, None

    def tools(self, operations: tuple[args.Operation, ...]) -> list[ToolFace]:
        async def call(operation: args.Operation, arguments: Any, progress: Progress) -> CallToolResult:
            wait_s = arguments.wait_s if isinstance(arguments, args.WaitArguments) else LONGEST_WAIT_S
            return await answered(await self.begin(operation, arguments, wait_s, progress))

        async def wait_job(arguments: args.WaitJobArguments, progress: Progress) -> CallToolResult:
            return await answered(await self._watched(arguments.job_id, arguments.wait_s, progress))

        async def stop_job(arguments: args.JobArguments, _: Progress) -> CallToolResult:
            return await answered(await self.manager.stop(arguments.job_id))

        faces = [ToolFace(operation, partial(call, operation)) for operation in operations]
        return [*faces, ToolFace(WAIT_JOB, wait_job), ToolFace(STOP_JOB, stop_job)]

    async def begin(
        self, operation: args.Operation, arguments: Any, wait_s: float, progress: Progress | None = None
    ) -> JobState:
        """Start the operation as a job and wait for it for at most `wait_s` seconds.

        Cancelling this call stops the job, because the client does not have its handle yet.
        """
        from mcp_server.jobs.shared_import import WarmImports, limits_here

        arguments, again = resumed(self.manager.store, arguments)
        if self._home is None and (limits := limits_here()).idle_s:
            self._home = WarmImports(self.tasks, limits)
        work = work_of(operation, arguments, home=self._home)
        heavy = operation.hints is args.RUNS_USER_CODE
        job = self.manager.start(operation.name, work, again=again, heavy=heavy)
        try:
            return await self._watched(job.id, wait_s, progress)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self.manager.stop(job.id)
            raise

    async def _watched(self, job_id: str, wait_s: float, progress: Progress | None) -> JobState:
        """Wait in steps and pass on new progress."""
        limit, left, reported = time.monotonic() + wait_s, wait_s, ""
        state: JobState | None = None
        while state is None or (state.state == "running" and left > 0):
            left = limit - time.monotonic()
            state = await self.manager.wait(job_id, max(0.0, min(STEP_S, left)))
            if progress is not None and state.progress and state.progress[-1] != reported:
                reported = state.progress[-1]
                await progress(reported)
        return state


def steps_in(progress: list[str]) -> list[str]:
    """The last line of each step: a long step has one line for each report."""
    steps = {SO_FAR.sub("", line): line for line in progress}
    return list(steps.values())


async def answered(state: JobState) -> CallToolResult:
    """Return a job's result, or its handle while it runs. If it failed, raise its ProblemError."""
    whole = {"uri": f"aoti-debug://jobs/{state.job_id}/result.json", "key": "result"}
    if state.state == "failed" and state.problem:
        raise state.problem.error()
    if state.state == "finished" and state.result is not None:
        return answer_of(state.result, whole)
    handle: Result = {
        "job_id": state.job_id,
        "tool": state.kind,
        "state": state.state,
        "wall_s": state.wall_s,
        "progress": steps_in(state.progress),
    }
    if state.state == "running":
        arguments = {"job_id": state.job_id, "wait_s": 45}
        handle["next_steps"] = [{"why": "the job still runs", "tool": "wait_job", "arguments": arguments}]
    if state.state == "stopped" and state.kind == "diagnose":
        why = "use the evidence that was gathered"
        handle["next_steps"] = [{"why": why, "tool": "diagnose", "arguments": {"log": state.job_id}}]
    if state.problem:
        handle["problem"] = state.problem.model_dump(mode="json")
    if state.result is not None:
        handle["result"] = answer_of(state.result, whole).structured_content
    return answer_of(handle, whole)
