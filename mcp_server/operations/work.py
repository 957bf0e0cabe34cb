"""Carries an operation out as a job."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import RunArguments
from mcp_server.operations.declaration import Operation
from mcp_server.operations.launcher import launcher
from mcp_server.operations.paths import absolute
from mcp_server.operations.resumed import remember

if TYPE_CHECKING:
    from mcp_server.jobs.manager import Job, Work
    from mcp_server.model import Record
    from mcp_server.steps.context import Context
    from mcp_server.steps.shared_import import Home

log = logging.getLogger(__name__)


def open_store(*, writing: bool = True) -> Store:
    """The user's store; one in the temporary directory, with a warning, when the disk refuses it.

    Who only reads jobs (not `writing`) needs no room on the disk. Raises ProblemError when there is none.
    """
    try:
        store = Store()
        if writing:
            store.check_room()
        return store
    except ProblemError as problem:
        try:
            fallback = Path(tempfile.gettempdir()) / f"aoti-debug-{os.getuid()}"
            store = Store(fallback)
        except OSError:  # no temporary directory takes a file either
            raise problem from None
        log.warning("%s; using %s", problem, fallback)
        return store


def work_of(
    operation: Operation, arguments: Any, keep: list[Record] | None = None, home: Home | None = None
) -> Work:
    """The operation as work for the manager; the result is also put into `keep`, as the record that it is.

    `home` keeps processes that have imported torch from one job to the next.
    """

    async def work(job: Job) -> Record:
        remember(job.path, operation.name, arguments)
        context = await _context(job, arguments, home)
        async with context.sharing_imports() if home is not None else nullcontext():
            result = await operation.call(context, arguments)
        if keep is not None:
            keep.append(result)
        return result

    return work


async def _context(job: Job, arguments: Any, home: Home | None) -> Context:
    from mcp_server.steps.context import Context
    from mcp_server.steps.kept import Kept

    return Context(
        directory=job.path,
        python=await _python(arguments),
        progress=job.progress,
        kept=Kept.read(job.path),
        knows=job.knows,
        holder=f"{job.directory.kind} {job.id}",
        home=home,
        launcher=launcher(),
    )


async def _python(arguments: Any) -> Path:
    """The interpreter of the call; nobody is asked for an operation that runs none."""
    if not isinstance(arguments, RunArguments):
        return Path(sys.executable)
    if arguments.python:
        return absolute(arguments.python, Path.cwd())
    from mcp_server.interpreter import default_python

    folder = absolute(arguments.cwd, Path.cwd())
    return await anyio.to_thread.run_sync(partial(default_python, folder=folder))
