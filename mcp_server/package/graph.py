"""The dataflow as a graph to draw: launches, inputs, constants and outputs, with a highlighted part."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from mcp_server.package.launches import Launch
from mcp_server.package.steps import Edge, Slice, Step
from mcp_server.package.view import PackageView

NodeKind = Literal["launch", "transfer", "input", "constant", "output", "memory"]
NODE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Node:
    """One box. `lines` are its text, `tip` is shown on hover. `asked`: the question named it, and not only
    its slice holds it.
    """

    id: str
    kind: NodeKind
    lines: tuple[str, ...]
    tip: str = ""
    marked: bool = False
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the writer to the reader; `label` names the tensor."""

    source: str
    target: str
    label: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """What to draw, nodes in execution order. `left_out` counts launches that did not fit."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    left_out: int = 0


def dataflow_graph(view: PackageView, launches: Collection[int] = ()) -> Graph:
    """The dataflow of a package, the slice through `launches` marked.

    A package of more than `NODE_LIMIT` launches is cut to that slice, and the slice to its first ones.
    """
    marked = _slice(view, launches)
    whole = len(view.flow.steps) <= NODE_LIMIT
    shown = view.flow.everything() if whole else marked or view.flow.everything()
    steps = shown.steps[:NODE_LIMIT]
    kept = {step.order for step in steps}
    lit = {step.order for step in marked.steps} if marked else set()
    edges = [
        e for e in shown.edges if e.reader.order in kept and (e.writer is None or e.writer.order in kept)
    ]
    arrows = tuple(dict.fromkeys(_arrow(view, edge, lit) for edge in edges))
    outputs, out_arrows = _outputs(view, steps, lit)
    boxes = [_step_node(view, s, s.order in lit, s.launch in launches) for s in steps]
    nodes = (*_ends(view, edges, lit), *boxes, *outputs)
    return Graph(nodes, (*arrows, *out_arrows), len(view.flow.steps) - len(steps))


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
    """A kernel's name without what all of its kind begin with, cut to a readable length."""
    for prefix in ("triton_", "aoti_torch_cuda_", "aoti_torch_cpu_", "cpp_fused_"):
        kernel = kernel.removeprefix(prefix)
    return kernel if len(kernel) <= 28 else f"{kernel[:16]}…{kernel[-11:]}"


def _id(step: Step) -> str:
    return f"s{step.order}"


def _arrow(view: PackageView, edge: Edge, lit: Collection[int]) -> Arrow:
    source = _id(edge.writer) if edge.writer else _end_id(view, edge.name)
    marked = edge.reader.order in lit and (edge.writer is None or edge.writer.order in lit)
    return Arrow(source, _id(edge.reader), edge.name, marked)


def _end_id(view: PackageView, name: str) -> str:
    return f"t_{view.flow.root(name).name}"


def _ends(view: PackageView, edges: list[Edge], lit: Collection[int]) -> list[Node]:
    """Inputs, constants and fresh memory that the edges start from."""
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
        marked = edge.reader.order in lit or (key in nodes and nodes[key].marked)
        nodes[key] = Node(key, kind, (view.label(buffer.name),), buffer.name, marked)
    return list(nodes.values())


def _outputs(
    view: PackageView, steps: tuple[Step, ...], lit: Collection[int]
) -> tuple[list[Node], list[Arrow]]:
    kept = {step.order for step in steps}
    nodes, arrows = [], []
    for index, name in sorted(view.wrapper.run.outputs.items()):
        writers = [s for s in view.flow.last_writers(name) if s.order in kept]
        marked = any(s.order in lit for s in writers)
        nodes.append(Node(f"o{index}", "output", (f"output {index}",), name, marked))
        arrows += [Arrow(_id(s), f"o{index}", name, s.order in lit) for s in writers]
    return nodes, arrows
