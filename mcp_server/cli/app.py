"""The commands: one for each operation of the table, and `serve` and `doctor`, which need no workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_server import __version__
from mcp_server.cli.diagnose import add_diagnose, bundle, report
from mcp_server.cli.main import Exit
from mcp_server.cli.parameters import add_commands
from mcp_server.cli.sweep import sweep
from mcp_server.cli.terminal import carried_out, print_result, run_operation
from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import READS, CheckArguments, Operation
from mcp_server.operations.table import DIAGNOSE, OPERATIONS
from mcp_server.server.listening import Listening, read_token
from mcp_server.tools.check_devices import check_devices
from mcp_server.tools.context import Context
from mcp_server.tools.machine import Checkup, checkup


async def examine(context: Context, _arguments: Any) -> Checkup:
    return checkup((await check_devices(context)).machine)


DOCTOR = Operation(
    name="doctor",
    title="Check this machine",
    description="Says what is missing on this machine for which purpose, and how to get it.",
    arguments=CheckArguments,
    hints=READS,
    call=examine,
)


def doctor(
    python: Annotated[
        str, typer.Option(help="Interpreter with torch.", metavar="TEXT", show_default=False)
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what is missing on this machine, for which purpose, and how to get it."""
    data, found = carried_out(DOCTOR, CheckArguments(python=python))
    assert isinstance(found, Checkup)
    print_result(data, found, as_json)
    raise typer.Exit(Exit.OK if found.healthy else Exit.FAULT)


HERE = Listening()


def serve(
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP instead of stdio.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = HERE.host,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", metavar="NUMBER")] = HERE.port,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File (mode 0600) with the bearer token that clients must send.", show_default=False
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Further name by which clients may address this server.", metavar="NAME", show_default=False
        ),
    ] = None,
    share_jobs: Annotated[
        bool, typer.Option("--share-jobs", help="Every client may see and stop the jobs of all.")
    ] = False,
) -> None:
    """Serve the same operations over MCP, for an agent: on stdio, or with --http on this machine.

    Whoever can call the tools can run code as you. Beyond this machine the server asks for a bearer token,
    from --token-file or AOTI_DEBUG_HTTP_TOKEN; set one on a machine that you share, too.
    """
    from mcp_server.server import app

    if http:
        names = tuple(allow_host or ())
        app.serve_http(Listening(host, port, read_token(token_file), names, share_jobs))
    elif (host, port) != (HERE.host, HERE.port) or token_file or allow_host or share_jobs:
        raise ProblemError("these options are for HTTP", allowed="with --http")
    else:
        app.serve()


HELP = """Diagnose AOTInductor failures by running the workload.

\b
Examples:
  aoti-debug diagnose train_and_export.py
  aoti-debug diagnose model.pt2 --inputs batch.pt --json
  aoti-debug explain-error --log crash.log
  aoti-debug doctor

\b
Exit codes:
  0 nothing wrong    1 fault found    2 wrong call, or it could not be done
  3 inconclusive     130 interrupted
"""

app = typer.Typer(
    name="aoti-debug",
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_diagnose(app)
add_commands(app, [operation for operation in OPERATIONS if operation is not DIAGNOSE], run_operation)
app.command("report")(report)
app.command("bundle")(bundle)
app.command("doctor")(doctor)
app.command("serve")(serve)
app.command("sweep")(sweep)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options before the command."""
