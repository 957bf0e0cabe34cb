"""Commands and their parameters, made from the table of operations, and the way back."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import Arguments, Operation, ProgramArguments, fields_of, validated
from mcp_server.operations.paths import is_exported_program
from mcp_server.operations.table import COMMANDS, PAIRS, command_name, is_mapping, option_names

# The command waits for the end, so these mean nothing to it.
NOT_ON_THE_COMMAND_LINE = frozenset({"wait_s"})

TARGET_HELP = "A script (.py), a package or exported program (.pt2), or a program to run."
REST_HELP = "Arguments of the script or program; put -- before those that start with a dash."

Option = inspect.Parameter


def parameters_of(model: type[Arguments]) -> list[Option]:
    """The signature of the command: positionals first, then one option per field."""
    fields = {name: field for name, field in fields_of(model) if name not in NOT_ON_THE_COMMAND_LINE}
    positional = [_required(name, field) for name, field in fields.items() if field.is_required()]
    if issubclass(model, ProgramArguments):
        positional = [
            _parameter("target", Annotated[str, typer.Argument(help=TARGET_HELP, metavar="TARGET")], ""),
            _parameter("rest", Annotated[list[str], typer.Argument(help=REST_HELP, metavar="ARGS")], []),
        ]
    return positional + [_option(name, field) for name, field in fields.items() if not field.is_required()]


def arguments_of(model: type[Arguments], given: Mapping[str, Any]) -> Arguments:
    """The validated arguments of a command line. Raises ProblemError."""
    values = {
        name: _from_text(name, model.model_fields[name], value)
        for name, value in given.items()
        if name in model.model_fields and value is not None
    }
    if given.get("target"):
        values.update(target_values(given["target"], list(given["rest"])))
    return validated(model, values)


def target_values(target: str, rest: list[str]) -> dict[str, Any]:
    """What a positional target stands for: told by its name and, for a .pt2, by its content."""
    if target.endswith(".py"):
        return {"script": target, "script_args": rest}
    if not target.endswith(".pt2"):
        return {"command": [target, *rest]}
    if rest:
        raise ProblemError(
            "a .pt2 takes no arguments", value=" ".join(rest), allowed="options such as --inputs"
        )
    return {"exported" if is_exported_program(Path(target)) else "package": target}


def _required(name: str, field: FieldInfo) -> Option:
    return _parameter(
        name, Annotated[str, typer.Argument(help=field.description, metavar=name.upper())], Option.empty
    )


def _option(name: str, field: FieldInfo) -> Option:
    info = typer.Option(
        *option_names(name, field), help=field.description, show_default=False, metavar=_metavar(field)
    )
    if name in PAIRS:
        return _parameter(name, Annotated[tuple[str, str], info], None)
    if name in COMMANDS:
        return _parameter(name, Annotated[str, info], "")
    default = [] if is_mapping(field) else field.default
    return _parameter(name, Annotated[_shell_type(field), info], default)


def _metavar(field: FieldInfo) -> str | None:
    if field.annotation is bool:
        return None
    if is_mapping(field):
        return "NAME=VALUE"
    return "NUMBER" if field.annotation in (int, float) else "TEXT"


def _parameter(name: str, annotation: object, default: object) -> Option:
    return Option(name, Option.KEYWORD_ONLY, default=default, annotation=annotation)


def _shell_type(field: FieldInfo) -> Any:
    """The type on the command line: NAME=VALUE for a mapping, text for anything that is not simple."""
    if field.annotation in (bool, int, float, str):
        return field.annotation
    if field.annotation == list[str] or is_mapping(field):
        return list[str]
    return list[int] if field.annotation == list[int] else str


def _from_text(name: str, field: FieldInfo, value: Any) -> Any:
    if name in PAIRS:
        return list(value)
    if name in COMMANDS:
        return _words(name, value)
    if is_mapping(field):
        return dict(_pair(name, item) for item in value)
    if isinstance(value, str) and str not in (field.annotation, *get_args(field.annotation)):
        return _json_value(name, value)
    return value


def _words(name: str, text: str) -> list[str]:
    """The words of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ProblemError(f"--{name} is no command line ({error})", value=text[:120]) from error


def _pair(name: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ProblemError(
            f"--{name} wants NAME=VALUE", value=text, allowed=f"such as --{name} OMP_NUM_THREADS=1"
        )
    return key, value


def _json_value(name: str, text: str) -> Any:
    """Structured options are JSON; a bare word, as a choice is, stands for itself."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ProblemError(f"--{name} is not JSON ({error})", value=text[:120]) from error


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
