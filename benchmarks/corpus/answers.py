"""Reads the right answers about the programs from `answers.yaml`, whose keys are their names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

HOME = Path(__file__).resolve().parent
PROGRAMS = HOME / "programs"


@dataclass(frozen=True)
class Defect:
    """One of several defects of a program: a cause of its failure, or a harmless bystander.

    `fixed` are replacements in the program's text that remove this defect and nothing else.
    `expected_error` is what a run shows when this is the first remaining cause. Empty for a bystander.
    An empty `guilty` names nobody.
    """

    categories: frozenset[str | None]
    guilty: tuple[dict[str, Any], ...]
    why: str
    expected_error: str
    fixed: tuple[tuple[str, str], ...]

    def removed_from(self, source: str) -> str:
        """`source` without this defect. Raises `ValueError` for a text that does not occur exactly once."""
        for old, new in self.fixed:
            if source.count(old) != 1:
                raise ValueError(f"{old!r} occurs {source.count(old)} times in the program")
            source = source.replace(old, new)
        return source


@dataclass(frozen=True)
class Answer:
    """The right answer for a case. A verdict that fits any alternative of `guilty` is right.

    An alternative's `kind` is a list of kinds, its `name` a regular expression; its other fields must be
    equal. `forms` are those in which the case makes sense. `log_accepts` is what else is right from a log
    alone (`inconclusive`, or categories). `looks_like` names the categories that a case without a fault
    resembles. `model_lines` are substrings of source lines; a verdict should point at such a line, if any
    are given. A program with several defects lists its `causes` in the order in which they have to be fixed,
    and its `bystanders`; the other fields are about the first cause.
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
    """The defect that `entry` describes; the first cause takes what is missing from the answer."""
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
    """The program as it is, and with each selection of defects removed that tests the answer."""
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
