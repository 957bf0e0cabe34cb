"""Carries an operation out as a job."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.operations.declaration import Operation
from mcp_server.operations.launcher import launcher
from mcp_server.operations.resumed import remember

if TYPE_CHECKING:
    from mcp_server.jobs.manager import Job, Work
    from mcp_server.model import Record

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


def work_of(operation: Operation, arguments: Any, keep: list[Record] | None = None) -> Work:
    """The operation as work for the manager; the result is also put into `keep`, as the record that it is."""

    async def work(job: Job) -> Record:
        remember(job.path, operation.name, arguments)
        result = await operation.call(_context(job, arguments), arguments)
        if keep is not None:
            keep.append(result)
        return result

    return work


def _context(job: Job, arguments: Any) -> Any:
    from mcp_server.operations.paths import absolute
    from mcp_server.steps.context import Context, default_python
    from mcp_server.steps.kept import Kept

    python = getattr(arguments, "python", "")
    return Context(
        directory=job.path,
        python=absolute(python, Path.cwd()) if python else default_python(),
        progress=job.progress,
        kept=Kept.read(job.path),
        knows=job.knows,
        launcher=launcher(),
    )
