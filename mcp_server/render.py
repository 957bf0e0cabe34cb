"""Formats results as text for people: values and records of any kind, `doctor`'s checkup, a verdict.

Formatters yield what rich can print; `write` prints it.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcp_server import brief
from mcp_server.model import (
    CATEGORIES,
    SUBJECT_FILE,
    Artifact,
    Component,
    Evidence,
    Fix,
    ModelLocation,
    NextStep,
    Record,
    TensorSpec,
    Verdict,
)
from mcp_server.operations.table import command_line
from mcp_server.tools.machine import Checkup, Standing

UNPRINTABLE = {code: "�" for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"}


def plain(text: object, style: str = "") -> Text:
    """Make any text safe to print: rich reads no markup in it, and control characters are replaced."""
    return Text(str(text).translate(UNPRINTABLE), style=style)


def heading(title: str) -> Text:
    return Text(f"\n{title}", style="bold")


def labelled(label: str, text: object, style: str = "", width: int = 12) -> Text:
    """Put `label` in its own column before the text."""
    return Text.assemble((f"{label:<{width}}", "dim"), plain(text, style))


def indented(text: object, style: str = "", by: int = 2) -> Padding:
    return Padding(plain(text, style), (0, 0, 0, by), expand=False)


def party_title(party: Component) -> str:
    """Describe kind, name and place of a root cause or crash site in one line."""
    numbered = party.name.endswith((f"[{party.input_index}]", f"input {party.input_index}"))
    places = {
        "input": None if numbered else party.input_index,
        "dim": party.dim,
        "launch": party.launch_index,
    }
    where = ", ".join(f"{name} {number}" for name, number in places.items() if number is not None)
    made = party.kind in ("kernel", "op")  # kinds that compute the value; others are the value
    value = f" {'gives' if made else '='} {party.value}" if party.value else ""
    kind = "" if party.name.startswith(party.kind) else f"{party.kind} "
    return f"{kind}{party.name}{value}" + (f" ({where})" if where else "")


LONGEST_CELL = 80


def is_scalar(value: Any) -> bool:
    """Whether the value is shown on one line. Lists are if they have only numbers or single words."""
    if isinstance(value, list | tuple):
        return all(isinstance(i, int | float) or (isinstance(i, str) and " " not in i) for i in value)
    return value is None or isinstance(value, _ON_ONE_LINE)


EMPTY: tuple[object, ...] = (None, "", [], (), {})


def scalar(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float) for item in value)
        text = ", ".join(map(str, value))
        return f"[{text}]" if numbers else text
    if isinstance(value, ModelLocation):
        return f"{value.file}:{value.line}  {value.code}".rstrip()
    if isinstance(value, Artifact):
        return f"{value.path}  ({value.what}, {value.bytes} bytes)"
    if isinstance(value, TensorSpec):
        return f"{value.dtype} {value.shape} on {value.device}"
    return str(value)


_ON_ONE_LINE = (str, int, float, bool, Path, ModelLocation, Artifact, TensorSpec)


MAX_ROWS = 60
MAX_COLUMNS = 9
LONGEST_ON_SHARED_LINE = 60

FINDINGS = ("summary", "pattern", "how", "failure", "problems", "mismatches", "first_bad", "last")
# Fields that a text names in other words than JSON.
LABELS = {
    "stopped": "stopped at the first bad value",
    "compared_with": "baseline",
    "innocent": "healthy elements changed",
}

Fields = Mapping[str, Any]  # any record's fields by label


def _is_record(value: object) -> bool:
    """Whether the value has named fields: a `Record`, or a dataclass of what the worker reported."""
    return isinstance(value, Record) or (is_dataclass(value) and not isinstance(value, type))


def _values(record: Any) -> Fields:
    """A record's values by field."""
    if is_dataclass(record):
        return {each.name: getattr(record, each.name) for each in fields(record)}
    return record if isinstance(record, Mapping) else dict(record)


