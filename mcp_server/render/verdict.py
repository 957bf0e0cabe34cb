"""The layout of a verdict: what is wrong, who is guilty, how that is known, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from mcp_server.model import CATEGORIES, Evidence, Fix, Party, RuledOut, Verdict
from mcp_server.operations.spelling import command_line
from mcp_server.render.text import heading, indented, labelled, party_title, plain

OUTCOME_STYLE = {"fault": "bold red", "no_fault": "bold green", "inconclusive": "bold yellow"}
SHOWN_WAIT_S = 0.1
OUTCOME_TITLE = {"fault": "FAULT", "no_fault": "NO FAULT", "inconclusive": "INCONCLUSIVE"}


def verdict_lines(verdict: Verdict) -> Iterator[RenderableType]:
    """All parts of a verdict that are not empty."""
    yield _title(verdict)
    yield plain(verdict.summary)
    yield from _parties(verdict)
    yield from _evidence(verdict.evidence)
    yield from _other_causes(verdict)
    yield from _ruled_out("Not the cause", verdict.bystanders)
    yield from _ruled_out("Ruled out", verdict.ruled_out)
    if verdict.fix:
        yield from _fix(verdict.fix)
    yield from _next_steps(verdict)
    yield from _decisions(verdict.decisions)
    yield from _closing(verdict)


def _title(verdict: Verdict) -> Text:
    title = Text(OUTCOME_TITLE[verdict.outcome], style=OUTCOME_STYLE[verdict.outcome])
    if verdict.category:
        title.append(f"  {verdict.category}", style="bold")
        title.append(f" ({CATEGORIES[verdict.category]})", style="dim")
    if verdict.outcome != "inconclusive":
        title.append(f"  {verdict.confidence}", style="bold" if verdict.confidence == "proven" else "")
    return title


def _parties(verdict: Verdict) -> Iterator[RenderableType]:
    if verdict.guilty or verdict.crashing:
        yield Text()
    if verdict.guilty:
        yield from _party("Root cause", verdict.guilty)
    if verdict.crashing:
        yield from _party("Crash site", verdict.crashing)


def _party(label: str, party: Party) -> Iterator[RenderableType]:
    yield labelled(label, party_title(party), "bold")
    if party.generated_location:
        yield labelled("", f"generated code {party.generated_location}")
    for place in party.model_locations:
        yield labelled("", f"{place.file}:{place.line}  {place.code}".rstrip(), "cyan")


def _evidence(evidence: list[Evidence]) -> Iterator[RenderableType]:
    if evidence:
        yield heading("Evidence")
    for number, item in enumerate(evidence, 1):
        yield indented(f"{number}. {item.fact}  [{item.step}]")
        if item.source:
            yield indented(item.source, "dim", by=5)
        if item.command:
            yield indented(f"$ {item.command}", "green", by=5)


def _other_causes(verdict: Verdict) -> Iterator[RenderableType]:
    """Of several causes those after the first."""
    if verdict.causes[1:]:
        yield heading("Then fix")
    for cause in verdict.causes[1:]:
        yield indented(f"- {cause.summary}")


def _ruled_out(title: str, items: list[RuledOut]) -> Iterator[RenderableType]:
    if items:
        yield heading(title)
    for item in items:
        yield indented(f"- {item.hypothesis}: {item.by}")


def _fix(fix: Fix) -> Iterator[RenderableType]:
    yield heading("Fix")
    yield indented(fix.action)
    for text, mark, style in ((fix.before, "-", "red"), (fix.after, "+", "green")):
        for line in (text or "").splitlines():
            yield indented(f"{mark} {line}", style, by=4)
    if fix.ran:
        yield indented(f"This was run: {fix.ran.result}", by=4)
    if fix.side_effects:
        yield indented(f"Side effects: {fix.side_effects}", by=4)
    if fix.ran and fix.ran.command:
        yield indented(f"$ {fix.ran.command}", "green", by=4)


def _next_steps(verdict: Verdict) -> Iterator[RenderableType]:
    if verdict.next_steps:
        yield heading("Next")
    for step in verdict.next_steps:
        yield indented(f"- {step.why}")
        yield indented(f"$ {command_line(step)}", "green", by=4)


def _decisions(decisions: list[str]) -> Iterator[RenderableType]:
    if decisions:
        yield heading("Checks run")
    for number, decision in enumerate(decisions, 1):
        yield indented(f"{number}. {decision}", "dim")


def _closing(verdict: Verdict) -> Iterator[RenderableType]:
    yield Text()
    cost = verdict.cost
    yield labelled(
        "Cost",
        f"{_counted(cost.runs, 'run')}, {_counted(cost.compiles, 'compile')}, {cost.wall_s:.1f} s"
        + (f", of which {cost.waited_s:.1f} s waiting for a GPU" if cost.waited_s >= SHOWN_WAIT_S else ""),
    )
    for artifact in verdict.artifacts:
        yield labelled("File", f"{artifact.path}  ({artifact.what}, {artifact.bytes} bytes)", "dim")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
