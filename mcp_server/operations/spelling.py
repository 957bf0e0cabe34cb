"""How an operation and its arguments are spelled on the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from mcp_server.model import NextStep
from mcp_server.operations.declaration import Operation
from mcp_server.operations.resumed import HANDLE
from mcp_server.operations.table import OPERATIONS

OPTION_NAMES = {
    "inputs": ("--inputs", "-i"),
    "env": ("--env", "-e"),
    "flags": ("--flag", "-f"),
    "changes": ("--change",),
    "how": ("--as",),
}
PAIRS = frozenset({"replace"})  # options that take two words at once

_BY_NAME: Mapping[str, Operation] = {operation.name: operation for operation in OPERATIONS}


def command_name(tool: str) -> str:
    return tool.replace("_", "-")


def option_names(name: str, field: FieldInfo) -> tuple[str, ...]:
    """The spellings of a field's option; a flag's second spelling, after a slash, turns it off."""
    dashed = command_name(name)
    plain = f"--{dashed}/--no-{dashed}" if field.annotation is bool else f"--{dashed}"
    return OPTION_NAMES.get(name, (plain,))


def is_mapping(field: FieldInfo) -> bool:
    """Whether the option is repeated as NAME=VALUE."""
    return get_origin(field.annotation) is dict


def command_line(step: NextStep) -> str:
    """The shell line that does what a suggested tool call does; required arguments stand without a name."""
    operation = _BY_NAME.get(step.tool)
    required = (
        {name for name, field in operation.arguments.model_fields.items() if field.is_required()}
        if operation
        else set()
    )
    positional = [str(step.arguments[name]) for name in sorted(required & set(step.arguments))]
    named = {name: value for name, value in step.arguments.items() if name not in required}
    if step.tool == "diagnose" and HANDLE.fullmatch(str(named.get("log", ""))):
        named = {"resume": named.pop("log"), **named}
    return shlex.join(["aoti-debug", command_name(step.tool), *positional, *_options(named)])


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        option = OPTION_NAMES.get(name, (f"--{command_name(name)}",))[0]
        if name in PAIRS:
            yield from (option, *value)
        elif isinstance(value, bool):
            yield option if value else f"--no-{command_name(name)}"
        else:
            yield from (part for item in _repeated(value) for part in (option, item))


def _repeated(value: Any) -> list[str]:
    """The texts that an option is given, one for each time that it is named."""
    if isinstance(value, Mapping):
        return [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        structured = any(isinstance(item, Mapping) for item in value)
        return [json.dumps(value)] if structured else [str(item) for item in value]
    return [str(value)]
