"""A server of sample operations, each of which shows one thing that a real operation may do."""

import sys
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.jobs.store import Store
from mcp_server.model import Record
from mcp_server.operations.arguments import READS, RUNS_USER_CODE, Arguments, Operation, WaitArguments
from mcp_server.runtime.context import Context
from mcp_server.server.app import exit_on_signals, make_server

# The child starts a grandchild in another process group, as daemons do. Both wait to be killed.
PARENT = (
    "import os, subprocess, sys, time;"
    "p = subprocess.Popen(['sleep', '300'], start_new_session=True);"
    "open(sys.argv[1], 'w').write(f'{os.getpid()} {p.pid}');"
    "time.sleep(300)"
)


class EchoArguments(Arguments):
    """A text and a number."""

    text: Annotated[str, Field(description="Any text.")] = ""
    steps: Annotated[int, Field(ge=1, le=9, description="1-9, default 3.")] = 3


class FileArguments(WaitArguments):
    """Where the child writes the process ids."""

    file: Annotated[str, Field(description="Path for the ids.")]


class Said(Record):
    """What was said."""

    text: str
    steps: int = 0


async def echo(_context: Context, arguments: EchoArguments) -> Said:
    print("a stray line on stdout")
    return Said(text=arguments.text, steps=arguments.steps)


async def talk(context: Context, _arguments: EchoArguments) -> Said:
    log = context.directory / "output.log"
    log.write_text("line\n" * 12_000)
    return Said(text="x" * 60_000)


async def refuse(_context: Context, _arguments: EchoArguments) -> Said:
    async with anyio.create_task_group():
        raise ProblemError("device 3 does not exist", value=3, allowed="0-1", next_call="call check_devices")
    return Said(text="")


async def crash(_context: Context, _arguments: EchoArguments) -> Said:
    raise RuntimeError("boom")


async def leave(_context: Context, _arguments: EchoArguments) -> Said:
    raise SystemExit(7)


async def run_child(context: Context, arguments: FileArguments) -> Said:
    argv = (sys.executable, "-c", PARENT, arguments.file)
    finished = await context.run(Command(argv, cwd=Path.cwd()), "child")
    return Said(text=finished.ending)


async def warm_up(context: Context, arguments: FileArguments) -> Said:
    """The id of the process that keeps torch imported, after a request was forked from it."""
    await context.worker("describe_inputs", {"inputs": arguments.file})
    assert context.imports is not None
    (imported,) = context.imports.servers
    assert imported.server is not None and imported.requests == 1
    return Said(text=str(imported.server.pid))


OPERATIONS = (
    Operation("echo", "Echo", "Says it again.", EchoArguments, READS, echo),
    Operation("talk", "Talk", "Says 60,000 characters.", EchoArguments, READS, talk),
    Operation("refuse", "Refuse", "Refuses.", EchoArguments, READS, refuse),
    Operation("crash", "Crash", "Has a defect.", EchoArguments, READS, crash),
    Operation("leave", "Leave", "Raises what is no Exception.", EchoArguments, READS, leave),
    Operation("warm_up", "Warm up", "Imports torch.", FileArguments, RUNS_USER_CODE, warm_up),
    Operation("run_child", "Run a child", "Runs for minutes.", FileArguments, RUNS_USER_CODE, run_child),
)


def main() -> None:
    exit_on_signals()
    make_server(Store(Path(sys.argv[1])), OPERATIONS).run("stdio")


if __name__ == "__main__":
    main()
