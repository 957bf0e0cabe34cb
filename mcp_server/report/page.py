"""A verdict as one HTML file that needs nothing else, with its pictures and the text for an issue tracker."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mcp_server.brief import (
    OUTCOME_TITLE,
    confirmation,
    cost_in_words,
    eager_in_words,
    placed_party,
    what_happened,
)
from mcp_server.diagnosis.kept_files import Subject
from mcp_server.model import CATEGORIES, Component, Verdict
from mcp_server.operations.table import command_line
from mcp_server.package.archive import open_package
from mcp_server.package.graph import Graph, Node, dataflow_graph
from mcp_server.package.launches import Buffer
from mcp_server.package.problems import PackageError
from mcp_server.package.view import PackageView
from mcp_server.render import check_name, party_title
from mcp_server.report.redact import Redactor, clean_text, cleaned

BACKTICKS = re.compile(r"`+")
FILE = "report.html"
HERE = Path(__file__).parent
SHOWN_ELEMENTS = 3  # in one box


def code(text: str) -> str:
    """`text` as inline code: no mention, link or tag in it acts."""
    text = " ".join(text.split())
    longest = max((len(found) for found in BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}" if text else ""


TEMPLATES = Environment(
    loader=FileSystemLoader(HERE),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters.update(
    code=code,
    party_title=party_title,
    confirmation=confirmation,
    happened=what_happened,
    eager=eager_in_words,
)


def issue_text(verdict: Verdict, environment: dict[str, str], redact: Callable[[str], str]) -> str:
    """Verdict, parties, evidence with commands, and environment, with every observed text redacted."""
    text = TEMPLATES.get_template("issue.md.jinja").render(verdict=verdict, environment=environment)
    return redact(text.rstrip("\n")) + "\n"


@dataclass(frozen=True)
class Box:
    """One box of the picture, in the order of the call: what it is, and the boxes and tensors it reads."""

    title: str
    place: str
    reads: tuple[str, ...]
    kind: str
    marked: bool

    def changed(self, change: Callable[[str], str]) -> Box:
        """The same with each text changed."""
        reads = tuple(map(change, self.reads))
        return replace(self, title=change(self.title), place=change(self.place), reads=reads)


@dataclass(frozen=True)
class Source:
    """A verdict with its subject, picture and log. `directory` is the job's, if it is on this machine."""

    verdict: Verdict
    subject: Subject = Subject()  # noqa: RUF009 - frozen
    directory: Path | None = None
    picture: tuple[Box, ...] = ()
    log: str = ""


Link = tuple[str, str, str]  # label, title and detail of one box of the path from the fault to the cause


