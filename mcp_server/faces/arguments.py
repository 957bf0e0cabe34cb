"""Strict validation of the arguments of a call, with errors that say what to send instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mcp_server.errors import ProblemError
from mcp_server.operations.arguments import Arguments

Model = TypeVar("Model", bound=Arguments)


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """The arguments as a model. Raises ProblemError: unknown or missing name, wrong type, out of range.

    Validated as JSON: a strict model takes JSON's 3 for a float there, but not "3" for an int.
    """
    _check_names(model, values)
    try:
        return model.model_validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        raise _problem(model, error.errors(include_url=False)) from error


def closest(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _check_names(model: type[Arguments], values: Mapping[str, Any]) -> None:
    known = model.model_fields
    for name in values:
        if name not in known:
            raise ProblemError(f"unknown argument {name!r}{closest(name, known)}", allowed=", ".join(known))


def _problem(model: type[Arguments], errors: list[ErrorDetails]) -> ProblemError:
    """The first error; a union reports one per member, so all messages for the same field are joined."""
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else "arguments"
    here = [error for error in errors if error["loc"][:1] == (name,)]
    message = " or ".join(dict.fromkeys(_lowered(error["msg"]) for error in here or errors))
    where = ".".join(str(part) for part in errors[0]["loc"]) if len(here) == 1 else name
    allowed = model.model_fields[name].description if name in model.model_fields else ""
    if errors[0]["type"] == "missing":
        return ProblemError(f"missing argument {name!r}", allowed=allowed or "")
    return ProblemError(f"argument {where!r}: {message}", value=errors[0]["input"], allowed=allowed or "")


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]
