"""Draws the dataflow of a package as SVG, without an external layout program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Literal

from mcp_server.package.dataflow import Edge, Slice, Step
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
    marked = _slice(view, launches)
    whole = len(view.flow.steps) <= limit
    shown = view.flow.everything() if whole else marked or view.flow.everything()
    steps = _nearest(shown.steps, launches, limit)
    kept = {step.order for step in steps}
    marked_steps = {step.order for step in marked.steps} if marked else set()
    edges = [
        e for e in shown.edges if e.reader.order in kept and (e.writer is None or e.writer.order in kept)
    ]
    arrows = tuple(dict.fromkeys(_arrow(view, edge, marked_steps) for edge in edges))
    outputs, out_arrows = _outputs(view, steps, marked_steps)
    boxes = [_step_node(view, s, s.order in marked_steps, s.launch in launches) for s in steps]
    nodes = (*_source_nodes(view, edges, marked_steps), *boxes, *outputs)
    return Graph(nodes, (*arrows, *out_arrows), len(view.flow.steps) - len(steps))


def _nearest(steps: tuple[Step, ...], launches: Collection[int], limit: int) -> tuple[Step, ...]:
    """Up to `limit` of the steps, those nearest to a named launch first; in execution order again."""
    if len(steps) <= limit:
        return steps
    named = [place for place, step in enumerate(steps) if step.launch in launches] or [0]
    order = sorted(range(len(steps)), key=lambda place: min(abs(place - other) for other in named))
    return tuple(steps[place] for place in sorted(order[:limit]))


def _slice(view: PackageView, launches: Collection[int]) -> Slice | None:
    slices = [view.slice_through(number) for number in launches]
    if not slices:
        return None
    steps = {step.order: step for one in slices for step in one.steps}
    edges = tuple(dict.fromkeys(edge for one in slices for edge in one.edges))
    return Slice(tuple(steps[order] for order in sorted(steps)), edges)


def _step_node(view: PackageView, step: Step, marked: bool, asked: bool) -> Node:
    node = step.node
    if not isinstance(node, Launch):
        return Node(_id(step), "transfer", (node.callee, f"{node.reads or ''} → {node.writes}"), "", marked)
    locations = view.provenance(node).locations
    lines = [f"{node.index}  {_short(node.kernel)}"]
    if locations:
        where = locations[0]
        lines.append(f"{where.file.rpartition('/')[2]}:{where.line}")
    tip = "\n".join([node.kernel, *(place.code for place in locations)])
    return Node(_id(step), "launch", tuple(lines), tip, marked, asked)


def _short(kernel: str) -> str:
    """A kernel's name without its common prefix, shortened to 28 characters."""
    for prefix in ("triton_", "aoti_torch_cuda_", "aoti_torch_cpu_", "cpp_fused_"):
        kernel = kernel.removeprefix(prefix)
    return kernel if len(kernel) <= 28 else f"{kernel[:16]}…{kernel[-11:]}"


def _id(step: Step) -> str:
    return f"s{step.order}"


def _arrow(view: PackageView, edge: Edge, marked_steps: Collection[int]) -> Arrow:
    source = _id(edge.writer) if edge.writer else _source_id(view, edge.name)
    marked = edge.reader.order in marked_steps and (edge.writer is None or edge.writer.order in marked_steps)
    return Arrow(source, _id(edge.reader), edge.name, marked)


def _source_id(view: PackageView, name: str) -> str:
    return f"t_{view.flow.root(name).name}"


def _source_nodes(view: PackageView, edges: list[Edge], marked_steps: Collection[int]) -> list[Node]:
    """Nodes for the inputs, constants and fresh buffers that edges start from."""
    nodes: dict[str, Node] = {}
    for edge in edges:
        if edge.writer is not None:
            continue
        buffer = view.flow.root(edge.name)
        kind: NodeKind = "memory"
        if buffer.kind == "input":
            kind = "input"
        elif buffer.kind == "constant":
            kind = "constant"
        key = f"t_{buffer.name}"
        marked = edge.reader.order in marked_steps or (key in nodes and nodes[key].marked)
        nodes[key] = Node(key, kind, (view.label(buffer.name),), buffer.name, marked)
    return list(nodes.values())


