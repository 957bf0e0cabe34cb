"""Small pieces that all layouts share: titles, and values that fit on a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.padding import Padding
from rich.text import Text

from mcp_server.model import Artifact, Component, ModelLocation, TensorSpec

UNPRINTABLE = {code: "�" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def plain(text: object, style: str = "") -> Text:
    """Text of any origin: no markup is read in it and no control character reaches the terminal."""
    return Text(str(text).translate(UNPRINTABLE), style=style)


def heading(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def labelled(label: str, text: object, style: str = "", width: int = 12) -> Text:
    """`label` in a column of its own, then the text."""
    return Text.assemble((f"{label:<{width}}", "dim"), plain(text, style))


def indented(text: object, style: str = "", by: int = 2) -> Padding:
    return Padding(plain(text, style), (0, 0, 0, by), expand=False)


def party_title(party: Component) -> str:
    """Kind, name and place of a root cause or crash site, in one line."""
    numbered = party.name.endswith(f"[{party.input_index}]")  # `args[1]` says its number itself
    places = {
        "input": None if numbered else party.input_index,
        "dim": party.dim,
        "launch": party.launch_index,
    }
    where = ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
    value = f" = {party.value}" if party.value else ""
    kind = "" if party.name.startswith(party.kind) else f"{party.kind} "
    return f"{kind}{party.name}{value}" + (f" ({where})" if where else "")


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
        numbers = all(isinstance(item, int | float) for item in value)
        text = ", ".join(map(str, value))
        return f"[{text}]" if numbers else text
    if isinstance(value, ModelLocation):
        return f"{value.file}:{value.line}  {value.code}".rstrip()
    if isinstance(value, Artifact):
        return f"{value.path}  ({value.what}, {value.bytes} bytes)"
    if isinstance(value, TensorSpec):
        return f"{value.dtype} {value.shape} on {value.device}"
    return str(value)


def _is_plain_list(value: Any) -> bool:
    """Numbers or words, such as a shape; sentences get a line each."""
    return isinstance(value, list | tuple) and all(
        isinstance(item, int | float) or (isinstance(item, str) and " " not in item) for item in value
    )


_ON_ONE_LINE = (str, int, float, bool, Path, ModelLocation, Artifact, TensorSpec)
