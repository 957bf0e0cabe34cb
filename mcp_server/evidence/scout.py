"""Decides what is worth looking for on a line, quickly enough for logs of 100 MB.

Most lines of a long log differ from earlier ones in their numbers only. A line without its digits is its
template; what can be found on a template is worked out once, for many new templates at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.evidence.details import HINTS as DETAIL_HINTS
from mcp_server.evidence.families import FAMILIES, Family
from mcp_server.evidence.text import Line

MAX_TEMPLATES = 20_000
MAX_TEMPLATE_LENGTH = 500

_PART = 4
_NO_DIGITS = str.maketrans("", "", "0123456789")
_SUSPICIOUS = ("rror", "ERROR", "ailed", "ailure", "FAIL", "xception", "bort", "atal", "FATAL", "panic")
_CUT = ("truncated", "omitted", "skipped", "elided")
_TRACEBACK = ("(most recent call ", "exception occurred:", "following exception:", '", line ')


class Look(NamedTuple):
    """What a line may hold."""

    families: tuple[Family, ...] = ()
    details: bool = False
    launches: bool = False
    traceback: bool = False
    suspicious: bool = False
    cut: bool = False


NOTHING = Look()


def _templates(hints: Sequence[str]) -> frozenset[str]:
    return frozenset(hint.translate(_NO_DIGITS) for hint in hints)


def _places() -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, family in enumerate(FAMILIES):
        for hint in _templates(family.hints):
            places.setdefault(hint, []).append(place)
    return places


_PLACES = _places()
_DETAILS, _LAUNCHES = _templates(DETAIL_HINTS), _templates(("_launch: ",))
_ALL_HINTS = tuple(
    sorted(frozenset(_PLACES) | _DETAILS | _LAUNCHES | _templates((*_SUSPICIOUS, *_CUT, *_TRACEBACK)))
)


def _grouped(hints: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Hints under few common parts of four letters: a text without the part holds none of its hints."""
    left, groups = set(hints), []
    while left:
        parts = Counter(part for hint in sorted(left) for part in _parts(hint))
        part = parts.most_common(1)[0][0]
        members = tuple(sorted(hint for hint in left if part in hint))
        groups.append((part, members))
        left.difference_update(members)
    return groups


def _parts(hint: str) -> set[str]:
    return {hint[start : start + _PART] for start in range(max(1, len(hint) - _PART + 1))}


_GROUPS = _grouped(_ALL_HINTS)


class Scout:
    """Remembers templates; memory is bounded by their number and length."""

    def __init__(self) -> None:
        self._known: dict[str, Look] = {}

    def looks(self, batch: Sequence[Line]) -> list[Look]:
        """For each line of a batch, what to look for."""
        templates = [line.text.translate(_NO_DIGITS) for line in batch]
        known = self._known
        new = {template for template in templates if template not in known}
        fresh = self._judge(new) if new else {}
        looks = [fresh[template] if template in fresh else known[template] for template in templates]
        self._remember(fresh)
        return looks

    def _judge(self, templates: set[str]) -> dict[str, Look]:
        text = "\n".join(templates)
        present = [hint for part, hints in _GROUPS if part in text for hint in hints if hint in text]
        return {template: _look(template, present) for template in templates}

    def _remember(self, fresh: dict[str, Look]) -> None:
        if len(self._known) + len(fresh) > MAX_TEMPLATES:
            self._known.clear()
        for template, look in fresh.items():
            if len(template) <= MAX_TEMPLATE_LENGTH:
                self._known[template] = look


def _look(template: str, present: Sequence[str]) -> Look:
    hints = {hint for hint in present if hint in template}
    if not hints:
        return NOTHING
    return Look(
        families=_families(hints),
        details=not hints.isdisjoint(_DETAILS),
        launches=not hints.isdisjoint(_LAUNCHES),
        traceback=not hints.isdisjoint(_TRACEBACK),
        suspicious=not hints.isdisjoint(_SUSPICIOUS),
        cut=not hints.isdisjoint(_CUT),
    )


def _families(hints: set[str]) -> tuple[Family, ...]:
    """The families with one of the hints, in the order of the table."""
    places = {place for hint in hints for place in _PLACES.get(hint, ())}
    return tuple(FAMILIES[place] for place in sorted(places))
