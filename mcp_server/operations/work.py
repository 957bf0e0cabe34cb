"""Runs an operation as a job, and resumes an ended diagnosis."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from pydantic import BaseModel, ValidationError

from mcp_server.errors import ProblemError, here
from mcp_server.jobs.store import ANOTHER_STATE, Store, storing, write_whole
from mcp_server.model import Verdict
from mcp_server.operations.arguments import HANDLE, Arguments, DiagnoseArguments, Operation, RunArguments
from mcp_server.operations.workload import folder_of, launcher, python_of

if TYPE_CHECKING:
    from mcp_server.jobs.manager import Job, Work
    from mcp_server.jobs.shared_import import WarmImports
    from mcp_server.model import Record

CARD = "asked.json"

log = logging.getLogger(__name__)


class Asked(BaseModel):
    """An operation, its arguments, and the directory at which relative paths in them start."""

    operation: str
    base: Path
    arguments: dict[str, Any]  # JSON, which the operation's model checks again


def remember(job: Path, operation: str, arguments: BaseModel) -> None:
    """Save what a job was asked to do. Raise ProblemError if writing fails."""
    asked = Asked(operation=operation, base=here(), arguments=arguments.model_dump(mode="json"))
    with storing(job):
        write_whole(job / CARD, asked.model_dump_json(indent=1))


def recorded_request(job: Path) -> Asked | None:
    """Load what a job was asked to do. None if no complete record was written."""
    try:
        return Asked.model_validate_json((job / CARD).read_bytes())
    except (OSError, ValidationError):
        return None


def resumed(store: Store, arguments: Arguments) -> tuple[Arguments, str]:
    """If `log` names a job, return the arguments of that diagnosis and its handle; else `arguments` and "".

    The budget, and what `arguments` add, replace those of the job. Raise ProblemError if it is not a
    diagnosis.
    """
    named = HANDLE.fullmatch(arguments.log) if isinstance(arguments, DiagnoseArguments) else None
    if named is None or not isinstance(arguments, DiagnoseArguments):
        return arguments, ""
    job = store.find(named[1])
    asked = recorded_request(job.path)
    if asked is None or asked.operation != "diagnose":
        raise ProblemError("not a diagnosis that can be taken up again", value=job.id, allowed="its handle")
    try:
        before = DiagnoseArguments.model_validate(asked.arguments)
    except ValidationError as error:
        what = "the saved request of the job is damaged, or comes from a different version"
        raise ProblemError(what, value=job.id, next_call="diagnose the workload anew") from error
    given = arguments.model_dump(exclude_defaults=True)
    return before.model_copy(
        update={
            **given,
            # Relative paths start at the directory of the first run.
            "cwd": str(asked.base / (arguments.cwd or before.cwd)),
            "log": str(asked.base / before.log) if before.log else "",
            "budget_s": arguments.budget_s,
            "wait_s": arguments.wait_s,
        }
    ), job.id


def open_store(*, writing: bool = True) -> Store:
    """Open the user's store. If that fails, log a warning and open one in the temporary directory.

    Disk space is only checked if `writing`. Raise ProblemError if neither opens.
    """

    def opened(root: Path | None = None) -> Store:
        store = Store(root)
        if writing:
            store.check_room()
        return store

    try:
        return opened()
    except ProblemError as problem:
        try:
            fallback = Path(tempfile.gettempdir()) / f"aoti-debug-{os.getuid()}"
            store = opened(fallback)
        except (OSError, ProblemError):  # not even the temporary directory accepts a file
            raise problem from None
        log.warning("%s; using %s", problem, fallback)
        return store


def work_of(operation: Operation, arguments: Any, home: WarmImports | None = None) -> Work:
    """Wrap the operation as work for the manager.

    `home` keeps processes that have imported torch, for later jobs.
    """

    async def work(job: Job) -> Record:
        from mcp_server.runtime.context import Context
        from mcp_server.runtime.steps import StepCache

        remember(job.path, operation.name, arguments)
        context = Context(
            directory=job.path,
            python=await _python_for(arguments),
            progress=job.progress,
            kept=StepCache.read(job.path),
            knows=job.knows,
            holder=f"{job.directory.kind} {job.id}",
            home=home,
            launcher=launcher(),
        )
        try:
            async with context.sharing_imports() if home is not None else nullcontext():
                result = await operation.call(context, arguments)
        finally:
            context.remove_temporary()
        return _told_incomplete(result, context.incomplete) if context.incomplete else result

    return work


async def _python_for(arguments: Any) -> Path:
    """The interpreter that the operation runs. Most operations run none, so none is searched for."""
    if not isinstance(arguments, RunArguments):
        return Path(sys.executable)
    if arguments.python:
        return python_of(arguments.python, folder_of(arguments))
    from mcp_server.interpreter import default_python

    return await anyio.to_thread.run_sync(partial(default_python, folder=folder_of(arguments)))


def _told_incomplete(result: Record, why: str) -> Record:
    """Say in the result that output of the workload is missing, and why."""
    note = f"The output of the workload is incomplete, since {why}: {ANOTHER_STATE}, and try again."
    if isinstance(result, Verdict):
        return result.model_copy(update={"summary": f"{result.summary} {note}"})
    notes = getattr(result, "notes", None)
    return result if notes is None else result.model_copy(update={"notes": [note, *notes]})
