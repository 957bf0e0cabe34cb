"""The layout of `doctor`: one line for each need, and under those that are not met how to meet them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from mcp_server.render.text import indented, plain
from mcp_server.steps.machine_needs import Checkup, Need, Standing

MARKS: dict[Standing, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "limited": ("limited", "yellow"),
    "missing": ("missing", "red"),
}


def checkup_lines(checkup: Checkup) -> Iterator[RenderableType]:
    """Every need with its standing; what is essential says so."""
    yield plain(checkup.summary, "bold")
    for need in checkup.needs:
        yield _line(need)
        if need.how:
            yield indented(f"{need.how}", "dim", by=28)
    for unknown in checkup.unknown:
        yield indented(f"unknown: {unknown}", "yellow", by=0)


def _line(need: Need) -> Text:
    mark, style = MARKS[need.standing]
    purpose = f"for {need.for_what}" + (", essential" if need.essential else "")
    return Text.assemble(
        (f"{mark:<9}", style), f"{need.name:<19}", plain(f"{need.found}  "), (purpose, "dim")
    )
