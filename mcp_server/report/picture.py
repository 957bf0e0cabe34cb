"""The dataflow around the launch in question, as a picture."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mcp_server.model import Party, Verdict
from mcp_server.package.archive import open_package
from mcp_server.package.graph import Arrow, Graph, Node, dataflow_graph
from mcp_server.package.problems import PackageError
from mcp_server.package.svg import render_svg
from mcp_server.package.view import PackageView

MOST_ABOVE = 14  # boxes that lead to the launch, nearest first
MOST_BELOW = 3  # and that read from it


def picture_of(verdict: Verdict, package: Path | None, model_name: str) -> str:
    """An SVG of what leads to the launch of the guilty or crashing party; empty when there is none."""
    launches = _launches(verdict)
    if package is None or not launches:
        return ""
    try:
        view = PackageView(open_package(package, model_name))
        if not view.package.wrapper_text or launches[0] >= len(view.wrapper.launches):
            return ""
        whole = dataflow_graph(view, launches)
    except PackageError:
        return ""
    return render_svg(around(whole, launches, verdict.guilty), "what flows into the launch, and out of it")


def _launches(verdict: Verdict) -> list[int]:
    parties = (verdict.crashing, verdict.guilty)
    return list(
        dict.fromkeys(p.launch_index for p in parties if p is not None and p.launch_index is not None)
    )


def around(graph: Graph, launches: Iterable[int], guilty: Party | None) -> Graph:
    """The boxes nearest to the launches, these and the guilty input marked. `left_out` is kept at 0."""
    named = {node.id for node in graph.nodes if node.kind == "launch" and _number(node) in set(launches)}
    above = _nearest(named, _neighbours((a.target, a.source) for a in graph.arrows), MOST_ABOVE)
    below = _nearest(named, _neighbours((a.source, a.target) for a in graph.arrows), MOST_BELOW)
    shown = named | above | below
    marked = named | {n.id for n in graph.nodes if guilty is not None and _is_input(n, guilty)}
    nodes = tuple(replace(n, marked=n.id in marked) for n in graph.nodes if n.id in shown)
    return Graph(nodes, tuple(_kept(graph.arrows, shown, marked)))


def _kept(arrows: Iterable[Arrow], shown: set[str], marked: set[str]) -> Iterable[Arrow]:
    for arrow in arrows:
        if arrow.source in shown and arrow.target in shown:
            yield replace(arrow, marked=arrow.source in marked and arrow.target in marked)


def _number(node: Node) -> int:
    """A launch's box begins with its number."""
    return int(node.lines[0].split()[0])


def _is_input(node: Node, guilty: Party) -> bool:
    return node.kind == "input" and guilty.kind == "input" and guilty.name in node.lines[0]


def _neighbours(pairs: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found = defaultdict(list)
    for here, there in pairs:
        found[here].append(there)
    return found


def _nearest(start: set[str], neighbours: Mapping[str, list[str]], most: int) -> set[str]:
    """Up to `most` boxes that can be reached, in breadth."""
    seen, waiting = set(start), deque(sorted(start))
    while waiting and len(seen) < most + len(start):
        for near in neighbours.get(waiting.popleft(), ()):
            if near not in seen and len(seen) < most + len(start):
                seen.add(near)
                waiting.append(near)
    return seen - start
