"""Renders a verdict as one self-contained HTML file, which includes the text for an issue tracker."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from mcp_server.model import CATEGORIES, Verdict
from mcp_server.operations.table import command_line
from mcp_server.render import check_name, party_title
from mcp_server.report.redact import Redactor, clean_text, cleaned

BACKTICKS = re.compile(r"`+")
FILE = "report.html"
HERE = Path(__file__).parent
SHOWN_ELEMENTS = 3  # in one box


def code(text: str) -> str:
    """Format `text` as inline code, so that no mention, link or tag in it takes effect."""
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
    """Render verdict, parties, evidence with commands, and environment, with all observed text redacted."""
    text = TEMPLATES.get_template("issue.md.jinja").render(verdict=verdict, environment=environment)
    return redact(text.rstrip("\n")) + "\n"


@dataclass(frozen=True)
class Source:
    """A verdict with its subject and log. `directory` is the job's, if it is on this machine."""

    verdict: Verdict
    subject: Subject = Subject()  # noqa: RUF009 - frozen
    directory: Path | None = None
    log: str = ""


Link = tuple[str, str, str]  # label, title and detail of one box on the path from the fault to the cause


def page(source: Source) -> str:
    """Render the whole file. Texts are escaped, and only the script whose digest the page names can run."""
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
    """Yield fault, launch, generated line, model line, expression, elements and root cause, if known."""
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
