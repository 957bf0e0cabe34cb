"""Which lines of a log are worth reading, and the facts on lines that are no errors themselves.

Most lines of a long log differ from earlier ones in their numbers only. A line without its digits is its
template; what can be found on a template is worked out once, for many new templates at a time. That reads
logs of 100 MB quickly.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from mcp_server.logs.facts import GeneratedLocation
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.logs.text import Line, bound
from mcp_server.logs.traceback import is_user_file

if sys.version_info >= (3, 11):
    import re._constants as sre
    import re._parser as sre_parse
else:
    import sre_constants as sre
    import sre_parse

MAX_LOCATIONS = 20
MAX_TEMPLATES = 20_000
MAX_TEMPLATE_LENGTH = 500
_DIGITS = frozenset(b"0123456789")  # templates have none
MAX_ALTERNATIVES = 4  # of one text, such as "Error" and "error"

# Frames through which torch calls a Python operator (torch 2.8-2.15).
OPERATOR_FILE = re.compile(r"[/\\]torch[/\\]_?library[/\\.]")


def literals(pattern: str) -> frozenset[str]:
    """Texts without digits, one of which is in every match; empty where the pattern has none."""
    return frozenset(_required(sre_parse.parse(pattern)))


def _required(parsed: Any) -> set[str]:
    """The most selective of the texts that a parsed pattern requires, one after the other."""
    found: list[set[str]] = []
    run = {""}  # the alternatives of the text up to here

    def visit(parsed: Any) -> None:
        nonlocal run
        for kind, value in parsed:
            letters = [value] if kind is sre.LITERAL else []
            if kind is sre.IN and all(of is sre.LITERAL for of, _ in value):
                letters = [letter for _, letter in value]
            if letters and len(letters) * len(run) <= MAX_ALTERNATIVES and not _DIGITS.intersection(letters):
                run = {text + chr(letter) for text in run for letter in letters}
            elif kind is sre.SUBPATTERN:
                visit(value[-1])
            elif kind not in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):  # these match no text
                found.append(run)
                run = {""}
                if kind is sre.BRANCH:
                    branches = [_required(branch) for branch in value[1]]
                    found.append(set().union(*branches) if all(branches) else set())
                elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] > 0:
                    found.append(_required(value[2]))

    visit(parsed)
    texts = [one for one in [*found, run] if one and "" not in one]
    return max(texts, key=lambda one: (min(map(len, one)), -len(one)), default=set())


class _Hinted:
    """A pattern that is only tried on lines with a text that its matches require, which is much faster."""

    def __init__(self, pattern: str) -> None:
        self.hints = literals(pattern)
        self._pattern = re.compile(pattern)

    def search(self, text: str) -> re.Match[str] | None:
        for hint in self.hints:
            if hint in text:
                return self._pattern.search(text)
        return None


# What a line adds to the error before it, by the names of the groups.
_ADDED_BY_LINES = (
    r"Exception raised from (?:(?P<kernel>cpp_\w+)|(?P<raised_in>.+?)) "
    r"at (?P<raised_file>\S+):(?P<raised_line>\d+)",
    r"Error in op: (?P<op>\S+)",
    r"Mismatched elements: (?P<mismatched>\d+) / (?P<elements>\d+)",
    r"Greatest absolute difference: (?P<difference>\S+) at index (?P<at>\([\d, ]*\))",
    r"^(?P<compiler>\S*(?:g\+\+|gcc|clang)\S*)(?: -x (?P<precompiled>c\+\+-header))? .*-D ",
    r"Triton compilation failed: (?P<kernel>\w+)",
    r"^def (?P<function>\w+)\(",
    r"(?P<reason>Loop-carried variable .+)",
    r"^(?P<reason>\w+Error\(.+\))$",
    r"Kernel Name: (?P<kernel>\w+)",
    # members of an archive, as the loader lists them: of an exported program, of a file of tensors, another
    # package, and of a compiled model
    r"^(?P<archive>[^/\s]+)/models/\w+\.json$",
    r"^(?P<saved>[^/\s]+)/data\.pkl$",
    r"^(?P<wrapped>[^/\s:][^\s:]*\.pt2)$",
    r"^[^/\s]+/data/aotinductor/(?P<holds>[^/]+)/",
    # a frame of C++, of a call of a package that the program makes without torch's Python class
    r"(?P<inside>AOTInductorModel\w*(?:::run\w*|Run)\b)",
    # a frame of C++ that shows what a program that crashed was doing; stacks are printed innermost first
    r"(?P<native>AOTInductorModelContainer::AOTInductorModelContainer\b|"
    r"AOTIModel(?:ContainerRunner|PackageLoader)\w*::AOTIModel(?:ContainerRunner|PackageLoader)|"
    r"::(?:update_(?:inactive_)?constant_buffer|load_constants|swap_constant_buffer)\w*\(|"
    r"ProxyExecutor::call_function)",
    r"(?P<native>aoti_torch_proxy_executor_call_function)",
    # a frame, as c10 prints it, of the program itself: not of a library, nor of Python
    r"frame #\d+: .* in (?P<host>(?!\S*\.so)(?!\S*python)[^()\s]{1,300})\)\s*$",
    r"what\(\):\s+(?P<what>.+)",
)
_FOLLOWING = tuple(map(_Hinted, _ADDED_BY_LINES))
_VERSIONS = {
    "torch": _Hinted(r"\b(?:[Pp]y)?[Tt]orch(?: version)?[\"' :=v]+(\d+\.\d+\.\d+(?:\+\w+)?)"),
    "triton": _Hinted(r"\b[Tt]riton(?: version)?[\"' :=v]+(\d+\.\d+\.\d+)"),
    "cuda": _Hinted(r"CUDA (?:Version|version|used to build PyTorch)[ :=]+(\d+\.\d+)"),
    "python": _Hinted(r"/lib/python(\d+\.\d+)/"),
}
_LOCATION = _Hinted(
    r"(?<![^\s\"':,(])(?P<file>[^\s\"':,(]+(?:\.wrapper\.cpp|\.kernel\.cpp))(?::|, line )(?P<line>\d+)"
)
# What pybind11 adds to the text of an exception that crossed C++: its Python frames, innermost first.
_PYTHON_FRAME = _Hinted(r"^\s+(?P<file>\S+\.py)\((?P<line>\d+)\): (?P<function>\S+)$")


class Details:
    """Collects generated locations and versions; returns what a line adds to the error before it."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self._locations: dict[GeneratedLocation, None] = {}

    def locations(self) -> tuple[GeneratedLocation, ...]:
        """Lines of generated C++ that the log names, in the order of the log."""
        return tuple(self._locations)

    def feed(self, line: Line) -> dict[str, str]:
        """Read one line; what it returns belongs to the error before it."""
        text = line.text
        if (place := _LOCATION.search(text)) and len(self._locations) < MAX_LOCATIONS:
            self._locations[GeneratedLocation(place["file"], int(place["line"]))] = None
        for name, pattern in _VERSIONS.items():
            if name not in self.versions and (version := pattern.search(text)):
                self.versions[name] = version[1]
        if frame := _PYTHON_FRAME.search(text):
            return _frame_fields(frame, line.number)
        for pattern in _FOLLOWING:
            if found := pattern.search(text):
                return {name: bound(value, 300) for name, value in found.groupdict().items() if value}
        return {}


