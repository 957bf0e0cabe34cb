"""The text to paste into an issue tracker: Markdown, in which what was observed cannot act as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from mcp_server.model import Evidence, Party, Verdict
from mcp_server.render.text import party_title

BACKTICKS = re.compile(r"`+")

Redact = Callable[[str], str]


def issue_text(verdict: Verdict, environment: dict[str, str], redact: Redact) -> str:
    """Verdict, parties, evidence with commands, and environment, with every observed text redacted."""
    return redact("\n".join(_lines(verdict, environment))) + "\n"


def _lines(verdict: Verdict, environment: dict[str, str]) -> Iterator[str]:
    title = " ".join(filter(None, (verdict.outcome.replace("_", " "), verdict.category or "")))
    yield f"**{title}** ({verdict.confidence})"
    yield f"\n{code(verdict.summary)}"
    for label, party in (("Root cause", verdict.guilty), ("Crash site", verdict.crashing)):
        if party is not None:
            yield from _party(label, party)
    yield from _evidence(verdict.evidence)
    if verdict.ruled_out:
        yield "\nRuled out"
        yield from (f"- {code(item.hypothesis)}: {code(item.by)}" for item in verdict.ruled_out)
    if verdict.fix is not None:
        yield f"\nFix: {code(verdict.fix.action)}"
    yield "\nEnvironment"
    yield from (f"- {name}: {code(value)}" for name, value in environment.items())


def _party(label: str, party: Party) -> Iterator[str]:
    yield f"\n{label}: {code(party_title(party))}"
    if party.generated_location:
        yield f"- generated code {code(party.generated_location)}"
    yield from (f"- {code(f'{p.file}:{p.line}  {p.code}'.strip())}" for p in party.model_locations)


def _evidence(evidence: list[Evidence]) -> Iterator[str]:
    if evidence:
        yield "\nEvidence"
    for number, item in enumerate(evidence, 1):
        yield f"{number}. {code(item.fact)}"
        if item.command:
            yield f"   {code(item.command)}"


def code(text: str) -> str:
    """`text` as inline code: no mention, link or tag in it acts."""
    text = " ".join(text.split())
    longest = max((len(found) for found in BACKTICKS.findall(text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}" if text else ""
