"""Values that fit on a line, and how they are written there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_server.model import Artifact, ModelLocation, TensorSpec

LONGEST_CELL = 80


def is_scalar(value: Any) -> bool:
    """Whether one line holds the value."""
    return value is None or isinstance(value, _ON_ONE_LINE) or _is_plain_list(value)


def is_cell(value: Any) -> bool:
    """Whether a column of a table holds the value."""
    return is_scalar(value) and len(scalar(value)) <= LONGEST_CELL and "\n" not in scalar(value)


def is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and len(value) == 0)


def scalar(value: Any) -> str:
    """The value on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return _listed(value)
    if isinstance(value, ModelLocation):
        return f"{value.file}:{value.line}  {value.code}".rstrip()
    if isinstance(value, Artifact):
        return f"{value.path}  ({value.what}, {value.bytes} bytes)"
    return _spec(value) if isinstance(value, TensorSpec) else str(value)


def _listed(values: list[Any] | tuple[Any, ...]) -> str:
    numbers = all(isinstance(item, int | float) for item in values)
    text = ", ".join(map(str, values))
    return f"[{text}]" if numbers else text


def _spec(spec: TensorSpec) -> str:
    return f"{spec.dtype} {spec.shape} on {spec.device}"


def _is_plain_list(value: Any) -> bool:
    """Numbers or words, such as a shape; sentences get a line each."""
    return isinstance(value, list | tuple) and all(
        isinstance(item, int | float) or (isinstance(item, str) and " " not in item) for item in value
    )


_ON_ONE_LINE = (str, int, float, bool, Path, ModelLocation, Artifact, TensorSpec)