def _frame_fields(frame: re.Match[str], number: int) -> dict[str, str]:
    """The program's innermost frame, and the first through which an operator is called, with their lines."""
    if OPERATOR_FILE.search(frame["file"]):
        return {"operator_call": str(number)}
    if not is_user_file(frame["file"]):
        return {}
    found = {"at_file": frame["file"], "at_line": frame["line"], "at_function": frame["function"]}
    return {**found, "at": str(number)}


Mark = Literal["details", "launches", "traceback", "suspicious", "cut"]

_NO_DIGITS = str.maketrans("", "", "0123456789")
_PART = 4  # letters of the texts by which hints are grouped
_DETAILS = (*_FOLLOWING, *_VERSIONS.values(), _LOCATION, _PYTHON_FRAME)


class LineMatches(NamedTuple):
    """What a line may hold: errors of these families, and what else to look for."""

    families: tuple[Family, ...] = ()
    marks: frozenset[Mark] = frozenset()


NOTHING = LineMatches()


class _Hints(NamedTuple):
    """All hints: those of families by their places in the table, those of marks, and all of them in groups.

    A group is a text of four letters and the hints that hold it: a log without the text holds none of them.
    """

    places: dict[str, list[int]]
    marks: dict[Mark, frozenset[str]]
    groups: list[tuple[str, tuple[str, ...]]]


@cache
def _hints() -> _Hints:
    places: dict[str, list[int]] = {}
    for place, family in enumerate(FAMILIES):
        for hint in frozenset().union(*(literals(pattern.pattern) for pattern in family.patterns)):
            places.setdefault(hint, []).append(place)
    marks: dict[Mark, frozenset[str]] = {
        "details": frozenset().union(*(pattern.hints for pattern in _DETAILS)),
        "launches": frozenset({"_launch: "}),
        "traceback": frozenset(
            {"(most recent call ", "exception occurred:", "following exception:", '", line '}
        ),
        "suspicious": frozenset(
            {"rror", "ERROR", "ailed", "ailure", "FAIL", "xception", "bort", "atal", "FATAL", "panic"}
        ),
        "cut": frozenset({"truncated", "omitted", "skipped", "elided"}),
    }
    left, groups = set(places).union(*marks.values()), []
    while left:
        starts = ((hint, range(max(1, len(hint) - _PART + 1))) for hint in sorted(left))
        parts = Counter(part for hint, at in starts for part in {hint[start : start + _PART] for start in at})
        part = max(sorted(parts), key=lambda part: parts[part])
        members = tuple(sorted(hint for hint in left if part in hint))
        groups.append((part, members))
        left.difference_update(members)
    return _Hints(places, marks, groups)


class LinePrefilter:
    """Remembers templates; memory is bounded by their number and length."""

    def __init__(self) -> None:
        self._known: dict[str, LineMatches] = {}

    def looks(self, batch: Sequence[Line]) -> list[LineMatches]:
        """For each line of a batch, what to look for."""
        templates = [line.text.translate(_NO_DIGITS) for line in batch]
        new = {template for template in templates if template not in self._known}
        fresh: dict[str, LineMatches] = {}
        if new:
            text = "\n".join(new)
            groups = (hints for part, hints in _hints().groups if part in text)
            present = [hint for hints in groups for hint in hints if hint in text]
            fresh = {template: _look(template, present) for template in new}
        looks = [fresh[template] if template in fresh else self._known[template] for template in templates]
        if len(self._known) + len(fresh) > MAX_TEMPLATES:
            self._known.clear()
        short = {template: look for template, look in fresh.items() if len(template) <= MAX_TEMPLATE_LENGTH}
        self._known.update(short)
        return looks


def _look(template: str, present: Sequence[str]) -> LineMatches:
    found = {hint for hint in present if hint in template}
    if not found:
        return NOTHING
    known = _hints()
    places = {place for hint in found for place in known.places.get(hint, ())}
    marks = frozenset(mark for mark, hints in known.marks.items() if not found.isdisjoint(hints))
    return LineMatches(tuple(FAMILIES[place] for place in sorted(places)), marks)