def page(source: Source) -> str:
    """The whole file. Texts are escaped, and only the script whose digest the page names can run."""
    verdict = cleaned(source.verdict)
    environment = {clean_text(k): clean_text(value) for k, value in source.subject.environment.items()}
    script = (HERE / "page.js").read_text()
    places = {artifact.path.absolute().parent for artifact in verdict.artifacts}
    return TEMPLATES.get_template("page.html.jinja").render(
        verdict=verdict,
        outcome=OUTCOME_TITLE[verdict.outcome],
        category=CATEGORIES[verdict.category] if verdict.category else "",
        path=list(path_of(verdict)),
        environment=environment,
        picture=[box.changed(clean_text) for box in source.picture],
        checks=list(map(check_name, verdict.decisions)),
        cost=cost_in_words(verdict.cost),
        log=clean_text(source.log),
        issue=issue_text(verdict, environment, Redactor.of_this_machine(places)),
        next_commands=[(step.why, command_line(step)) for step in verdict.next_steps],
        style=Markup((HERE / "page.css").read_text()),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def path_of(verdict: Verdict) -> Iterator[Link]:
    """Fault, launch, generated line, model line, expression, elements, root cause: as many as are known."""
    if verdict.category is None:
        return
    yield "Fault", verdict.headline or verdict.category.replace("_", " "), ""
    parties = [party for party in (verdict.crashing, verdict.guilty) if party is not None]
    where = next((p for p in parties if p.launch_index is not None or p.kind in ("kernel", "op")), None)
    if where is not None:
        number = f"launch {where.launch_index}" if where.launch_index is not None else "kernel"
        yield "Launch", number, where.name
    generated = next((p.generated_location for p in parties if p.generated_location), "")
    if generated:
        yield "Generated line", generated, ""
    placed, guilty = placed_party(verdict), verdict.guilty
    if placed is not None:
        place = placed.model_locations[0]
        yield "Model line", f"{Path(place.file).name}:{place.line}", place.code
    expression = next((p.expression for p in parties if p.expression), "")
    if expression and guilty is not where:
        yield "Expression", expression, ""
    elements = next((p.elements for p in reversed(parties) if p.elements), [])
    if elements:
        more = len(elements) - SHOWN_ELEMENTS
        shown = "; ".join(elements[:SHOWN_ELEMENTS])
        yield "Elements behind it", shown, f"and {more} more" if more > 0 else ""
    if guilty is not None and guilty is not where:
        title = party_title(guilty.model_copy(update={"value": None}))
        yield "Root cause", title, guilty.value or ""
    elif expression:
        yield "Root cause", expression, ""


MOST_ABOVE = 14  # boxes that lead to the launch, nearest first
MOST_BELOW = 3  # and that read from it


def picture_of(verdict: Verdict, package: Path | None, model_name: str) -> tuple[Box, ...]:
    """The launches around that of the root cause or crash site; empty when none is known."""
    if package is None:
        return ()
    try:
        view = PackageView(open_package(package, model_name))
        launches = _launches(verdict, view)
        if not launches:
            return ()
        # Uncut: what is shown is chosen from it by distance to the launch.
        whole = dataflow_graph(view, launches, limit=len(view.flow.steps))
    except PackageError:
        return ()
    graph = around(whole, verdict.guilty)
    titles = {node.id: node.lines[0] for node in graph.nodes}

    placed = placed_party(verdict)

    def box(node: Node) -> Box:
        reads = (f"{a.label} of {titles[a.source]}" for a in graph.arrows if a.target == node.id)
        place = ", ".join(node.lines[1:])
        if node.asked and placed is not None and place:
            # Of the lines that a fused kernel computes, the one that failed.
            place = f"{Path(placed.model_locations[0].file).name}:{placed.model_locations[0].line}"
        return Box(node.lines[0], place, tuple(reads), node.kind, node.marked)

    return tuple(box(node) for node in graph.nodes if node.kind in ("launch", "transfer", "output"))


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
    readers: dict[Buffer, int] = {}
    for edge in view.flow.everything().edges:
        if edge.writer is None and edge.reader.launch is not None:
            readers.setdefault(view.flow.root(edge.name), edge.reader.launch)
    return list(dict.fromkeys(readers[buffer] for buffer in taken if buffer in readers))


def around(graph: Graph, guilty: Component | None) -> Graph:
    """The boxes nearest to the asked launches, these and the guilty input marked. `left_out` is kept at 0."""
    named = {n.id for n in graph.nodes if n.asked}
    above, below = defaultdict(list), defaultdict(list)
    for arrow in graph.arrows:
        above[arrow.target].append(arrow.source)
        below[arrow.source].append(arrow.target)
    shown = _nearest(named, above, MOST_ABOVE) | _nearest(named, below, MOST_BELOW)
    at_fault = guilty.name if guilty is not None and guilty.kind == "input" else None
    marked = named | {n.id for n in graph.nodes if n.kind == "input" and at_fault and at_fault in n.lines[0]}
    nodes = tuple(replace(n, marked=n.id in marked) for n in graph.nodes if n.id in shown)
    arrows = tuple(
        replace(a, marked=a.source in marked and a.target in marked)
        for a in graph.arrows
        if a.source in shown and a.target in shown
    )
    return Graph(nodes, arrows)


def _nearest(start: set[str], neighbours: Mapping[str, list[str]], most: int) -> set[str]:
    """`start`, and up to `most` boxes that can be reached, in breadth."""
    found = dict.fromkeys(sorted(start))
    waiting = deque(found)
    while waiting and len(found) < most + len(start):
        new = dict.fromkeys(near for near in neighbours.get(waiting.popleft(), ()) if near not in found)
        waiting.extend(new)
        found |= new
    return set(islice(found, most + len(start)))
