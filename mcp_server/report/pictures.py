"""The pictures of a report: the dataflow around the launch, and the input with its elements at fault."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from math import prod
from pathlib import Path

from mcp_server.model import Component, Verdict
from mcp_server.package.archive import open_package
from mcp_server.package.graph import Graph, dataflow_graph, render_svg
from mcp_server.package.launches import Buffer
from mcp_server.package.problems import PackageError
from mcp_server.package.view import PackageView

MOST_ABOVE = 14  # boxes that lead to the launch, nearest first
MOST_BELOW = 3  # and that read from it


def picture_of(verdict: Verdict, package: Path | None, model_name: str) -> str:
    """An SVG of the launches around that of the root cause or crash site; empty when none is known."""
    if package is None:
        return ""
    try:
        view = PackageView(open_package(package, model_name))
        launches = _launches(verdict, view)
        if not launches:
            return ""
        # Uncut: what is shown is chosen from it by distance to the launch.
        whole = dataflow_graph(view, launches, limit=len(view.flow.steps))
    except PackageError:
        return ""
    return render_svg(around(whole, launches, verdict.guilty), "what flows into the launch, and out of it")


def _launches(verdict: Verdict, view: PackageView) -> list[int]:
    """Launches that the verdict names and the package has; else the first that reads the guilty input."""
    if not view.package.wrapper_text:
        return []
    count = len(view.wrapper.launches)
    parties = [p for p in (verdict.crashing, verdict.guilty, *verdict.causes) if p is not None]
    named = dict.fromkeys(p.launch_index for p in parties if p.launch_index is not None)
    found = [number for number in named if 0 <= number < count]
    if found or named:
        return found
    taken = [view.wrapper.inputs().get(p.input_index) for p in parties if p.input_index is not None]
    readers = (_first_reader(view, buffer) for buffer in taken if buffer is not None)
    return list(dict.fromkeys(number for number in readers if number is not None))


def _first_reader(view: PackageView, buffer: Buffer) -> int | None:
    """The first launch that reads an input; None where no launch does."""
    for edge in view.flow.everything().edges:
        if edge.writer is None and edge.reader.launch is not None and view.flow.root(edge.name) == buffer:
            return edge.reader.launch
    return None


def around(graph: Graph, launches: Iterable[int], guilty: Component | None) -> Graph:
    """The boxes nearest to the launches, these and the guilty input marked. `left_out` is kept at 0."""
    # A launch's box begins with its number.
    numbers = {n.id: int(n.lines[0].split()[0]) for n in graph.nodes if n.kind == "launch"}
    named = {id_ for id_, number in numbers.items() if number in set(launches)}
    above, below = defaultdict(list), defaultdict(list)
    for arrow in graph.arrows:
        above[arrow.target].append(arrow.source)
        below[arrow.source].append(arrow.target)
    shown = named | _nearest(named, above, MOST_ABOVE) | _nearest(named, below, MOST_BELOW)
    marked = set(named)
    if guilty is not None and guilty.kind == "input":
        marked |= {n.id for n in graph.nodes if n.kind == "input" and guilty.name in n.lines[0]}
    nodes = tuple(replace(n, marked=n.id in marked) for n in graph.nodes if n.id in shown)
    arrows = tuple(
        replace(a, marked=a.source in marked and a.target in marked)
        for a in graph.arrows
        if a.source in shown and a.target in shown
    )
    return Graph(nodes, arrows)


def _nearest(start: set[str], neighbours: Mapping[str, list[str]], most: int) -> set[str]:
    """Up to `most` boxes that can be reached, in breadth."""
    seen, waiting = set(start), deque(sorted(start))
    while waiting and len(seen) < most + len(start):
        for near in neighbours.get(waiting.popleft(), ()):
            if near not in seen and len(seen) < most + len(start):
                seen.add(near)
                waiting.append(near)
    return seen - start


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
    parties = [p for p in (verdict.guilty, *verdict.causes) if p is not None and p.kind == "input"]
    party = next((p for p in parties if elements_of(p)), None)
    if party is None:
        return ""
    elements = elements_of(party)
    dims = len(elements[0].index)
    elements = [e for e in elements if len(e.index) == dims and min(e.index) >= 0]
    if not elements:
        return ""
    least = tuple(max(sizes) + 1 for sizes in zip(*(e.index for e in elements), strict=True))
    known = shapes.get(party.input_index) if party.input_index is not None else None
    fits = known is not None and len(known) == dims and all(map(int.__le__, least, known))
    shape = known if known is not None and fits else least
    return _drawn(party.name, elements, shape, exact=shape == known)


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
    above: list[int] = []  # the index of the row in all dimensions but the last: `[2, 3, :]`
    rest = row
    for size in reversed(shape[:-1]):
        above.insert(0, rest % size)
        rest //= size
    name = f"[{', '.join(map(str, (*above, ':')))}]"
    bad = {e.index[-1] // step: e for e in reversed(elements)}
    found = [f'<text x="{LEFT}" y="{y + CELL - 1}" class="row">{name}</text>\n']
    for cell in range(cells):
        x = LEFT + 90 + cell * CELL
        place = f'x="{x}" y="{y}" width="{CELL - 2}" height="{CELL}"'
        if cell in bad:
            tip = f"[{', '.join(map(str, bad[cell].index))}] = {bad[cell].value}"
            found.append(f'<rect {place} class="bad"><title>{escape(tip)}</title></rect>\n')
        else:
            found.append(f"<rect {place}/>\n")
    return found
