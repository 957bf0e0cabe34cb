"""The commands of `aoti-debug`: one per operation, and those that only a person or a client needs."""

from __future__ import annotations

from typing import Annotated

import typer

from mcp_server import __version__
from mcp_server.faces.commands import add_commands
from mcp_server.faces.diagnosing import add_diagnose
from mcp_server.faces.doctor import doctor
from mcp_server.faces.reporting import bundle, report
from mcp_server.faces.serve import serve
from mcp_server.faces.sweep import sweep
from mcp_server.faces.terminal import run_operation
from mcp_server.operations.table import DIAGNOSE, OPERATIONS

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