def label_of(field: str) -> str:
    return LABELS.get(field, field.replace("_", " "))


def _named(record: Any) -> dict[str, Any]:
    """The non-empty fields by their labels, those in FINDINGS first."""
    values = _values(record)
    names = sorted(values, key=lambda name: name not in FINDINGS)
    labelled_values = {label_of(str(name)): values[name] for name in names}
    return {name: value for name, value in labelled_values.items() if value not in EMPTY}


def _fields(known: Fields) -> Iterator[RenderableType]:
    """Yield the scalars of a record, then each other value below a heading."""
    scalars = {name: value for name, value in known.items() if is_scalar(value)}
    width = max((len(name) for name in scalars), default=0) + 2
    yield from (labelled(name, scalar(value), width=width) for name, value in scalars.items())
    for name, value in known.items():
        if name not in scalars:
            yield heading(name)
            yield from _part(value)


def _part(value: Any) -> Iterator[RenderableType]:
    if isinstance(value, NextStep):
        yield from _step(value)
    elif _is_record(value):
        yield from _indent(_fields(_named(value)))
    elif isinstance(value, Mapping):
        yield from _indent(_fields({str(key): item for key, item in value.items()}))
    else:
        yield from _items(list(value))


def _items(items: Sequence[Any]) -> Iterator[RenderableType]:
    shown = items[:MAX_ROWS]
    columns = _columns(items)
    if columns:
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in columns:
            table.add_column(label_of(name), overflow="fold")
        for item in shown:
            table.add_row(*(plain(scalar(getattr(item, name))) for name in columns))
        yield from _indent([table])
    else:
        for item in shown:
            if is_scalar(item):
                yield indented(f"- {scalar(item)}")
            elif isinstance(item, NextStep):
                yield from _step(item)
            else:
                yield from (
                    _block(_named(item))
                    if _is_record(item) or isinstance(item, Mapping)
                    else _indent(_part(item))
                )
    if len(items) > MAX_ROWS:
        yield indented(f"… and {len(items) - MAX_ROWS} more (all of them with --json)", "dim")


def _block(known: Fields) -> Iterator[RenderableType]:
    """Format one record of a list: its short scalars share a line, the rest follows below."""
    shared = {
        name: value
        for name, value in known.items()
        if is_scalar(value) and len(scalar(value)) <= LONGEST_ON_SHARED_LINE
    }
    yield indented("- " + ", ".join(f"{name} {scalar(value)}" for name, value in shared.items()))
    yield from _indent(_fields({name: value for name, value in known.items() if name not in shared}), by=4)


def _step(step: NextStep) -> Iterator[RenderableType]:
    yield indented(f"- {step.why}")
    yield indented(f"$ {command_line(step)}", "green", by=4)


def _columns(items: Sequence[Any]) -> list[str]:
    """The columns of a table of `items`: the fields that are not empty in every row.

    Empty if a table does not suit: it needs records of one class, few columns, and only short cells.
    """
    if not all(_is_record(item) and type(item) is type(items[0]) for item in items):
        return []
    rows = [_values(item) for item in items]
    columns = [name for name in rows[0] if any(row[name] not in EMPTY for row in rows)]
    cells = [row[name] for row in rows for name in columns]
    one_line = all(
        is_scalar(cell) and len(scalar(cell)) <= LONGEST_CELL and "\n" not in scalar(cell) for cell in cells
    )
    return columns if one_line and len(columns) <= MAX_COLUMNS else []


def _indent(parts: Iterable[RenderableType], by: int = 2) -> Iterator[RenderableType]:
    return (Padding(part, (0, 0, 0, by), expand=False) for part in parts)


STANDING_STYLE: dict[Standing, str] = {"ok": "green", "limited": "yellow", "missing": "red"}


