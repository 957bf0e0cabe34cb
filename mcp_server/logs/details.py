"""Which lines of a log are worth reading, and facts on lines that are no errors themselves.

Decides what is worth looking for on a line, quickly enough for logs of 100 MB.

Most lines of a long log differ from earlier ones in their numbers only. A line without its digits is its
template; what can be found on a template is worked out once, for many new templates at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from mcp_server.logs.facts import GeneratedLocation
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.logs.text import Line, bound
from mcp_server.logs.traceback import is_user_file

MAX_LOCATIONS = 20

_FOLLOWING: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "Exception raised from ",
        re.compile(
            r"Exception raised from (?:(?P<kernel>cpp_\w+)|(?P<raised_in>.+?)) "
            r"at (?P<raised_file>\S+):(?P<raised_line>\d+)"
        ),
    ),
    ("Error in op: ", re.compile(r"Error in op: (?P<op>\S+)")),
    ("Mismatched elements: ", re.compile(r"Mismatched elements: (?P<mismatched>\d+) / (?P<elements>\d+)")),
    (
        "Greatest absolute",
        re.compile(r"Greatest absolute difference: (?P<difference>\S+) at index (?P<at>\([\d, ]*\))"),
    ),
    (
        " -D ",
        re.compile(r"^(?P<compiler>\S*(?:g\+\+|gcc|clang)\S*)(?: -x (?P<precompiled>c\+\+-header))? .*-D "),
    ),
    ("Triton compilation failed", re.compile(r"Triton compilation failed: (?P<kernel>\w+)")),
    ("def ", re.compile(r"^def (?P<function>\w+)\(")),
    ("Loop-carried", re.compile(r"(?P<reason>Loop-carried variable .+)")),
    ("Error(", re.compile(r"^(?P<reason>\w+Error\(.+\))$")),
    ("Kernel Name", re.compile(r"Kernel Name: (?P<kernel>\w+)")),
    # members of an archive, as the loader lists them: of an exported program, of a file of tensors, another
    # package, and of a compiled model
    ("/models/", re.compile(r"^(?P<archive>[^/\s]+)/models/\w+\.json$")),
    ("/data.pkl", re.compile(r"^(?P<saved>[^/\s]+)/data\.pkl$")),
    (".pt2", re.compile(r"^(?P<wrapped>[^/\s:][^\s:]*\.pt2)$")),
    ("/data/aotinductor/", re.compile(r"^[^/\s]+/data/aotinductor/(?P<holds>[^/]+)/")),
    # a frame of C++, of a call of a package that the program makes without torch's Python class
    ("AOTInductorModel", re.compile(r"(?P<inside>AOTInductorModel\w*(?:::run\w*|Run)\b)")),
    # a frame of C++ that tells what a program that crashed was doing; stacks are printed innermost first
    (
        "::",
        re.compile(
            r"(?P<native>AOTInductorModelContainer::AOTInductorModelContainer\b|"
            r"AOTIModel(?:ContainerRunner|PackageLoader)\w*::AOTIModel(?:ContainerRunner|PackageLoader)|"
            r"::(?:update_(?:inactive_)?constant_buffer|load_constants|swap_constant_buffer)\w*\(|"
            r"ProxyExecutor::call_function)"
        ),
    ),
    ("aoti_torch_proxy", re.compile(r"(?P<native>aoti_torch_proxy_executor_call_function)")),
    # a frame, as c10 prints it, of the program itself: not of a library, nor of Python
    ("frame #", re.compile(r"frame #\d+: .* in (?P<host>(?!\S*\.so)(?!\S*python)[^()\s]{1,300})\)\s*$")),
    ("what():", re.compile(r"what\(\):\s+(?P<what>.+)")),
)
_LOCATION = re.compile(
    r"(?<![^\s\"':,(])(?P<file>[^\s\"':,(]+\.(?:wrapper|kernel)\.cpp)(?::|, line )(?P<line>\d+)"
)
_VERSIONS = (
    ("torch", "orch", re.compile(r"\b(?:[Pp]y)?[Tt]orch(?: version)?[\"' :=v]+(\d+\.\d+\.\d+(?:\+\w+)?)")),
    ("triton", "riton", re.compile(r"\b[Tt]riton(?: version)?[\"' :=v]+(\d+\.\d+\.\d+)")),
    ("cuda", "CUDA", re.compile(r"CUDA (?:Version|version|used to build PyTorch)[ :=]+(\d+\.\d+)")),
    ("python", "/lib/python", re.compile(r"/lib/python(\d+\.\d+)/")),
)
# What pybind11 adds to the text of an exception that crossed C++: its Python frames, innermost first.
_PYTHON_FRAME = re.compile(r"^\s+(?P<file>\S+\.py)\((?P<line>\d+)\): (?P<function>\S+)$")
# Frames through which torch calls a Python operator (torch 2.8-2.15).
OPERATOR_FILE = re.compile(r"[/\\]torch[/\\]_?library[/\\.]")
HINTS = (*(hint for hint, _ in _FOLLOWING), *(hint for _, hint, _ in _VERSIONS), ".cpp", ".py(")


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
        if ".cpp" in text:
            self._read_location(text)
        for name, hint, pattern in _VERSIONS:
            if name not in self.versions and hint in text and (found := pattern.search(text)):
                self.versions[name] = found[1]
        if ".py(" in text and (frame := _PYTHON_FRAME.match(text)):
            return _frame_fields(frame, line.number)
        for hint, pattern in _FOLLOWING:
            if hint in text and (found := pattern.search(text)):
                return {name: bound(value, 300) for name, value in found.groupdict().items() if value}
        return {}

    def _read_location(self, text: str) -> None:
        found = _LOCATION.search(text)
        if found and len(self._locations) < MAX_LOCATIONS:
            self._locations[GeneratedLocation(found["file"], int(found["line"]))] = None


def _frame_fields(frame: re.Match[str], number: int) -> dict[str, str]:
    """The program's innermost frame, and the first through which an operator is called, with their lines."""
    if OPERATOR_FILE.search(frame["file"]):
        return {"operator_call": str(number)}
    if not is_user_file(frame["file"]):
        return {}
    found = {"at_file": frame["file"], "at_line": frame["line"], "at_function": frame["function"]}
    return {**found, "at": str(number)}


