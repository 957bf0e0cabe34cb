"""Tools called by name with a user's arguments, as over MCP or the command line, and verdicts."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp_server import brief
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.model import PackageWorkload, Verdict, Workload
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import OPERATIONS
from mcp_server.runtime.context import Context
from tests.conftest import Zoo
from tests.served import served
from tests.server.clients import MOST_TOKENS, tokens

BY_NAME = {operation.name: operation for operation in OPERATIONS}
RENAMED = {"args": "script_args", "argv": "command"}  # from a workload's field to an argument


async def asked(name: str, context: Context, workload: Workload | None = None, /, **options: Any) -> Any:
    """Return the result of one call. Raise what the tool raises, or an error for rejected arguments."""
    operation = BY_NAME[name]
    fields = workload.model_dump(mode="json", exclude_defaults=True) if workload is not None else {}
    given = {RENAMED.get(key, key): value for key, value in fields.items()}
    values = {key: value for key, value in given.items() if key in operation.arguments.model_fields}
    values |= {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    return await operation.call(context, validated(operation.arguments, values))


def tool(name: str, directory: Path, workload: Workload | None = None, /, **options: Any) -> Any:
    """A tool's result, from a new folder below `directory`, with imports of torch that tests share."""
    directory.mkdir(exist_ok=True)
    context = Context(Path(tempfile.mkdtemp(dir=directory)), Path(options.get("python") or sys.executable))
    return served(lambda context: asked(name, context, workload, **options), context)


def verdict(
    directory: Path, workload: Workload | None, log: Path | None = None, *, symptom: Symptom | None = None
) -> Verdict:
    job = directory / "job"
    job.mkdir()
    context = Context(directory=job, python=Path(sys.executable))
    found = served(diagnose, context, workload, log=log, symptom=symptom)
    assert tokens(brief.main_fields(found)) <= MOST_TOKENS, "an agent reads this"
    return found


def of_package(zoo: Zoo, directory: Path, name: str, inputs: str) -> Verdict:
    return of_call(directory, zoo(name), inputs)


def of_call(directory: Path, package: Path, inputs: str, symptom: Symptom | None = None) -> Verdict:
    """The verdict on a package called with the inputs of that name beside it."""
    given = package.with_name(f"{package.stem}.{inputs}.pt")
    return verdict(directory, PackageWorkload(package=package, inputs=given), symptom=symptom)