def _outputs(
    view: PackageView, steps: tuple[Step, ...], marked_steps: Collection[int]
) -> tuple[list[Node], list[Arrow]]:
    kept = {step.order for step in steps}
    nodes, arrows = [], []
    for index, name in sorted(view.wrapper.run.outputs.items()):
        writers = [s for s in view.flow.last_writers(name) if s.order in kept]
        marked = any(s.order in marked_steps for s in writers)
        nodes.append(Node(f"o{index}", "output", (f"output {index}",), name, marked))
        arrows += [Arrow(_id(s), f"o{index}", name, s.order in marked_steps) for s in writers]
    return nodes, arrows


_CHAR, _LINE, _PAD = 7.2, 16, 10
_GAP_X, _GAP_Y = 28, 56
_ROUNDS = 4
_NEAR = 2
_REPEATED = ("input", "constant", "memory")
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


@dataclass(frozen=True, slots=True)
class _Bend:
    """A point in a layer that an arrow spanning several layers passes through."""

    id: str


_Item = Node | _Bend


def render_svg(graph: Graph, title: str) -> str:
    """The SVG text."""
    graph = _repeat_shared_sources(graph, _depths(graph))
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
    """Layer of each node: its longest path from a source. Back edges of loops are ignored.

    Inputs and constants are placed just above their first reader.
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


def _repeat_shared_sources(graph: Graph, depth: Mapping[str, int]) -> Graph:
    """The graph with inputs and constants repeated near distant readers.

    Otherwise the arrows from a tensor with many readers would fill the picture.
    """
    repeated = {node.id: node for node in graph.nodes if node.kind in _REPEATED}
    copies: dict[tuple[str, int], Node] = {}
    arrows = []
    for name, near in _clusters(graph, depth, repeated):
        copy = replace(
            repeated[name], id=f"{name}@{depth[near[0].target]}", marked=any(a.marked for a in near)
        )
        copies[name, depth[near[0].target]] = copy
        arrows += [replace(arrow, source=copy.id) for arrow in near]
    kept = [arrow for arrow in graph.arrows if arrow.source not in repeated]
    nodes = [node for node in graph.nodes if node.id not in repeated]
    return replace(graph, nodes=(*copies.values(), *nodes), arrows=(*kept, *arrows))


def _clusters(
    graph: Graph, depth: Mapping[str, int], sources: Collection[str]
) -> Iterator[tuple[str, list[Arrow]]]:
    """Arrows by source, grouped so that the readers of a group lie within a few layers."""
    near: dict[str, list[Arrow]] = {}
    for arrow in sorted(graph.arrows, key=lambda a: depth[a.target]):
        if arrow.source not in sources:
            continue
        group = near.get(arrow.source)
        if group and depth[arrow.target] - depth[group[0].target] > _NEAR:
            yield arrow.source, group
            group = None
        near[arrow.source] = [*(group or []), arrow]
    yield from near.items()


def _route(arrow: Arrow, depth: Mapping[str, int]) -> tuple[str, ...]:
    """The ids along an arrow: its ends, and a bend in each layer between them."""
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
    """Reduce crossings with the barycenter heuristic: sort layers by mean neighbour position, down and up."""
    near = defaultdict(list)
    for route in routes:
        for upper, lower in pairwise(route):
            near[upper].append(lower)
            near[lower].append(upper)
    position = {item.id: i - len(layer) / 2 for layer in layers for i, item in enumerate(layer)}
    for turn in range(_ROUNDS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            layer.sort(key=lambda item: _barycenter(near[item.id], position, position[item.id]))
            for i, item in enumerate(layer):
                position[item.id] = i - len(layer) / 2
    return layers


def _barycenter(names: list[str], position: Mapping[str, float], own: float) -> float:
    return sum(position[name] for name in names) / len(names) if names else own


def _places(layers: list[list[_Item]]) -> tuple[dict[str, Place], float, float]:
    """(left, top, width, height) of each item, then total width and height, in pixels."""
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
    classes = " ".join(name for name in ("marked", "asked") if getattr(node, name))
    name = f' class="{classes}"' if classes else ""
    return (
        f"<g{name}><title>{escape(node.tip)}</title>"
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="{rounded:.0f}" '
        f'fill="{_FILL[node.kind]}"/>{lines}</g>'
    )


def _path(arrow: Arrow, route: tuple[str, ...], places: Mapping[str, Place]) -> str:
    """An SVG path from the bottom of one box to the top of another, through the bends between."""
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
