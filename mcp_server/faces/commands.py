"""Commands made from the table of operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from mcp_server.faces.parameters import arguments_of, parameters_of
from mcp_server.operations.arguments import Arguments
from mcp_server.operations.declaration import Operation
from mcp_server.operations.spelling import command_name

Runner = Callable[[Operation, Arguments, bool], int]
"""Carries an operation out, prints its result (as JSON if asked), and returns the exit code."""

JSON_OPTION = inspect.Parameter(
    "as_json",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--json", help="Print the result as JSON, complete.")],
)


def add_commands(app: typer.Typer, operations: Iterable[Operation], runner: Runner) -> None:
    """One command per operation."""
    for operation in operations:
        app.command(
            command_name(operation.name),
            help=operation.description,
            short_help=operation.title,
            epilog=examples(operation),
        )(_command(operation, runner))


def _command(operation: Operation, runner: Runner) -> Callable[..., None]:
    def command(**given: Any) -> None:
        as_json = given.pop("as_json")
        raise typer.Exit(runner(operation, arguments_of(operation.arguments, given), as_json))

    parameters = [*parameters_of(operation.arguments), JSON_OPTION]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = operation.name
    return command


def examples(operation: Operation) -> str | None:
    """Example lines under the help; \\b keeps them from being joined into a paragraph."""
    return (
        "\b\nExamples:\n" + "\n".join(f"  {line}" for line in operation.examples)
        if operation.examples
        else None
    )
