"""Small pieces that all layouts share."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from mcp_server.model import Party

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


def party_title(party: Party) -> str:
    """Kind, name and place of a guilty or crashing party, in one line."""
    places = {"input": party.input_index, "dim": party.dim, "launch": party.launch_index}
    where = ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
    value = f" = {party.value}" if party.value else ""
    kind = "" if party.name.startswith(party.kind) else f"{party.kind} "
    return f"{kind}{party.name}{value}" + (f" ({where})" if where else "")
