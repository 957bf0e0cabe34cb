"""Draws the dataflow of a package as SVG, without an external layout program."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Literal

from mcp_server.package.dataflow import Step, united
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

NodeKind = Literal["launch", "transfer", "input", "constant", "output", "memory"]
NODE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Node:
    """One box. `lines` are its text, `tip` is shown on hover.

    `marked`: part of the requested slice. `asked`: one of the requested launches.
    """

    id: str
    kind: NodeKind
    lines: tuple[str, ...]
    tip: str = ""
    marked: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge from writer to reader; `label` names the tensor."""

    source: str
    target: str
    label: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The graph to draw, nodes in execution order. `left_out` counts omitted launches."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    left_out: int = 0


def dataflow_graph(view: PackageView, launches: Collection[int] = (), limit: int = NODE_LIMIT) -> Graph:
    """The dataflow of a package with the slice through `launches` marked.

    With more than `limit` steps only the slice is drawn, cut to the steps nearest to `launches` in execution
    order.
    """
    flow = view.flow
    marked = united([flow.through(number) for number in launches])
    whole = len(flow.steps) <= limit
    shown = marked if marked.steps and not whole else flow.everything()
    steps = _nearest(shown.steps, launches, limit)
    kept = {step.order for step in steps}
    special = {step.order for step in marked.steps}
    nodes: dict[str, Node] = {}
    arrows: dict[Arrow, None] = {}
    for edge in shown.edges:
        reader, writer = edge.reader.order, edge.writer
        if reader not in kept or (writer is not None and writer.order not in kept):
            continue
        highlighted = reader in special and (writer is None or writer.order in special)
        if writer is not None:
            source = f"s{writer.order}"
        else:  # an input, a constant or fresh memory
            # One box for each reader: the arrows from a tensor with many readers would fill the picture.
            root = flow.root(edge.name)
            source = f"t_{root.name}@{reader}"
            kind: NodeKind = root.kind if root.kind == "input" or root.kind == "constant" else "memory"
            nodes[source] = Node(source, kind, (view.label(root.name),), root.name, highlighted)
        arrows[Arrow(source, f"s{reader}", edge.name, highlighted)] = None
    boxes = [_step_node(view, s, s.order in special, s.launch in launches) for s in steps]
    for index, name in sorted(view.wrapper.run.outputs.items()):
        writers = [step.order for step in flow.last_writers(name) if step.order in kept]
        marked_output = not special.isdisjoint(writers)
        boxes.append(Node(f"o{index}", "output", (f"output {index}",), name, marked_output))
        for order in writers:
            arrows[Arrow(f"s{order}", f"o{index}", name, order in special)] = None
    return Graph((*nodes.values(), *boxes), tuple(arrows), len(flow.steps) - len(steps))


def _nearest(steps: tuple[Step, ...], launches: Collection[int], limit: int) -> tuple[Step, ...]:
    """Up to `limit` of the steps, those nearest to a named launch first; in execution order again."""
    if len(steps) <= limit:
        return steps
    named = [place for place, step in enumerate(steps) if step.launch in launches] or [0]
    order = sorted(range(len(steps)), key=lambda place: min(abs(place - other) for other in named))
    return tuple(steps[place] for place in sorted(order[:limit]))


