"""The dataflow of a package as boxes and arrows, and as Mermaid text, which GitHub and most editors draw."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mcp_server.package.dataflow import Step, united
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

NodeKind = Literal["launch", "transfer", "input", "constant", "output", "memory"]
NODE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Node:
    """One box. `marked`: part of the requested slice. `asked`: one of the requested launches."""

    id: str
    kind: NodeKind
    lines: tuple[str, ...]
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


def dataflow_graph(view: PackageView, launches: Collection[int] = ()) -> Graph:
    """The dataflow of a package with the slice through `launches` marked.

    With more than `NODE_LIMIT` steps only the slice is drawn, cut to the steps nearest to `launches` in
    execution order.
    """
    flow = view.flow
    marked = united([flow.through(number) for number in launches])
    whole = len(flow.steps) <= NODE_LIMIT
    shown = marked if marked.steps and not whole else flow.everything()
    steps = _nearest(shown.steps, launches)
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
            nodes[source] = Node(source, kind, (view.label(root.name),), highlighted)
        arrows[Arrow(source, f"s{reader}", edge.name, highlighted)] = None
    boxes = [_step_node(view, s, s.order in special, s.launch in launches) for s in steps]
    for index, name in sorted(view.wrapper.run.outputs.items()):
        writers = [step.order for step in flow.last_writers(name) if step.order in kept]
        marked_output = not special.isdisjoint(writers)
        boxes.append(Node(f"o{index}", "output", (f"output {index}",), marked_output))
        for order in writers:
            arrows[Arrow(f"s{order}", f"o{index}", name, order in special)] = None
    return Graph((*nodes.values(), *boxes), tuple(arrows), len(flow.steps) - len(steps))


def _nearest(steps: tuple[Step, ...], launches: Collection[int]) -> tuple[Step, ...]:
    """Up to `NODE_LIMIT` of the steps, those nearest to a named launch first; in execution order again."""
    if len(steps) <= NODE_LIMIT:
        return steps
    named = [place for place, step in enumerate(steps) if step.launch in launches] or [0]
    order = sorted(range(len(steps)), key=lambda place: min(abs(place - other) for other in named))
    return tuple(steps[place] for place in sorted(order[:NODE_LIMIT]))


def _step_node(view: PackageView, step: Step, marked: bool, asked: bool) -> Node:
    node = step.node
    if not isinstance(node, Launch):
        moved = f"{node.reads or ''} → {node.writes}"
        return Node(f"s{step.order}", "transfer", (node.callee, moved), marked)
    locations = view.provenance(node).locations
    name = re.sub(r"^(?:triton_|aoti_torch_(?:cuda|cpu)_|cpp_fused_)", "", node.kernel)
    name = name if len(name) <= 28 else f"{name[:16]}…{name[-11:]}"
    lines = [f"{node.index}  {name}"]
    lines += [f"{where.file.rpartition('/')[2]}:{where.line}" for where in locations[:1]]
    return Node(f"s{step.order}", "launch", tuple(lines), marked, asked)


# How Mermaid writes the outline of each kind of box.
_OUTLINES: dict[NodeKind, str] = {
    "launch": '["{}"]',
    "transfer": '["{}"]',
    "input": '(["{}"])',
    "constant": '[("{}")]',
    "output": '(["{}"])',
    "memory": '("{}")',
}
_UNSAFE = re.compile(r"[^\w .,:;+*/()\[\]=→…-]")


def mermaid(graph: Graph) -> str:
    """The text of a flowchart. Names come from the package: what Mermaid could read as markup is left out."""
    numbers = {node.id: f"n{place}" for place, node in enumerate(graph.nodes)}
    lines = ["flowchart TD"]
    for node in graph.nodes:
        label = "<br/>".join(_UNSAFE.sub("", line) for line in node.lines)
        lines.append(f"  {numbers[node.id]}{_OUTLINES[node.kind].format(label)}")
    lines += [
        f"  {numbers[a.source]} -->|{_UNSAFE.sub('', a.label)}| {numbers[a.target]}" for a in graph.arrows
    ]
    for name, style in (("marked", "stroke:#c2410c,stroke-width:3px"), ("asked", "fill:#fdba74")):
        if found := [numbers[node.id] for node in graph.nodes if getattr(node, name)]:
            lines += [f"  classDef {name} {style}", f"  class {','.join(found)} {name}"]
    if graph.left_out:
        lines.append(f"  %% {graph.left_out} more launches are not shown")
    return "\n".join(lines) + "\n"
