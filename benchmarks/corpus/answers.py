"""Reads the answers beside the cases: a small, documented part of YAML, with the standard library alone.

`KEY: VALUE` per line. A value is JSON (`[…]`, `{…}`, `"…"`), a `'…'` string, or plain text; indented lines
continue the value above, and `- ITEM` lines make a list. Anything else raises `ValueError`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = re.compile(r"([a-z_]+):(?: (.*))?$")


@dataclass(frozen=True)
class Defect:
    """One of the defects of a program that has several: a cause of its failure, or a harmless bystander.

    `fixed` are replacements in the program's text that remove this defect and nothing else.
    `expected_error` is what a run shows when this is the first cause that is left; empty for a bystander.
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
    timeout_s: float = 120
    causes: tuple[Defect, ...] = ()
    bystanders: tuple[Defect, ...] = ()
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def categories(self) -> frozenset[str | None]:
        return frozenset({self.category, *self.also_accepted})


def read_answer(path: Path) -> Answer:
    """The answer in `path`; raises `ValueError` for a file that is not in the format."""
    fields = parse(path.read_text())
    category = fields["category"]
    healthy = fields.get("outcome") == "no_fault" or category == "no_fault" or fields.get("detail") == "none"
    guilty = fields.get("guilty")
    causes, bystanders = fields.get("causes") or [], fields.get("bystanders") or []
    return Answer(
        name=path.stem,
        needs=fields["needs"],
        outcome="no_fault" if healthy else "fault",
        category=None if healthy else category,
        also_accepted=tuple(fields.get("also_accepted") or ()),
        guilty=tuple(guilty) if isinstance(guilty, list) else (),
        model_lines=tuple(fields.get("model_lines") or ()),
        forms=tuple(fields.get("forms") or ("script", "package", "log")),
        log_accepts=tuple(fields.get("log_accepts") or ()),
        looks_like=tuple(fields.get("looks_like") or ()),
        expected_error=str(fields["expected_error"]),
        timeout_s=float(fields.get("timeout_s", 120)),
        causes=tuple(_defect({**fields, **cause} if cause is causes[0] else cause) for cause in causes),
        bystanders=tuple(_defect(bystander) for bystander in bystanders),
        fields=fields,
    )


def _defect(entry: dict[str, Any]) -> Defect:
    """The defect that `entry` describes; the first cause takes what it leaves out from the answer."""
    return Defect(
        categories=frozenset({entry["category"], *(entry.get("also_accepted") or ())}),
        guilty=tuple(entry["guilty"]),
        why=entry["why"] if "why" in entry else entry["cause"],
        expected_error=str(entry.get("expected_error", "")),
        fixed=tuple((old, new) for old, new in entry["fixed"]),
    )


def parse(text: str) -> dict[str, Any]:
    """The mapping that `text` writes down."""
    return {key: _value(lines) for key, lines in _entries(text)}


def _entries(text: str) -> list[tuple[str, list[str]]]:
    """Keys with the lines of their values, the first of which follows the colon."""
    entries: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        found = KEY.match(line)
        if found:
            entries.append((found[1], [found[2] or ""]))
        elif line.strip() and not entries:
            raise ValueError(f"a value without a key: {line!r}")
        elif line.strip():
            entries[-1][1].append(line)
    return entries


def _value(lines: list[str]) -> Any:
    if not lines[0].strip() and lines[1:] and all(line.lstrip().startswith("- ") for line in lines[1:]):
        return [_scalar(line.lstrip()[2:]) for line in lines[1:]]
    return _scalar(" ".join(line.strip() for line in lines).strip())


def _scalar(text: str) -> Any:
    if text[:1] in ("[", "{", '"'):
        return json.loads(text)
    if text[:1] == "'" and text[-1:] == "'":
        return text[1:-1].replace("''", "'")
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) if "." in text else int(text)
    return None if text in ("", "null") else text
