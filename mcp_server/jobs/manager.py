"""Background jobs with handles. A job outlives the request that started it, and ends with the server."""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from pydantic import BaseModel, Field, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.jobs.output import clean
from mcp_server.jobs.store import ANOTHER_STATE, JobDirectory, Store, cause, storing, write_whole
from mcp_server.model import Record

State = Literal["running", "finished", "failed", "stopped"]

JOBS_VARIABLE = "AOTI_DEBUG_JOBS"  # how many jobs may run a workload at once; the others wait
FEWEST_AT_ONCE = 4

PROGRESS_LINES = 20
PROGRESS_WIDTH = 300
FOREIGN_POLL_S = 0.2
RESULT_FILE = "result.json"


class Problem(Record):
    """A `ProblemError` as data."""

    what: str
    value: str | None = None
    allowed: str = ""
    next_call: str = ""

    def error(self) -> ProblemError:
        return ProblemError(**dict(self))


class JobState(Record):
    """The state of a job. `finished` has a result; `failed` and `stopped` have a problem. `stopped` can also
    have a partial result.

    A job whose workload fails is `finished`; `failed` means that the tool could not do its work. `wall_s` is
    the seconds since the start; `progress` holds the last progress lines.
    """

    job_id: str
    kind: str
    state: State
    wall_s: float
    progress: list[str] = Field(default_factory=list)
    result: dict[str, Any] | None = None  # the record as JSON; the tool knows its type
    problem: Problem | None = None


Work = Callable[["Job"], Awaitable[BaseModel]]