MAX_TEMPLATES = 20_000
MAX_TEMPLATE_LENGTH = 500

_PART = 4
_NO_DIGITS = str.maketrans("", "", "0123456789")
_SUSPICIOUS = ("rror", "ERROR", "ailed", "ailure", "FAIL", "xception", "bort", "atal", "FATAL", "panic")
_CUT = ("truncated", "omitted", "skipped", "elided")
_TRACEBACK = ("(most recent call ", "exception occurred:", "following exception:", '", line ')


class LineMatches(NamedTuple):
    """What a line may hold."""

    families: tuple[Family, ...] = ()
    details: bool = False
    launches: bool = False
    traceback: bool = False
    suspicious: bool = False
    cut: bool = False


NOTHING = LineMatches()


def _templates(hints: Sequence[str]) -> frozenset[str]:
    return frozenset(hint.translate(_NO_DIGITS) for hint in hints)


def _places() -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for place, family in enumerate(FAMILIES):
        for hint in _templates(family.hints):
            places.setdefault(hint, []).append(place)
    return places


_PLACES = _places()
_DETAILS, _LAUNCHES = _templates(HINTS), _templates(("_launch: ",))
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


class LinePrefilter:
    """Remembers templates; memory is bounded by their number and length."""

    def __init__(self) -> None:
        self._known: dict[str, LineMatches] = {}

    def looks(self, batch: Sequence[Line]) -> list[LineMatches]:
        """For each line of a batch, what to look for."""
        templates = [line.text.translate(_NO_DIGITS) for line in batch]
        known = self._known
        new = {template for template in templates if template not in known}
        fresh = self._judge(new) if new else {}
        looks = [fresh[template] if template in fresh else known[template] for template in templates]
        self._remember(fresh)
        return looks

    def _judge(self, templates: set[str]) -> dict[str, LineMatches]:
        text = "\n".join(templates)
        present = [hint for part, hints in _GROUPS if part in text for hint in hints if hint in text]
        return {template: _look(template, present) for template in templates}

    def _remember(self, fresh: dict[str, LineMatches]) -> None:
        if len(self._known) + len(fresh) > MAX_TEMPLATES:
            self._known.clear()
        for template, look in fresh.items():
            if len(template) <= MAX_TEMPLATE_LENGTH:
                self._known[template] = look


def _look(template: str, present: Sequence[str]) -> LineMatches:
    hints = {hint for hint in present if hint in template}
    if not hints:
        return NOTHING
    return LineMatches(
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
