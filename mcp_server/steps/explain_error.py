"""Explains an error text: which family, what it means and does not prove, which guide, which call next.

Runs nothing. With a package, an index assertion is traced to its launch, its bound and the input behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.evidence.families import Rank, closest_family
from mcp_server.evidence.families.kinds import HANG_GUIDE, MAIN_GUIDE
from mcp_server.model import Category, ModelLocation, NextStep, Record
from mcp_server.package.facts import AssertionFact
from mcp_server.package.query import ambiguity, assertion_facts, no_holder
from mcp_server.package.view import view_package
from mcp_server.steps.context import Context
from mcp_server.steps.explain_words import as_sentence, next_call, shell_lines
from mcp_server.steps.logs import read_text, read_users_log

_OTHERS = 6
_FRAMES = 4
_TRACES = 3
_LINES = 12
_TRACED = frozenset({"device_assert_index", "cpu_index_assert"})


class OtherError(Record):
    """Another error of the log, and why it is not the root."""

    family: str
    line: int
    text: str
    role: str
    count: int = 1


class Explanation(Record):
    """What a text says. Lines count from 1 in the text.

    `known` is false when no family matched: then `lines` are the most telling ones. `category` is set where
    the text decides it; else `candidates` are what it admits, the likeliest first. `trace` needs a package.
    `page` is the family's section in the documentation.
    """

    known: bool
    summary: str
    family: str = ""
    stage: str = ""
    category: Category | None = None
    candidates: list[Category] = Field(default_factory=list)
    text: str = ""
    line: int = 0
    count: int = 0
    fields: dict[str, str] = Field(default_factory=dict)
    meaning: str = ""
    not_proven: str = ""
    releases: str = ""
    guide: str
    page: str = ""
    next: NextStep
    commands: list[str] = Field(default_factory=list)
    others: list[OtherError] = Field(default_factory=list)
    last_launch: str = ""
    kernel: str = ""
    generated: list[str] = Field(default_factory=list)
    model_lines: list[ModelLocation] = Field(default_factory=list)
    trace: list[AssertionFact] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    lines: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)


async def explain_error(
    context: Context,
    *,
    text: str = "",
    log: Path | None = None,
    package: Path | None = None,
    model_name: str | None = None,
) -> Explanation:
    """Explain `text`, or a log file of any size.

    Raises ProblemError when both or neither are given or the file cannot be read, and PackageError for a
    `package` that is none.
    """
    facts = await _read(context, text, log)
    if facts.root is None:
        return _unknown(facts, package, quoted=log is None)
    trace, notes = await anyio.to_thread.run_sync(_trace, facts.root, package, model_name)
    return _known(facts, facts.root, package, trace, [*notes, *_notes(facts)])


async def _read(context: Context, text: str, log: Path | None) -> LogFacts:
    if bool(text.strip()) == (log is not None):
        raise ProblemError(
            "give the error either as text or as a log file",
            allowed="text='RuntimeError: …' or log='run.log'",
        )
    if log is None:
        return await read_text(text)
    context.progress(f"reading {log.name}")
    return await read_users_log(log)


def _known(
    facts: LogFacts, root: ErrorFact, package: Path | None, trace: list[AssertionFact], notes: list[str]
) -> Explanation:
    family = root.family
    return Explanation(
        known=True,
        summary=as_sentence(root),
        family=family.id,
        stage=family.stage,
        category=root.category,
        candidates=list(root.candidates),
        text=root.text,
        line=root.line,
        count=root.count,
        fields=root.fields,
        meaning=family.meaning,
        not_proven=family.not_proven,
        releases=family.torch,
        guide=family.guide,
        page=f"docs/errors.md#{family.id}",
        next=next_call(root, facts, package),
        commands=shell_lines(root, facts),
        others=_others(facts, root),
        last_launch=facts.last_launch.kernel if facts.last_launch else "",
        kernel=root.fields.get("kernel", ""),
        generated=[f"{place.file}:{place.line}" for place in facts.locations[:_FRAMES]],
        model_lines=_model_lines(facts),
        trace=trace,
        notes=notes,
        versions=facts.versions,
    )


def _unknown(facts: LogFacts, package: Path | None, *, quoted: bool) -> Explanation:
    """An honest answer for a text of no known family: its most telling lines and a way to learn more.

    A `quoted` text is an error in the eyes of its sender. Only a log can end without one.
    """
    if quoted:
        facts = replace(facts, best_lines=facts.best_lines or facts.tail)
    lines = facts.best_lines or facts.tail
    launch = facts.last_launch
    silent = launch is None and not facts.best_lines
    return Explanation(
        known=False,
        summary=_without_family(facts),
        guide=HANG_GUIDE if silent else MAIN_GUIDE,
        next=next_call(None, facts, package),
        commands=shell_lines(None, facts),
        others=[_other(error, "noise") for error in facts.errors[:_OTHERS]],
        last_launch=launch.kernel if launch else "",
        model_lines=_model_lines(facts),
        notes=[*_closest(facts), *_notes(facts)],
        lines=[f"{number}: {text}" for number, text in lines[-_LINES:]],
        versions=facts.versions,
    )


def _without_family(facts: LogFacts) -> str:
    """What the absence of a known error says."""
    if facts.last_launch is not None:
        return f"No error text; the last launch that began and did not end is {facts.last_launch.kernel}."
    if facts.errors:  # of rank NOISE: others would be a root
        return f"No error that names a cause. {facts.errors[0].family.meaning}"
    if facts.best_lines:
        return "This text matches no known error."
    return "No error text in this log: the program hung, crashed without a message, or the log was cut off."


def _closest(facts: LogFacts) -> list[str]:
    """What to try where no family matched: the one that is most alike, and the whole log."""
    if facts.last_launch is not None or not facts.best_lines:
        return []
    family = closest_family(facts.best_lines[-1][1])
    alike = [f"closest known error: {family.id}: `{family.example}`"] if family else []
    return [
        *alike,
        "pass the whole log, standard output and standard error: the cause is often in another line",
    ]


def _trace(
    root: ErrorFact, package: Path | None, model_name: str | None
) -> tuple[list[AssertionFact], list[str]]:
    """The launches of the package at which an index assertion may have failed."""
    if package is None or root.family.id not in _TRACED:
        return [], []
    file, line, kernel = _place(root)
    view = view_package(package, model_name)
    found = assertion_facts(view, root.text, file, line, kernel)
    if not found:
        return [], [no_holder(view)]
    notes = [note] if (note := ambiguity(found)) else []
    if len(found) > _TRACES:
        notes = [f"{note}; {_TRACES} are shown: inspect_package lists all"]
    return found[:_TRACES], notes


def _place(root: ErrorFact) -> tuple[str | None, int | None, str | None]:
    """File, line and kernel of a failed check, as its text or the following one names them."""
    fields = root.fields
    file = fields.get("file") or fields.get("raised_file")
    line = fields.get("line") or fields.get("raised_line")
    return file, int(line) if line else None, fields.get("kernel")


def _others(facts: LogFacts, root: ErrorFact) -> list[OtherError]:
    others = [error for error in facts.errors if error.family.id != root.family.id]
    ranked = sorted(others, key=lambda error: (-error.rank, error.line))[:_OTHERS]
    return [_other(error, _role(error, root)) for error in ranked]


def _other(error: ErrorFact, role: str) -> OtherError:
    return OtherError(
        family=error.family.id, line=error.line, text=error.text[:160], role=role, count=error.count
    )


def _role(error: ErrorFact, root: ErrorFact) -> str:
    if error.rank == Rank.NOISE:
        return "noise"
    if error.rank == Rank.GENERIC:
        return "only says that a call failed"
    return "consequence" if error.rank < root.rank else "another error"


def _model_lines(facts: LogFacts) -> list[ModelLocation]:
    frames = facts.frames[-_FRAMES:]
    return [ModelLocation(file=frame.file, line=frame.line, code=frame.code) for frame in reversed(frames)]


def _notes(facts: LogFacts) -> list[str]:
    notes = []
    if facts.truncated:
        notes.append(f"the log is incomplete: {facts.truncated}")
    if len(facts.processes) > 1:
        notes.append(f"{len(facts.processes)} processes wrote this log: {_listed(facts.processes)}")
    if facts.dropped_errors:
        notes.append(f"{facts.dropped_errors} further different errors were counted only")
    if facts.sanitizer is not None and not facts.sanitizer.complete:
        notes.append("the sanitizer's report has no summary: its run was cut off")
    return notes


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "")