def checkup_lines(checkup: Checkup) -> Iterator[RenderableType]:
    """Yield every need with its standing; essential needs are marked."""
    yield plain(checkup.summary, "bold")
    for need in checkup.needs:
        mark = f"{need.standing:<9}", STANDING_STYLE[need.standing]
        purpose = f"for {need.for_what}" + (", essential" if need.essential else "")
        yield Text.assemble(mark, f"{need.name:<19}", plain(f"{need.found}  "), (purpose, "dim"))
        if need.how:
            yield indented(f"{need.how}", "dim", by=28)
    yield from (indented(f"unknown: {unknown}", "yellow", by=0) for unknown in checkup.unknown)


OUTCOME_STYLE = {"fault": "bold red", "no_fault": "bold green", "inconclusive": "bold yellow"}
ROLE_STYLE: dict[brief.Role, str] = {"removed": "red", "added": "green", "command": "green"}
MOST_ELEMENTS = 4
PLANNED = re.compile(r" \(gain [\d.]+, about \d+ s(?:; open: [\w, ]+)?\)$")  # added by `diagnose.perform`


def brief_lines(verdict: Verdict) -> Iterator[RenderableType]:
    """Yield the verdict in about eleven lines; long lines are folded next to their label."""
    for line in brief.lines(verdict):
        if line.role == "title":
            yield plain(line.text, OUTCOME_STYLE[verdict.outcome])
        elif line.role == "text":
            yield plain(line.text)
        else:
            grid = Table.grid()
            grid.add_column(width=brief.LABEL)
            grid.add_column(overflow="fold")
            grid.add_row(
                plain(line.label, "dim"), plain(f"{line.mark}{line.text}", ROLE_STYLE.get(line.role, ""))
            )
            yield grid


def verdict_lines(verdict: Verdict) -> Iterator[RenderableType]:
    """Yield all non-empty parts of a verdict, and why each check was chosen."""
    yield plain(brief.title_of(verdict), OUTCOME_STYLE[verdict.outcome])
    if verdict.category:
        yield plain(f"{verdict.category}: {CATEGORIES[verdict.category]}", "dim")
    yield plain(verdict.summary)
    if verdict.call and verdict.call.of > 1:
        yield plain(f"This was call {verdict.call.number} of {verdict.call.of}.")
    if eager := brief.eager_in_words(verdict):
        yield plain(eager)
    if verdict.guilty or verdict.crashing:
        yield Text()
    if verdict.guilty:
        yield from _party("Root cause" if verdict.outcome == "fault" else "Suspect", verdict.guilty)
    if verdict.crashing:
        shown = verdict.guilty.model_locations if verdict.guilty else []
        yield from _party("Crash site", verdict.crashing, shown)
    yield from _evidence(verdict.evidence, verdict.artifacts)
    yield from _list("Then fix", [cause.summary for cause in verdict.causes[1:]])
    yield from _list(
        "Not the cause", [f"{item.hypothesis.rstrip('.')}: {item.by}" for item in verdict.bystanders]
    )
    yield from _list("Consequences of the cause", [item.hypothesis for item in verdict.ruled_out])
    yield from _list("Notes", verdict.remarks)
    yield from _to_do(verdict)
    if verdict.decisions:
        yield heading("Checks run")
    yield from (indented(f"{number}. {each}", "dim") for number, each in enumerate(verdict.decisions, 1))
    yield Text()
    yield labelled("Cost", brief.cost_in_words(verdict.cost))
    for artifact in verdict.artifacts:
        job = brief.OF_JOB.fullmatch(artifact.uri)
        if job is not None and job["file"] == SUBJECT_FILE:
            yield labelled("Job", f"{job['job']} (aoti-debug report {job['job']} --out FOLDER)", "dim")
        else:
            yield labelled("File", scalar(artifact), "dim")


