"""A verdict as one HTML file that needs nothing else, with its pictures and the text for an issue tracker."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import prod
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mcp_server.diagnosis.subject import Subject
from mcp_server.model import CATEGORIES, Component, Verdict
from mcp_server.operations.table import command_line
from mcp_server.package.archive import open_package
from mcp_server.package.graph import Graph, dataflow_graph, render_svg
from mcp_server.package.launches import Buffer
from mcp_server.package.problems import PackageError
from mcp_server.package.view import PackageView
from mcp_server.render import OUTCOME_TITLE, check_name, cost_in_words, party_title
from mcp_server.report.redact import Redactor, clean_text, cleaned

BACKTICKS = re.compile(r"`+")
FILE = "report.html"
HERE = Path(__file__).parent
SHOWN_ELEMENTS = 3  # in one box; the strip marks more


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
TEMPLATES.filters.update(code=code, party_title=party_title)


def issue_text(verdict: Verdict, environment: dict[str, str], redact: Callable[[str], str]) -> str:
    """Verdict, parties, evidence with commands, and environment, with every observed text redacted."""
    text = TEMPLATES.get_template("issue.md.jinja").render(verdict=verdict, environment=environment)
    return redact(text.rstrip("\n")) + "\n"


@dataclass(frozen=True)
class Source:
    """A verdict with its subject, picture and log. `directory` is the job's, if it is on this machine.

    The picture is SVG of our own making: it is not escaped.
    """

    verdict: Verdict
    subject: Subject = Subject()  # noqa: RUF009 - frozen
    directory: Path | None = None
    picture: str = ""
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
        picture=Markup(clean_text(source.picture)),
        strip=Markup(strip_of(verdict, source.subject.shapes)),
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
    yield "Fault", verdict.category.replace("_", " "), ""
    parties = [party for party in (verdict.crashing, verdict.guilty) if party is not None]
    where = next((p for p in parties if p.launch_index is not None or p.kind in ("kernel", "op")), None)
    if where is not None:
        number = f"launch {where.launch_index}" if where.launch_index is not None else "kernel"
        yield "Launch", number, where.name
    generated = next((p.generated_location for p in parties if p.generated_location), "")
    if generated:
        yield "Generated line", generated, ""
    place = next((p.model_locations[0] for p in reversed(parties) if p.model_locations), None)
    if place is not None:
        yield "Model line", f"{Path(place.file).name}:{place.line}", place.code
    expression = next((p.expression for p in parties if p.expression), "")
    if expression:
        yield "Expression", expression, ""
    elements = next((p.elements for p in reversed(parties) if p.elements), [])
    if elements:
        more = len(elements) - SHOWN_ELEMENTS
        shown = "; ".join(elements[:SHOWN_ELEMENTS])
        yield "Elements", shown, f"and {more} more" if more > 0 else ""
    guilty = verdict.guilty
    if guilty is not None and guilty is not where:
        title = party_title(guilty.model_copy(update={"value": None}))
        yield "Root cause", title, guilty.value or ""


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
    return render_svg(around(whole, verdict.guilty), "what flows into the launch, and out of it")


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


MOST_CELLS = 64  # of one row of the strip
MOST_ROWS = 8
MOST_MARKS = 32

_ELEMENT = re.compile(r"^(?P<name>.{1,200}?)\[(?P<index>-?\d+(?:, ?-?\d+)*)\]\s*=\s*(?P<value>.{1,80})$")


@dataclass(frozen=True)
class Element:
    """One element at fault: its tensor, its index in each dimension, and its value as text."""

    tensor: str
    index: tuple[int, ...]
    value: str

    @property
    def text(self) -> str:
        return f"[{', '.join(map(str, self.index))}] = {self.value}"


def elements_of(party: Component) -> list[Element]:
    """The elements that a party names and that have the form `args[1][2, 17] = 731`."""
    found = (_ELEMENT.match(text) for text in party.elements[:MOST_MARKS])
    return [
        Element(each["name"], tuple(int(part) for part in each["index"].split(",")), each["value"])
        for each in found
        if each
    ]


def strip_of(verdict: Verdict, shapes: Mapping[int, Sequence[int]]) -> str:
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
    known = tuple(shapes.get(party.input_index, ())) if party.input_index is not None else ()
    fits = len(known) == dims and all(map(int.__le__, least, known))
    return _drawn(party.name, elements, known if fits else least, exact=fits)


def _drawn(name: str, elements: list[Element], shape: tuple[int, ...], exact: bool) -> str:
    """Rows are all dimensions but the last, flattened; those with an element at fault are shown first."""
    width, every = shape[-1], prod(shape[:-1])
    at_fault = sorted({e.index[:-1] for e in elements})
    first = product(*(range(min(size, MOST_ROWS)) for size in shape[:-1]))
    others = (above for above in first if above not in at_fault)
    shown = sorted(islice(chain(at_fault, others), MOST_ROWS))
    step = max(1, -(-width // MOST_CELLS))  # elements in one cell
    cells = -(-width // step)
    rows = []
    for above in shown:
        bad = {e.index[-1] // step: e for e in reversed(elements) if e.index[:-1] == above}
        rows.append((f"[{', '.join(map(str, (*above, ':')))}]", [bad.get(cell) for cell in range(cells)]))
    title = f"{name}, shape {list(shape)}" if exact else f"{name}, up to the last element at fault"
    title += f"; {step} elements a cell" if step > 1 else ""
    hidden = every - len(rows)
    title += f"; {hidden} more {'row' if hidden == 1 else 'rows'} not shown" if hidden > 0 else ""
    return TEMPLATES.get_template("strip.svg.jinja").render(
        name=name, title=title, first=elements[0].text, rows=rows, width=max(102 + cells * 11, 420)
    )
