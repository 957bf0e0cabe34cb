"""The dataflow of a package as Mermaid text, which GitHub and most editors draw."""

from __future__ import annotations

import re
from collections.abc import Collection

from mcp_server.package.dataflow import Step, united
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

NODE_LIMIT = 300
# How Mermaid writes the outline of each kind of box.
_STEP, _INPUT, _CONSTANT, _MEMORY = '["{}"]', '(["{}"])', '[("{}")]', '("{}")'
_UNSAFE = re.compile(r"[^\w .,:;+*/()\[\]=→…-]")


def dataflow_text(view: PackageView, launches: Collection[int] = ()) -> str:
    """A flowchart of a package with the slice through `launches` marked.

    With more than `NODE_LIMIT` steps only the slice is drawn, cut to the steps nearest to `launches` in
    execution order.
    """
    flow = view.flow
    marked = united([flow.through(number) for number in launches])
    whole = len(flow.steps) <= NODE_LIMIT
    shown = marked if marked.steps and not whole else flow.everything()
    steps = _nearest(shown.steps, launches)
    kept, special = ({step.order for step in each} for each in (steps, marked.steps))
    boxes: dict[str, tuple[str, list[str]]] = {}
    drawn = {f"s{order}" for order in kept & special}
    arrows: dict[tuple[str, str, str], None] = {}
    for edge in shown.edges:
        reader, writer = edge.reader.order, edge.writer
        if reader not in kept or (writer is not None and writer.order not in kept):
            continue
        source = f"s{writer.order}" if writer is not None else ""
        if writer is None:  # an input, a constant or fresh memory
            # One box for each reader: the arrows from a tensor with many readers would fill the picture.
            root = flow.root(edge.name)
            source = f"t_{root.name}@{reader}"
            outline = {"input": _INPUT, "constant": _CONSTANT}.get(root.kind, _MEMORY)
            boxes[source] = outline, [view.label(root.name)]
            drawn |= {source} if reader in special else set()
        arrows[source, f"s{reader}", edge.name] = None
    boxes |= {f"s{step.order}": (_STEP, _label(view, step)) for step in steps}
    for index, name in sorted(view.wrapper.run.outputs.items()):
        boxes[f"o{index}"] = _INPUT, [f"output {index}"]
        for writer in flow.last_writers(name):
            if writer.order in kept:
                arrows[f"s{writer.order}", f"o{index}", name] = None
                drawn |= {f"o{index}"} if writer.order in special else set()
    asked = {f"s{step.order}" for step in steps if step.launch in launches}
    return _written(boxes, list(arrows), drawn, asked, len(flow.steps) - len(steps))


def _nearest(steps: tuple[Step, ...], launches: Collection[int]) -> tuple[Step, ...]:
    """Up to `NODE_LIMIT` of the steps, those nearest to a named launch first; in execution order again."""
    if len(steps) <= NODE_LIMIT:
        return steps
    named = [place for place, step in enumerate(steps) if step.launch in launches] or [0]
    order = sorted(range(len(steps)), key=lambda place: min(abs(place - other) for other in named))
    return tuple(steps[place] for place in sorted(order[:NODE_LIMIT]))


def _label(view: PackageView, step: Step) -> list[str]:
    node = step.node
    if not isinstance(node, Launch):
        return [node.callee, f"{node.reads or ''} → {node.writes}"]
    locations = view.provenance(node).locations
    name = re.sub(r"^(?:triton_|aoti_torch_(?:cuda|cpu)_|cpp_fused_)", "", node.kernel)
    name = name if len(name) <= 28 else f"{name[:16]}…{name[-11:]}"
    return [f"{node.index}  {name}", *(f"{at.file.rpartition('/')[2]}:{at.line}" for at in locations[:1])]


def _written(
    boxes: dict[str, tuple[str, list[str]]],
    arrows: list[tuple[str, str, str]],
    marked: set[str],
    asked: set[str],
    left_out: int,
) -> str:
    """The text. Names come from the package: what Mermaid could read as markup is left out."""
    numbers = {name: f"n{place}" for place, name in enumerate(boxes)}
    lines = ["flowchart TD"]
    for name, (outline, label) in boxes.items():
        lines.append(f"  {numbers[name]}{outline.format('<br/>'.join(_UNSAFE.sub('', s) for s in label))}")
    lines += [f"  {numbers[a]} -->|{_UNSAFE.sub('', text)}| {numbers[b]}" for a, b, text in arrows]
    styles = (("marked", "stroke:#c2410c,stroke-width:3px", marked), ("asked", "fill:#fdba74", asked))
    for kind, style, names in styles:
        if found := [number for name, number in numbers.items() if name in names]:
            lines += [f"  classDef {kind} {style}", f"  class {','.join(found)} {kind}"]
    if left_out:
        lines.append(f"  %% {left_out} more launches are not shown")
    return "\n".join(lines) + "\n"