def _to_do(verdict: Verdict) -> Iterator[RenderableType]:
    """Yield the fix, what confirms the cause, and the next steps."""
    if verdict.fix:
        yield from _fix(verdict.fix)
    if verdict.confirmed:
        yield heading("Confirmed")
        yield from map(indented, brief.confirmation(verdict.confirmed))
        if verdict.confirmed.command:
            yield indented(f"$ {verdict.confirmed.command}", "green", by=4)
    if verdict.next_steps:
        yield heading("Next")
    for step in verdict.next_steps:
        yield from _step(step)


def _list(title: str, items: list[str]) -> Iterator[RenderableType]:
    if items:
        yield heading(title)
    yield from (indented(f"- {item}") for item in items)


def _party(label: str, party: Component, shown: Sequence[ModelLocation] = ()) -> Iterator[RenderableType]:
    """Format the root cause or the crash site, without the lines of the model in `shown`."""
    yield labelled(label, party_title(party), "bold")
    if party.generated_location:
        yield labelled("", f"generated code {party.generated_location}")
    of_one = party.kind == "input" and party.value and len(party.elements) == 1  # already in the title
    if party.elements and not of_one:
        yield labelled("", f"elements {', '.join(party.elements[:MOST_ELEMENTS])}")
    if party.expression:
        yield labelled("", f"computes {party.expression}")
    for place in party.model_locations:
        if place not in shown:
            yield labelled("", scalar(place), "cyan")


def _path(source: str, artifacts: Sequence[Artifact]) -> str:
    """The path of a job's file if `source` is its MCP address, else `source`."""
    found = brief.OF_JOB.fullmatch(source)
    folders = [str(each.path).partition(f"/{found['job']}/") for each in artifacts] if found else []
    known = next((before for before, middle, _ in folders if middle), None)
    return f"{known}/{found['job']}/{found['file']}" if found and known is not None else source


def _evidence(evidence: list[Evidence], artifacts: Sequence[Artifact]) -> Iterator[RenderableType]:
    if evidence:
        yield heading("Evidence")
    for number, item in enumerate(evidence, 1):
        yield indented(f"{number}. {item.fact}  [{item.step}]")
        if item.source:
            yield indented(_path(item.source, artifacts), "dim", by=5)
        if item.command:
            yield indented(f"$ {item.command}", "green", by=5)


def _fix(fix: Fix) -> Iterator[RenderableType]:
    yield heading("Fix")
    yield indented(fix.text)
    for text, mark, style in ((fix.before, "-", "red"), (fix.after, "+", "green")):
        yield from (indented(f"{mark} {line}", style, by=4) for line in (text or "").splitlines())
    if note := brief.note_on_arguments(fix):
        yield indented(note)


def check_name(decision: str) -> str:
    """The check that a decision of the planner names, without its numbers: `look at indices`."""
    name = PLANNED.sub("", decision)
    if name == decision and " " in name:
        return decision
    return re.sub(r"^intervene_\d+$", "call with one thing changed", name).replace("_", " ")


PIPE_WIDTH = 10_000
"""Width in a pipe: nothing is folded there, so that commands can be copied and lines searched."""


def rendered(result: Record, verbose: bool = False) -> Iterator[RenderableType]:
    """Yield the parts of a result in reading order; a verdict is brief unless `verbose`."""
    if isinstance(result, Verdict):
        return verdict_lines(result) if verbose else brief_lines(result)
    return checkup_lines(result) if isinstance(result, Checkup) else _fields(_named(result))


def write(result: Record, verbose: bool = False) -> None:
    """Print a result on stdout: coloured on a terminal, plain in a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(as_text(result, verbose=verbose))
        return
    for part in rendered(result, verbose):
        console.print(part)


def as_text(result: Record, verbose: bool = False) -> str:
    """The result as plain text: no colour, no spaces at the ends of lines."""
    out = io.StringIO()
    console = Console(file=out, width=PIPE_WIDTH, highlight=False, color_system=None)
    for part in rendered(result, verbose):
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