class Job:
    """A running job: a directory for its files, and methods to report progress and partial results."""

    def __init__(self, directory: JobDirectory) -> None:
        self.directory = directory
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.state: JobState | None = None
        self.result: BaseModel | None = None
        self._known: BaseModel | None = None
        self._started = time.monotonic()
        self._progress: deque[str] = deque(maxlen=PROGRESS_LINES)

    @property
    def id(self) -> str:
        return self.directory.id

    @property
    def path(self) -> Path:
        return self.directory.path

    def progress(self, line: str) -> None:
        text = clean(line).replace("\n", " ").strip()
        if text:
            self._progress.append(text[:PROGRESS_WIDTH])

    def knows(self, result: BaseModel) -> None:
        """Set the partial result. If the job is stopped, it becomes the result."""
        self._known = result

    def look(self) -> JobState:
        return self.state or self.state_as("running")

    def state_as(
        self, state: State, result: BaseModel | None = None, problem: Problem | None = None
    ) -> JobState:
        """Build the state with the result as JSON (NaN becomes null), as `load` reads it from disk."""
        return JobState(
            job_id=self.id,
            kind=self.directory.kind,
            state=state,
            wall_s=round(time.monotonic() - self._started, 3),
            progress=list(self._progress),
            result=None if result is None else json.loads(result.model_dump_json()),
            problem=problem,
        )

    async def run(self, work: Work) -> None:
        """Do the work and set the state. Returns when the work has ended or `scope` has cancelled it."""
        try:
            with self.scope:
                try:
                    self.result = await work(self)
                    self.state = self.state_as("finished", self.result)
                except anyio.get_cancelled_exc_class():
                    raise
                except BaseException as error:  # even SystemExit: the server and its other jobs continue
                    self.state = self.state_as("failed", problem=self._problem(innermost(error)))
        finally:
            stopped = Problem(what="the job was stopped")
            self.state = self.state or self.state_as("stopped", self._known, stopped)

    def _problem(self, error: BaseException) -> Problem:
        """Convert the error to data. An unexpected error also writes its traceback to the job's directory."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            what = f"cannot store a job: {cause(error)}"
            error = ProblemError(what, value=error.filename, next_call=ANOTHER_STATE)
        if isinstance(error, ProblemError):
            value = None if error.value is None else str(error.value)
            parts = {name: getattr(error, name) for name in Problem.model_fields}
            return Problem(**{**parts, "value": value})
        try:
            (self.path / "traceback.log").write_text("".join(traceback.format_exception(error)))
        except OSError:
            self.progress("the stack of the error could not be written")
        return Problem(what=f"defect in this tool: {type(error).__name__}: {clean(str(error))[:500]}")


class Manager:
    """The jobs of this server. `Manager.open` creates a manager, and ends all jobs when its context exits."""

    def __init__(self, store: Store, tasks: TaskGroup, jobs_at_once: int) -> None:
        self.store = store
        self._tasks = tasks
        self._jobs: dict[str, Job] = {}
        self._turns = anyio.CapacityLimiter(jobs_at_once)

    @classmethod
    @asynccontextmanager
    async def open(cls, store: Store, jobs_at_once: int | None = None) -> AsyncIterator[Manager]:
        """Yield a manager whose jobs end with the context. An error in the body is raised unchanged."""
        failed: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                yield cls(store, tasks, jobs_at_once or most_at_once())
            except Exception as error:  # otherwise the task group would wrap it in an exception group
                failed = error
            tasks.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def start(self, kind: str, work: Work, *, again: str = "", heavy: bool = False) -> Job:
        """Start `work` in the background, in a new directory or in that of the ended job `again`.

        Only a limited number of `heavy` jobs run at once; the others wait. Raise ProblemError if no directory
        can be created, or if the job `again` is unknown or still running.
        """
        job = Job(self.store.reopen(again) if again else self.store.create(kind))
        self._jobs[job.id] = job
        self._tasks.start_soon(self._run_to_end, job, work, heavy)
        return job

    async def wait(self, job_id: str, wait_s: float) -> JobState:
        """A job's state once it ends or after `wait_s`. Raises ProblemError for an unknown handle."""
        job = self._jobs.get(job_id)
        with anyio.move_on_after(wait_s):
            if job:
                await job.done.wait()
            while not job and self._from_disk(job_id).state == "running":
                await anyio.sleep(FOREIGN_POLL_S)
        return job.look() if job else self._from_disk(job_id)

    async def stop(self, job_id: str) -> JobState:
        """End a job and all its processes if it still runs. Raise ProblemError for another server's job."""
        job = self._jobs.get(job_id)
        if job:
            job.scope.cancel()
            await job.done.wait()
            return job.look()
        state = self._from_disk(job_id)
        if state.state == "running":
            raise ProblemError("the job runs under another server; stop it there", value=job_id)
        return state

    async def _run_to_end(self, job: Job, work: Work, heavy: bool) -> None:
        async def in_turn(job: Job) -> BaseModel:
            turns = self._turns.statistics()
            if turns.borrowed_tokens >= turns.total_tokens:
                job.progress(
                    f"waiting: {turns.borrowed_tokens} jobs run, and no more may at once "
                    f"({JOBS_VARIABLE}); {turns.tasks_waiting} wait before this one"
                )
            async with self._turns:
                return await work(job)

        try:
            await job.run(in_turn if heavy else work)
        finally:
            try:
                with storing(job.path):
                    write_whole(job.path / RESULT_FILE, job.look().model_dump_json(indent=1))
                del self._jobs[job.id]
            except ProblemError as error:  # the result stays in memory
                job.progress(f"the result is kept until the server ends: {error}")
            finally:
                job.directory.release()
                job.done.set()
        # The command-line process ends with its job and would cancel this sweep. Without the shield, old jobs
        # would never be removed.
        with suppress(ProblemError), anyio.CancelScope(shield=True):  # the next job reports a problem
            await anyio.to_thread.run_sync(self.store.sweep)

    def _from_disk(self, job_id: str) -> JobState:
        directory = self.store.find(job_id)
        state = JobState(job_id=job_id, kind=directory.kind, state="running", wall_s=0.0)
        if self.store.is_running(directory):  # if resumed, the saved state is that of the earlier run
            return state
        lost = Problem(what="the server ended before the job did", next_call="run it again")
        return load(directory.path) or state.model_copy(update={"state": "stopped", "problem": lost})


def most_at_once() -> int:
    """The limit from AOTI_DEBUG_JOBS; default: one per processor, at least 4. Raise ProblemError if bad."""
    text = os.environ.get(JOBS_VARIABLE, "")
    if not text:
        return max(FEWEST_AT_ONCE, os.cpu_count() or 1)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 10_000):
        raise ProblemError(f"{JOBS_VARIABLE} must be a number of jobs", value=text[:80], allowed="1-10000")
    return int(text)


def innermost(error: BaseException) -> BaseException:
    """Unwrap the exception groups in which task groups raise a single error."""
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return innermost(inner[0]) if len(inner) == 1 else error


def load(path: Path) -> JobState | None:
    """Load the state saved in a job's directory. None if no state is there that this version can read."""
    try:
        return JobState.model_validate_json((path / RESULT_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
