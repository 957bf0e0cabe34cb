"""`aoti-debug doctor`: what is missing on this machine, and how to get it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mcp_server.faces.exits import Exit
from mcp_server.faces.terminal import carried_out, print_result
from mcp_server.operations.arguments import CheckArguments
from mcp_server.operations.declaration import READS, Operation
from mcp_server.steps.check_devices import check_devices
from mcp_server.steps.context import Context
from mcp_server.steps.machine_needs import Checkup, checkup


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
