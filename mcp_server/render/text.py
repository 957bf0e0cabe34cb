"""Small pieces that all layouts share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rich.padding import Padding
from rich.text import Text

from mcp_server.model import NextStep, Party

UNPRINTABLE = {code: "�" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def plain(text: object, style: str = "") -> Text:
    """Text of any origin: no markup is read in it and no control character reaches the terminal."""
    return Text(str(text).translate(UNPRINTABLE), style=style)


def heading(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def labelled(label: str, text: object, style: str = "", width: int = 10) -> Text:
    """`label` in a column of its own, then the text."""
    return Text.assemble((f"{label:<{width}}", "dim"), plain(text, style))


def indented(text: object, style: str = "", by: int = 2) -> Padding:
    return Padding(plain(text, style), (0, 0, 0, by), expand=False)


def command_line(step: NextStep) -> str:
    """The shell line that does what a suggested tool call does."""
    return shlex.join(["aoti-debug", step.tool.replace("_", "-"), *_options(step.arguments)])


def _options(arguments: Mapping[str, Any]) -> Iterable[str]:
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield option if value else f"--no-{name.replace('_', '-')}"
        elif isinstance(value, Mapping):
            yield from (part for key, item in value.items() for part in (option, f"{key}={item}"))
        elif _is_structured(value):
            yield from (option, json.dumps(value))
        elif isinstance(value, list | tuple):
            yield from (part for item in value for part in (option, str(item)))
        else:
            yield from (option, str(value))


def _is_structured(value: Any) -> bool:
    """A list of mappings, as tensor specs are, is written as JSON."""
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)


def party_title(party: Party) -> str:
    """Kind, name and place of a guilty or crashing party, in one line."""
    places = {"input": party.input_index, "dim": party.dim, "launch": party.launch_index}
    where = ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
    value = f" = {party.value}" if party.value else ""
    kind = "" if party.name.startswith(party.kind) else f"{party.kind} "
    return f"{kind}{party.name}{value}" + (f" ({where})" if where else "")
