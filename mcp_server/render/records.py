"""The layout of any result: scalars as labelled lines, like records as a table, the rest indented."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from mcp_server.model import NextStep, Record
from mcp_server.operations.spelling import command_line
from mcp_server.render.text import heading, indented, labelled, plain
from mcp_server.render.values import is_cell, is_empty, is_scalar, scalar

MAX_ROWS = 60
MAX_COLUMNS = 9
LONGEST_ON_SHARED_LINE = 60

FINDINGS = ("summary", "pattern", "how", "failure", "problems", "mismatches", "first_bad", "last")

Fields = Mapping[str, Any]


def record_lines(record: Record) -> Iterator[RenderableType]:
    """Scalars of a record first, then each part that has parts of its own."""
    yield from _fields(_named(record))


def _named(record: Record) -> dict[str, Any]:
    """The fields that say something, by the label that a person reads, the findings first."""
    names = sorted(type(record).model_fields, key=lambda name: name not in FINDINGS)
    fields = {name.replace("_", " "): getattr(record, name) for name in names}
    return {name: value for name, value in fields.items() if not is_empty(value)}


def _fields(fields: Fields) -> Iterator[RenderableType]:
    scalars = {name: value for name, value in fields.items() if is_scalar(value)}
    width = max((len(name) for name in scalars), default=0) + 2
    for name, value in scalars.items():
        yield labelled(name, scalar(value), width=width)
    for name, value in fields.items():
        if name not in scalars:
            yield heading(name)
            yield from _part(value)


def _part(value: Any) -> Iterator[RenderableType]:
    if isinstance(value, NextStep):
        yield from _step(value)
    elif isinstance(value, Record):
        yield from _indent(record_lines(value))
    elif isinstance(value, Mapping):
        yield from _indent(_fields({str(key): item for key, item in value.items()}))
    else:
        yield from _items(list(value))


def _items(items: Sequence[Any]) -> Iterator[RenderableType]:
    shown = items[:MAX_ROWS]
    if _is_table(items):
        yield from _indent([_table(shown)])
    else:
        for item in shown:
            yield from _item(item)
    if len(items) > MAX_ROWS:
        yield indented(f"… and {len(items) - MAX_ROWS} more (all of them with --json)", "dim")


def _item(item: Any) -> Iterator[RenderableType]:
    if is_scalar(item):
        yield indented(f"- {scalar(item)}")
    elif isinstance(item, NextStep):
        yield from _step(item)
    elif isinstance(item, Record):
        yield from _block(_named(item))
    else:
        yield from _indent(_part(item))


def _block(fields: Fields) -> Iterator[RenderableType]:
    """One record of a list: its short scalars share a line, the rest stands below."""
    shared = {name: value for name, value in fields.items() if _may_share(value)}
    yield indented("- " + ", ".join(f"{name} {scalar(value)}" for name, value in shared.items()))
    yield from _indent(_fields({name: value for name, value in fields.items() if name not in shared}), by=4)


def _may_share(value: Any) -> bool:
    return is_scalar(value) and len(scalar(value)) <= LONGEST_ON_SHARED_LINE


def _step(step: NextStep) -> Iterator[RenderableType]:
    yield indented(f"- {step.why}")
    yield indented(f"$ {command_line(step)}", "green", by=4)


def _is_table(items: Sequence[Any]) -> bool:
    """Records of one class, few columns, every cell short."""
    if is_scalar(items[0]) or not all(
        isinstance(item, Record) and type(item) is type(items[0]) for item in items
    ):
        return False
    columns = _columns(items)
    return len(columns) <= MAX_COLUMNS and all(
        is_cell(getattr(item, name)) for item in items for name in columns
    )


def _columns(items: Sequence[Record]) -> list[str]:
    """Fields that say something in at least one row."""
    names = type(items[0]).model_fields
    return [name for name in names if any(not is_empty(getattr(item, name)) for item in items)]


def _table(items: Sequence[Record]) -> Table:
    columns = _columns(items)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for item in items:
        table.add_row(*(plain(scalar(getattr(item, name))) for name in columns))
    return table


def _indent(parts: Iterable[RenderableType], by: int = 2) -> Iterator[RenderableType]:
    return (Padding(part, (0, 0, 0, by), expand=False) for part in parts)
