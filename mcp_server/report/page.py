"""A verdict as one HTML file that needs nothing else, with the text for an issue tracker."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mcp_server.model import CATEGORIES, Verdict
from mcp_server.operations.table import command_line
from mcp_server.render.records import OUTCOME_TITLE, check_name, cost_in_words
from mcp_server.render.text import party_title
from mcp_server.report.pictures import strip_of
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
class Report:
    """What a page shows. `picture` is SVG of our own making: it is not escaped.

    `shapes` are those of the tensors of the call by their number, as far as they are known.
    """

    verdict: Verdict
    environment: dict[str, str] = field(default_factory=dict)
    picture: str = ""
    log: str = ""
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    """One box of the path from the fault to the root cause."""

    label: str
    title: str
    detail: str = ""


def page(report: Report) -> str:
    """The whole file. Texts are escaped, and only the script whose digest the page names can run."""
    verdict = cleaned(report.verdict)
    environment = {clean_text(name): clean_text(value) for name, value in report.environment.items()}
    script = (HERE / "page.js").read_text()
    places = {artifact.path.absolute().parent for artifact in verdict.artifacts}
    return TEMPLATES.get_template("page.html.jinja").render(
        verdict=verdict,
        outcome=OUTCOME_TITLE[verdict.outcome],
        category=CATEGORIES[verdict.category] if verdict.category else "",
        path=list(path_of(verdict)),
        environment=environment,
        picture=Markup(clean_text(report.picture)),
        strip=Markup(strip_of(verdict, report.shapes)),
        checks=list(map(check_name, verdict.decisions)),
        cost=cost_in_words(verdict.cost),
        log=clean_text(report.log),
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
    yield Link("Fault", verdict.category.replace("_", " "))
    parties = [party for party in (verdict.crashing, verdict.guilty) if party is not None]
    where = next((p for p in parties if p.launch_index is not None or p.kind in ("kernel", "op")), None)
    if where is not None:
        number = f"launch {where.launch_index}" if where.launch_index is not None else "kernel"
        yield Link("Launch", number, where.name)
    generated = next((p.generated_location for p in parties if p.generated_location), "")
    if generated:
        yield Link("Generated line", generated)
    place = next((p.model_locations[0] for p in reversed(parties) if p.model_locations), None)
    if place is not None:
        yield Link("Model line", f"{Path(place.file).name}:{place.line}", place.code)
    expression = next((p.expression for p in parties if p.expression), "")
    if expression:
        yield Link("Expression", expression)
    elements = next((p.elements for p in reversed(parties) if p.elements), [])
    if elements:
        more = len(elements) - SHOWN_ELEMENTS
        shown = "; ".join(elements[:SHOWN_ELEMENTS])
        yield Link("Elements", shown, f"and {more} more" if more > 0 else "")
    guilty = verdict.guilty
    if guilty is not None and guilty is not where:
        title = party_title(guilty.model_copy(update={"value": None}))
        yield Link("Root cause", title, guilty.value or "")
