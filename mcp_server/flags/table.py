"""The flag table as Markdown, for the guides."""

from __future__ import annotations

from collections.abc import Iterable

from mcp_server.versions import FIRST, text

from .types import Flag

_HEAD = ("flag", "takes effect at", "torch", "values", "shows", "does not show")


def table_markdown(flags: Iterable[Flag]) -> str:
    """One row for each flag; a `|` inside a cell is escaped."""
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_cells, flags)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cells(flag: Flag) -> tuple[str, ...]:
    cells = (f"`{flag.name}`", _moments(flag), _since(flag), flag.values.words, flag.shows, flag.misses)
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _moments(flag: Flag) -> str:
    return "never" if flag.inert else ", ".join(flag.acts)


def _since(flag: Flag) -> str:
    if flag.inert:
        return "none"
    first = "all" if flag.since == FIRST else f"≥{text(flag.since)}"
    if flag.cpu_since is not None:
        first += f", CPU ≥{flag.cpu_since[0]}.{flag.cpu_since[1]}"
    return f"{first}, {flag.device.upper()} only" if flag.device else first
