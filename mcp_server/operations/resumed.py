"""Taking an ended diagnosis up again: what it was asked is kept in the job's directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.jobs.private import storing
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import Arguments, DiagnoseArguments

CARD = "asked.json"
HANDLE = re.compile(r"(?:aoti-debug://jobs/)?(job_[0-9a-f]{8})/?")


class Asked(BaseModel):
    """An operation, its arguments, and the directory that relative paths in them start from."""

    operation: str
    base: Path
    arguments: dict[str, Any]


def remember(job: Path, operation: str, arguments: BaseModel) -> None:
    """Write down what a job was asked. Raises ProblemError when the disk refuses."""
    asked = Asked(operation=operation, base=Path.cwd(), arguments=arguments.model_dump(mode="json"))
    with storing(job):
        (job / CARD).write_text(asked.model_dump_json(indent=1))


def recalled(job: Path) -> Asked | None:
    """What a job was asked; None when that was never written whole."""
    try:
        return Asked.model_validate_json((job / CARD).read_bytes())
    except (OSError, ValidationError):
        return None


def taken_up(store: Store, arguments: Arguments) -> tuple[Arguments, str]:
    """The arguments of the diagnosis that `log` names by its handle, and that handle; else what was given.

    The budget is the new one. Raises ProblemError for a job that is unknown or was no diagnosis.
    """
    named = HANDLE.fullmatch(arguments.log) if isinstance(arguments, DiagnoseArguments) else None
    if named is None or not isinstance(arguments, DiagnoseArguments):
        return arguments, ""
    job = store.find(named[1])
    asked = recalled(job.path)
    if asked is None or asked.operation != "diagnose":
        raise ProblemError("not a diagnosis that can be taken up again", value=job.id, allowed="its handle")
    try:
        before = DiagnoseArguments.model_validate(asked.arguments)
    except ValidationError as error:
        what = "what the job was asked is damaged, or of another version"
        raise ProblemError(what, value=job.id, next_call="diagnose the workload anew") from error
    return before.model_copy(update={**_absolute(before, asked.base), **_new(arguments)}), job.id


def _absolute(before: DiagnoseArguments, base: Path) -> dict[str, str]:
    """Paths as they were meant when they were given."""
    log = {"log": str(base / before.log)} if before.log else {}
    return {"cwd": str(base / before.cwd), **log}


def _new(given: DiagnoseArguments) -> dict[str, Any]:
    return {"budget_s": given.budget_s, "wait_s": given.wait_s}