def _step_node(view: PackageView, step: Step, marked: bool, asked: bool) -> Node:
    node = step.node
    if not isinstance(node, Launch):
        return Node(
            f"s{step.order}", "transfer", (node.callee, f"{node.reads or ''} → {node.writes}"), "", marked
        )
    locations = view.provenance(node).locations
    name = re.sub(r"^(?:triton_|aoti_torch_(?:cuda|cpu)_|cpp_fused_)", "", node.kernel)
    name = name if len(name) <= 28 else f"{name[:16]}…{name[-11:]}"
    lines = [f"{node.index}  {name}"]
    lines += [f"{where.file.rpartition('/')[2]}:{where.line}" for where in locations[:1]]
    tip = "\n".join([node.kernel, *(place.code for place in locations)])
    return Node(f"s{step.order}", "launch", tuple(lines), tip, marked, asked)


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
.asked rect { fill: #fdba74; }
text { font: 12px ui-monospace, Menlo, Consolas, monospace; fill: #1b1f24; }
rect { stroke: #8a94a3; } path { fill: none; stroke: #b3bac4; }
.marked rect { stroke: #c2410c; stroke-width: 2.5; } path.marked { stroke: #c2410c; stroke-width: 2; }
"""

Place = tuple[float, float, float, float]


def render_svg(graph: Graph, title: str) -> str:
    """The SVG text."""
    depth = _depths(graph)
    by_depth: dict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        by_depth[depth[node.id]].append(node)
    layers = [by_depth[level] for level in sorted(by_depth)]
    _reduce_crossings(layers, graph.arrows)
    places, width, height = _places(layers)
    # Boxes hide the arrows that pass behind them.
    body = [_path(arrow, places) for arrow in sorted(graph.arrows, key=lambda arrow: arrow.marked)]
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
    """Layer of each node: its longest path from a source. Back edges of loops are ignored.

    Inputs and constants are placed just above their reader.
    """
    rank = {node.id: position for position, node in enumerate(graph.nodes)}
    parents = defaultdict(list)
    for arrow in graph.arrows:
        if rank[arrow.source] < rank[arrow.target]:
            parents[arrow.target].append(arrow.source)
    depth: dict[str, int] = {}
    for node in graph.nodes:
        depth[node.id] = 1 + max((depth[p] for p in parents[node.id]), default=-1)
    sources = {node.id for node in graph.nodes if node.kind in ("input", "constant", "memory")}
    return depth | {a.source: depth[a.target] - 1 for a in graph.arrows if a.source in sources}


def _reduce_crossings(layers: list[list[Node]], arrows: Iterable[Arrow]) -> None:
    """The barycenter heuristic: sort layers by mean neighbour position, down and up."""
    near = defaultdict(list)
    for arrow in arrows:
        near[arrow.source].append(arrow.target)
        near[arrow.target].append(arrow.source)
    position = {node.id: i - len(layer) / 2 for layer in layers for i, node in enumerate(layer)}

    def mean(node: Node) -> float:
        around = [position[name] for name in near[node.id]]
        return sum(around) / len(around) if around else position[node.id]

    for turn in range(_ROUNDS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            layer.sort(key=mean)
            for i, node in enumerate(layer):
                position[node.id] = i - len(layer) / 2


def _places(layers: list[list[Node]]) -> tuple[dict[str, Place], float, float]:
    """(left, top, width, height) of each box, then total width and height, in pixels."""
    widths = {
        node.id: max(len(line) for line in node.lines) * _CHAR + 2 * _PAD for row in layers for node in row
    }
    rows = [sum(widths[node.id] for node in row) + _GAP_X * (len(row) - 1) for row in layers]
    total = max(rows, default=200) + 2 * _GAP_X
    places: dict[str, Place] = {}
    top = float(_PAD)
    for layer, width in zip(layers, rows, strict=True):
        left = (total - width) / 2
        for node in layer:
            places[node.id] = (left, top, widths[node.id], len(node.lines) * _LINE + _PAD)
            left += widths[node.id] + _GAP_X
        top += max(places[node.id][3] for node in layer) + _GAP_Y
    return places, max(total, 420), top


def _box(node: Node, place: Place) -> str:
    left, top, width, height = place
    rounded = 4 if node.kind in ("launch", "transfer") else height / 2
    lines = "".join(
        f'<text x="{left + _PAD:.0f}" y="{top + _LINE * (i + 1):.0f}">{escape(line)}</text>'
        for i, line in enumerate(node.lines)
    )
    classes = " ".join(name for name in ("marked", "asked") if getattr(node, name))
    name = f' class="{classes}"' if classes else ""
    return (
        f"<g{name}><title>{escape(node.tip)}</title>"
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="{rounded:.0f}" '
        f'fill="{_FILL[node.kind]}"/>{lines}</g>'
    )


def _path(arrow: Arrow, places: Mapping[str, Place]) -> str:
    """An SVG path from the bottom of one box to the top of another."""
    x1, y1, w1, h1 = places[arrow.source]
    x2, y2, w2, _ = places[arrow.target]
    start, end = (x1 + w1 / 2, y1 + h1), (x2 + w2 / 2, y2)
    bend = max(20.0, abs(end[1] - start[1]) / 2)
    curve = (
        f"M{start[0]:.0f} {start[1]:.0f} C{start[0]:.0f} {start[1] + bend:.0f} "
        f"{end[0]:.0f} {end[1] - bend:.0f} {end[0]:.0f} {end[1]:.0f}"
    )
    name = ' class="marked"' if arrow.marked else ""
    return f'<path{name} d="{curve}"><title>{escape(arrow.label)}</title></path>'
