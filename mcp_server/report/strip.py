"""An input tensor as a strip of SVG cells, the elements at fault marked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from math import prod

from mcp_server.model import Component, Verdict

MOST_CELLS = 64  # of one row of the strip
MOST_ROWS = 8
MOST_MARKS = 32
CELL, LEFT, TOP = 11, 4, 34

_ELEMENT = re.compile(r"^(?P<name>.{1,200}?)\[(?P<index>-?\d+(?:, ?-?\d+)*)\]\s*=\s*(?P<value>.{1,80})$")


@dataclass(frozen=True)
class Element:
    """One element at fault: its tensor, its index in each dimension, and its value as text."""

    tensor: str
    index: tuple[int, ...]
    value: str


def elements_of(party: Component) -> list[Element]:
    """The elements that a party names and that have the form `args[1][2, 17] = 731`."""
    found = (_ELEMENT.match(text) for text in party.elements[:MOST_MARKS])
    return [
        Element(each["name"], tuple(int(part) for part in each["index"].split(",")), each["value"])
        for each in found
        if each
    ]


def strip_of(verdict: Verdict, shapes: dict[int, tuple[int, ...]]) -> str:
    """SVG of the input at fault, `shapes` being those of the call's tensors by number.

    Without the shape the strip reaches a little beyond the last element that is named. Empty when the verdict
    names no element of an input.
    """
    party = next((p for p in _parties(verdict) if p.kind == "input" and elements_of(p)), None)
    if party is None:
        return ""
    elements = elements_of(party)
    known = shapes.get(party.input_index) if party.input_index is not None else None
    elements = [e for e in elements if len(e.index) == len(elements[0].index) and min(e.index) >= 0]
    if not elements:
        return ""
    shape = known if known is not None and _fits(elements, known) else _least_shape(elements)
    return _drawn(party.name, elements, shape, exact=shape == known)


def _parties(verdict: Verdict) -> list[Component]:
    return [p for p in (verdict.guilty, *verdict.causes) if p is not None]


def _fits(elements: list[Element], shape: tuple[int, ...]) -> bool:
    return all(
        len(e.index) == len(shape) and all(at < size for at, size in zip(e.index, shape, strict=True))
        for e in elements
    )


def _least_shape(elements: list[Element]) -> tuple[int, ...]:
    return tuple(max(sizes) + 1 for sizes in zip(*(e.index for e in elements), strict=True))


def _drawn(name: str, elements: list[Element], shape: tuple[int, ...], exact: bool) -> str:
    """Rows are all dimensions but the last, flattened; those with an element at fault are shown first."""
    width = shape[-1]
    at_fault = {_row(e, shape): e for e in reversed(elements)}
    rows = sorted(at_fault)[:MOST_ROWS]
    rows += [row for row in range(min(prod(shape[:-1]), MOST_ROWS)) if row not in at_fault]
    rows = sorted(rows[:MOST_ROWS])
    step = max(1, -(-width // MOST_CELLS))  # elements in one cell
    cells = -(-width // step)
    body = []
    for line, row in enumerate(rows):
        body += _cells(row, line, cells, step, [e for e in elements if _row(e, shape) == row], shape)
    height = TOP + len(rows) * (CELL + 3) + 4
    label = f"{name}, shape {list(shape)}" if exact else f"{name}, up to the last element at fault"
    note = f"; {step} elements a cell" if step > 1 else ""
    hidden = prod(shape[:-1]) - len(rows)
    note += f"; {hidden} more {'row' if hidden == 1 else 'rows'} not shown" if hidden > 0 else ""
    first = elements[0]
    said = f"[{', '.join(map(str, first.index))}] = {first.value}"
    drawn = max(LEFT + 90 + cells * CELL + 8, 420)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="strip" width="{drawn}" height="{height}" '
        f'viewBox="0 0 {drawn} {height}" role="img" aria-label="{escape(f"{name}: elements at fault")}">\n'
        f'<text x="{LEFT}" y="14" class="name">{escape(label + note)}</text>\n'
        f'<text x="{LEFT}" y="28" class="bad">{escape(said)}</text>\n{"".join(body)}</svg>\n'
    )


def _row(element: Element, shape: tuple[int, ...]) -> int:
    """The number of the row that the element is in."""
    row = 0
    for at, size in zip(element.index[:-1], shape[:-1], strict=True):
        row = row * size + at
    return row


def _cells(
    row: int, line: int, cells: int, step: int, elements: list[Element], shape: tuple[int, ...]
) -> list[str]:
    y = TOP + line * (CELL + 3)
    bad = {e.index[-1] // step: e for e in reversed(elements)}
    found = [f'<text x="{LEFT}" y="{y + CELL - 1}" class="row">{_row_name(row, shape)}</text>\n']
    for cell in range(cells):
        x = LEFT + 90 + cell * CELL
        place = f'x="{x}" y="{y}" width="{CELL - 2}" height="{CELL}"'
        if cell in bad:
            tip = f"[{', '.join(map(str, bad[cell].index))}] = {bad[cell].value}"
            found.append(f'<rect {place} class="bad"><title>{escape(tip)}</title></rect>\n')
        else:
            found.append(f"<rect {place}/>\n")
    return found


def _row_name(row: int, shape: tuple[int, ...]) -> str:
    """The index of the row in all dimensions but the last: `[2, 3, :]`."""
    parts: list[int] = []
    for size in reversed(shape[:-1]):
        parts.insert(0, row % size)
        row //= size
    return escape(f"[{', '.join(map(str, (*parts, ':')))}]")
