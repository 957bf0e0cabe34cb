"""The layout of any other result: scalars as labelled lines, like records as a table, the rest indented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcp_server.model import NextStep, Record
from mcp_server.render.text import command_line, heading, indented, labelled, plain

MAX_ROWS = 60
MAX_COLUMNS = 9


def record_lines(record: Record) -> Iterator[RenderableType]:
    """Scalars of a record first, then each part that has parts of its own."""
    yield from _fields({_label(name): getattr(record, name) for name in type(record).model_fields})


def _fields(fields: Mapping[str, Any]) -> Iterator[RenderableType]:
    shown = {name: value for name, value in fields.items() if not _is_empty(value)}
    scalars = {name: value for name, value in shown.items() if _is_scalar(value)}
    width = max((len(name) for name in scalars), default=0) + 2
    for name, value in scalars.items():
        yield labelled(name, _scalar(value), width=width)
    for name, value in shown.items():
        if name not in scalars:
            yield heading(name)
            yield from _part(value)


def _part(value: Any) -> Iterator[RenderableType]:
    if isinstance(value, Record):
        yield from _indent(record_lines(value))
    elif isinstance(value, Mapping):
        yield from _indent(_fields({str(key): item for key, item in value.items()}))
    else:
        yield from _items(list(value))


def _items(items: list[Any]) -> Iterator[RenderableType]:
    if all(isinstance(item, NextStep) for item in items):
        for step in items:
            yield indented(f"- {step.why}\n    $ {command_line(step)}")
    elif _is_table(items):
        yield from _indent(iter([_table(items)]))
        yield from _more(items)
    else:
        for item in items[:MAX_ROWS]:
            yield from _item(item)
        yield from _more(items)


def _item(item: Any) -> Iterator[RenderableType]:
    if _is_scalar(item):
        yield indented(f"- {_scalar(item)}")
    else:
        yield Text("  -")
        yield from _indent(_part(item), by=4)


def _more(items: Sequence[Any]) -> Iterator[RenderableType]:
    if len(items) > MAX_ROWS:
        yield indented(f"… and {len(items) - MAX_ROWS} more (all of them with --json)", "dim")


def _is_table(items: Sequence[Any]) -> bool:
    """Several records of one class, few columns, every cell short."""
    if not all(type(item) is type(items[0]) and isinstance(item, Record) for item in items):
        return False
    columns = _columns(items)
    return len(columns) <= MAX_COLUMNS and all(
        _is_cell(getattr(item, name)) for item in items for name in columns
    )


def _columns(items: Sequence[Any]) -> list[str]:
    """Fields that say something in at least one row."""
    names = type(items[0]).model_fields
    return [name for name in names if any(not _is_empty(getattr(item, name)) for item in items)]


def _table(items: Sequence[Any]) -> Table:
    columns = _columns(items)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(_label(name), overflow="fold")
    for item in items[:MAX_ROWS]:
        table.add_row(*(plain(_scalar(getattr(item, name))) for name in columns))
    return table


def _indent(parts: Iterator[RenderableType], by: int = 2) -> Iterator[RenderableType]:
    return (Padding(part, (0, 0, 0, by), expand=False) for part in parts)


def _label(name: str) -> str:
    return name.replace("_", " ")


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and len(value) == 0)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | Path) or _is_plain_list(value)


def _is_plain_list(value: Any) -> bool:
    """Numbers or words, such as a shape; sentences get a line each."""
    return isinstance(value, list | tuple) and all(
        isinstance(item, int | float) or (isinstance(item, str) and " " not in item) for item in value
    )


def _is_cell(value: Any) -> bool:
    return _is_scalar(value) and len(_scalar(value)) <= 80 and "\n" not in _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float) for item in value)
        return f"[{', '.join(map(str, value))}]" if numbers else ", ".join(map(str, value))
    return str(value)
