"""Reads what is right about each program: `answers.yaml`, one document with a program's name as the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parent
PROGRAMS = HOME / "programs"


@dataclass(frozen=True)
class Defect:
    """One of the defects of a program that has several: a cause of its failure, or a harmless bystander.

    `fixed` are replacements in the program's text that remove this defect and nothing else.
    `expected_error` is what a run shows when this is the first cause that is left. Empty for a bystander.
    An empty `guilty` names nobody.
    """

    categories: frozenset[str | None]
    guilty: tuple[dict[str, Any], ...]
    why: str
    expected_error: str
    fixed: tuple[tuple[str, str], ...]

    def removed_from(self, source: str) -> str:
        """`source` without this defect; raises `ValueError` for a text that is not there exactly once."""
        for old, new in self.fixed:
            if source.count(old) != 1:
                raise ValueError(f"{old!r} occurs {source.count(old)} times in the program")
            source = source.replace(old, new)
        return source


@dataclass(frozen=True)
class Answer:
    """What is right about a case. `guilty` lists alternatives: a verdict that fits one of them is right.

    An alternative's `kind` is a list of kinds, its `name` a regular expression, the other fields are equal.
    `forms` are those in which the case makes sense. `log_accepts` is what else is right when only a log is
    given (`inconclusive`, or categories). `looks_like` names the categories that a case without a fault has
    to be told from. `model_lines` are substrings of source lines, at one of which a verdict should point;
    empty: none to point at. A program with several defects lists its `causes` in the order in which they
    have to be fixed, and its `bystanders`; the other fields are about the first cause.
    """

    name: str
    needs: str
    outcome: str
    category: str | None
    also_accepted: tuple[str, ...] = ()
    guilty: tuple[dict[str, Any], ...] = ()
    model_lines: tuple[str, ...] = ()
    forms: tuple[str, ...] = ("script", "package", "log")
    log_accepts: tuple[str, ...] = ()
    looks_like: tuple[str, ...] = ()
    expected_error: str = ""
    timeout_s: float = 180
    causes: tuple[Defect, ...] = ()
    bystanders: tuple[Defect, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def categories(self) -> frozenset[str | None]:
        return frozenset({self.category, *self.also_accepted})


def read_answers(path: Path) -> list[Answer]:
    """The answers in `path`, by name of the program."""
    return [_answer(name, fields) for name, fields in sorted(yaml.safe_load(path.read_text()).items())]


def _answer(name: str, fields: dict[str, Any]) -> Answer:
    causes, bystanders = fields.get("causes", []), fields.get("bystanders", [])
    return Answer(
        name=name,
        needs=fields["needs"],
        outcome=fields["outcome"],
        category=fields["category"],
        also_accepted=tuple(fields.get("also_accepted", ())),
        guilty=tuple(fields.get("guilty", ())),
        model_lines=tuple(fields.get("model_lines", ())),
        forms=tuple(fields.get("forms", ("script", "package", "log"))),
        log_accepts=tuple(fields.get("log_accepts", ())),
        looks_like=tuple(fields.get("looks_like", ())),
        expected_error=fields["expected_error"],
        timeout_s=fields.get("timeout_s", 180),
        causes=tuple(_defect({**fields, **cause} if cause is causes[0] else cause) for cause in causes),
        bystanders=tuple(_defect(bystander) for bystander in bystanders),
        fields=fields,
    )


def _defect(entry: dict[str, Any]) -> Defect:
    """The defect that `entry` describes; the first cause takes what it leaves out from the answer."""
    return Defect(
        categories=frozenset({entry["category"], *entry.get("also_accepted", ())}),
        guilty=tuple(entry.get("guilty", ())),
        why=entry["why"] if "why" in entry else entry["cause"],
        expected_error=entry.get("expected_error", ""),
        fixed=tuple((old, new) for old, new in entry["fixed"]),
    )


@dataclass(frozen=True)
class Trial:
    """A program's source with some defects removed; `wanted` says how it must end."""

    what: str
    source: str
    wanted: Answer


def trials(answer: Answer, source: str) -> Iterator[Trial]:
    """The program as it is, and every program without some defects whose end decides about the answer."""
    yield Trial("as it is", source, answer)
    if answer.bystanders:
        yield Trial("bystanders fixed, ends as before", _without(answer.bystanders, source), answer)
    for count in range(1, len(answer.causes)):
        first, then = answer.causes[:count], answer.causes[count:]
        category = min(map(str, then[0].categories))
        shows = replace(answer, category=category, expected_error=then[0].expected_error)
        yield Trial(f"cause {count} fixed, the next one shows", _without(first, source), shows)
        yield Trial(f"cause {count + 1} fixed alone, ends as before", _without(then[:1], source), answer)
    if answer.causes:
        well = replace(answer, outcome="no_fault", category=None, expected_error="")
        yield Trial("causes fixed, passes", _without(answer.causes, source), well)


def _without(defects: Iterable[Defect], source: str) -> str:
    for defect in defects:
        source = defect.removed_from(source)
    return source
