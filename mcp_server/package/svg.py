"""Draws a dataflow graph as SVG, in layers from top to bottom, without any other program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from mcp_server.package.graph import Arrow, Graph, Node

_CHAR, _LINE, _PAD = 7.2, 16, 10
_GAP_X, _GAP_Y = 28, 56
_ROUNDS = 4
_FILL = {
    "launch": "#eef3fb",
    "transfer": "#f4f4f4",
    "input": "#e7f6ea",
    "constant": "#fbf3dc",
    "output": "#f3e8fa",
    "memory": "#ffffff",
}
_STYLE = """
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; }
rect { stroke: #8a94a3; } path { fill: none; stroke: #b3bac4; }
.marked rect { stroke: #c2410c; stroke-width: 2.5; } path.marked { stroke: #c2410c; stroke-width: 2; }
"""

Place = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Bend:
    """A place in a layer that a longer arrow passes through, beside the boxes."""

    id: str


_Item = Node | _Bend


def render_svg(graph: Graph, title: str) -> str:
    """The whole picture as text. Boxes are launches; marked ones belong to what was asked."""
    depth = _depths(graph)
    routes = {arrow: _route(arrow, depth) for arrow in graph.arrows}
    layers = _ordered(_layers(graph, depth, routes), routes.values())
    places, width, height = _places(layers)
    body = [_path(arrow, routes[arrow], places) for arrow in sorted(graph.arrows, key=lambda a: a.marked)]
    body += [_box(node, places[node.id]) for node in graph.nodes]
    note = f"{title}; {graph.left_out} more launches are not shown" if graph.left_out else title
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height + 30:.0f}" '
        f'viewBox="0 -30 {width:.0f} {height + 30:.0f}">\n'
        f"<style>{_STYLE}</style>\n"
        '<rect x="0" y="-30" width="100%" height="100%" fill="white" stroke="none"/>\n'
        f'<text x="10" y="-10">{escape(note)}</text>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _depths(graph: Graph) -> dict[str, int]:
    """Layers by the longest path from a source. Arrows against execution order (loops) do not count.

    Inputs and constants are moved down to just above their first reader.
    """
    rank = {node.id: position for position, node in enumerate(graph.nodes)}
    parents, readers = defaultdict(list), defaultdict(list)
    for arrow in graph.arrows:
        if rank[arrow.source] < rank[arrow.target]:
            parents[arrow.target].append(arrow.source)
            readers[arrow.source].append(arrow.target)
    depth: dict[str, int] = {}
    for node in graph.nodes:
        depth[node.id] = 1 + max((depth[p] for p in parents[node.id]), default=-1)
    for node in graph.nodes:
        if node.kind in ("input", "constant", "memory") and readers[node.id]:
            depth[node.id] = min(depth[reader] for reader in readers[node.id]) - 1
    return depth


def _route(arrow: Arrow, depth: Mapping[str, int]) -> tuple[str, ...]:
    """The ids that an arrow goes through: its ends, and a bend in each layer between them."""
    between = range(depth[arrow.source] + 1, depth[arrow.target])
    bends = (f"{arrow.source}>{arrow.target}@{level}" for level in between)
    return (arrow.source, *bends, arrow.target)


def _layers(
    graph: Graph, depth: Mapping[str, int], routes: Mapping[Arrow, tuple[str, ...]]
) -> list[list[_Item]]:
    layers: dict[int, dict[str, _Item]] = defaultdict(dict)
    for node in graph.nodes:
        layers[depth[node.id]][node.id] = node
    for arrow, route in routes.items():
        for step, name in enumerate(route[1:-1], 1):
            layers[depth[arrow.source] + step][name] = _Bend(name)
    return [list(layers[level].values()) for level in sorted(layers)]


def _ordered(layers: list[list[_Item]], routes: Iterable[tuple[str, ...]]) -> list[list[_Item]]:
    """Fewer crossings: each layer sorted by the mean place of its neighbours, down and up a few times."""
    near = defaultdict(list)
    for route in routes:
        for upper, lower in pairwise(route):
            near[upper].append(lower)
            near[lower].append(upper)
    position = {item.id: i - len(layer) / 2 for layer in layers for i, item in enumerate(layer)}
    for turn in range(_ROUNDS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            layer.sort(key=lambda item: _mean(near[item.id], position, position[item.id]))
            for i, item in enumerate(layer):
                position[item.id] = i - len(layer) / 2
    return layers


def _mean(names: list[str], position: Mapping[str, float], own: float) -> float:
    return sum(position[name] for name in names) / len(names) if names else own


def _places(layers: list[list[_Item]]) -> tuple[dict[str, Place], float, float]:
    """Left, top, width and height of each item; total width and height."""
    rows = [[(item, *_size(item)) for item in layer] for layer in layers]
    widths = [sum(w for _, w, _ in row) + _GAP_X * (len(row) - 1) for row in rows]
    total = max(widths, default=200) + 2 * _GAP_X
    places: dict[str, Place] = {}
    top = float(_PAD)
    for row, width in zip(rows, widths, strict=True):
        left = (total - width) / 2
        high = max(h for _, _, h in row)
        for item, w, h in row:
            places[item.id] = (left, top, w, high if isinstance(item, _Bend) else h)
            left += w + _GAP_X
        top += high + _GAP_Y
    return places, max(total, 420), top


def _size(node: _Item) -> tuple[float, float]:
    if isinstance(node, _Bend):
        return 2, 0
    return max(len(line) for line in node.lines) * _CHAR + 2 * _PAD, len(node.lines) * _LINE + _PAD


def _box(node: Node, place: Place) -> str:
    left, top, width, height = place
    rounded = 4 if node.kind in ("launch", "transfer") else height / 2
    lines = "".join(
        f'<text x="{left + _PAD:.0f}" y="{top + _LINE * (i + 1):.0f}">{escape(line)}</text>'
        for i, line in enumerate(node.lines)
    )
    name = ' class="marked"' if node.marked else ""
    return (
        f"<g{name}><title>{escape(node.tip)}</title>"
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="{rounded:.0f}" '
        f'fill="{_FILL[node.kind]}"/>{lines}</g>'
    )


def _path(arrow: Arrow, route: tuple[str, ...], places: Mapping[str, Place]) -> str:
    """A curve from the foot of one box to the head of another, down through the bends between."""
    drawn: list[str] = []
    for upper, lower in pairwise(route):
        x1, y1, w1, h1 = places[upper]
        x2, y2, w2, _ = places[lower]
        start, end = (x1 + w1 / 2, y1 + h1), (x2 + w2 / 2, y2)
        bend = max(20.0, abs(end[1] - start[1]) / 2)
        begin = f"L{start[0]:.0f} {start[1]:.0f}" if drawn else f"M{start[0]:.0f} {start[1]:.0f}"
        drawn.append(
            f"{begin} C{start[0]:.0f} {start[1] + bend:.0f} {end[0]:.0f} {end[1] - bend:.0f} "
            f"{end[0]:.0f} {end[1]:.0f}"
        )
    name = ' class="marked"' if arrow.marked else ""
    return f'<path{name} d="{" ".join(drawn)}"><title>{escape(arrow.label)}</title></path>'


def render_dot(graph: Graph) -> str:
    """The same graph for graphviz."""
    lines = ["digraph dataflow {", '  node [shape=box, style="rounded,filled", fontname="monospace"];']
    for node in graph.nodes:
        label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in node.lines)
        colour = ', color="#c2410c", penwidth=2' if node.marked else ""
        lines.append(f'  "{node.id}" [label="{label}", fillcolor="{_FILL[node.kind]}"{colour}];')
    for arrow in graph.arrows:
        colour = ' [color="#c2410c", penwidth=2]' if arrow.marked else ""
        lines.append(f'  "{arrow.source}" -> "{arrow.target}"{colour};')
    return "\n".join([*lines, "}", ""])
