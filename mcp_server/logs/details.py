"""Decides which lines of a log are worth reading, and reads facts from lines that are not errors.

Most lines of a long log differ from earlier ones only in their numbers. A line without its digits is its
template. Each template is searched once per batch of lines, which makes logs of 100 MB quick to read.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from mcp_server.logs.families import FAMILIES, Family
from mcp_server.logs.text import Line, bound, is_user_file

if sys.version_info >= (3, 11):
    import re._constants as sre
    import re._parser as sre_parse
else:
    import sre_constants as sre
    import sre_parse

MAX_LOCATIONS = 20
_DIGITS = frozenset(b"0123456789")  # templates have no digits
MAX_ALTERNATIVES = 4  # texts for one part of a pattern, such as "Error" and "error" for "[Ee]rror"

# Frames through which torch calls a Python operator (torch 2.8-2.15).
OPERATOR_FILE = re.compile(r"[/\\]torch[/\\]_?library[/\\.]")


def literals(pattern: str) -> frozenset[str]:
    """Texts without digits, one of which is in every match of the pattern, if any."""
    return frozenset(_required(sre_parse.parse(pattern)))


def _required(parsed: Any) -> set[str]:
    """A set of texts, at least one of which a match must contain: of several sets the best filter."""
    found: list[set[str]] = []
    run = {""}  # the alternatives for the text read so far

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
            elif kind not in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):  # the others match no text
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


# Lines that add facts to the error before them. The groups name the fields.
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
    # archive members as the loader lists them: those of an exported program, a file of tensors, another
    # package, and a compiled model
    r"^(?P<archive>[^/\s]+)/models/\w+\.json$",
    r"^(?P<saved>[^/\s]+)/data\.pkl$",
    r"^(?P<wrapped>[^/\s:][^\s:]*\.pt2)$",
    r"^[^/\s]+/data/aotinductor/(?P<holds>[^/]+)/",
    # a C++ frame of a package call that the program makes without torch's Python class
    r"(?P<inside>AOTInductorModel\w*(?:::run\w*|Run)\b)",
    # a C++ frame that shows what a crashed program was doing; stacks are printed innermost first
    r"(?P<native>AOTInductorModelContainer::AOTInductorModelContainer\b|"
    r"AOTIModel(?:ContainerRunner|PackageLoader)\w*::AOTIModel(?:ContainerRunner|PackageLoader)|"
    r"::(?:update_(?:inactive_)?constant_buffer|load_constants|swap_constant_buffer)\w*\(|"
    r"ProxyExecutor::call_function)",
    r"(?P<native>aoti_torch_proxy_executor_call_function)",
    # a c10 frame of the program itself, not of a library or of Python
    r"frame #\d+: .* in (?P<host>(?!\S*\.so)(?!\S*python)[^()\s]{1,300})\)\s*$",
    r"what\(\):\s+(?P<what>.+)",
)
# The component whose version the first group matches.
_VERSIONS = {
    re.compile(r"\b(?:[Pp]y)?[Tt]orch(?: version)?[\"' :=v]+(\d+\.\d+\.\d+(?:\+\w+)?)"): "torch",
    re.compile(r"\b[Tt]riton(?: version)?[\"' :=v]+(\d+\.\d+\.\d+)"): "triton",
    re.compile(r"CUDA (?:Version|version|used to build PyTorch)[ :=]+(\d+\.\d+)"): "cuda",
    re.compile(r"/lib/python(\d+\.\d+)/"): "python",
}
_LOCATION = re.compile(
    r"(?<![^\s\"':,(])(?P<file>[^\s\"':,(]+(?:\.wrapper\.cpp|\.kernel\.cpp))(?::|, line )(?P<line>\d+)"
)
# A frame of the Python stack, innermost first, that pybind11 adds to an exception that crossed C++.
_PYTHON_FRAME = re.compile(r"^\s+(?P<file>\S+\.py)\((?P<line>\d+)\): (?P<function>\S+)$")
DETAILS = (_LOCATION, *_VERSIONS, _PYTHON_FRAME, *map(re.compile, _ADDED_BY_LINES))


class Details:
    """Collects from a log the versions and the places in generated code, line by line with `feed`."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.locations: dict[str, None] = {}  # locations that the log names, in log order

    def feed(self, line: Line, patterns: Sequence[re.Pattern[str]]) -> dict[str, str]:
        """Search a line for `patterns`. Return the fields that belong to the error before the line."""
        for pattern in patterns:
            found = pattern.search(line.text)
            if found is None:
                continue
            if pattern is _LOCATION:
                if len(self.locations) < MAX_LOCATIONS:
                    self.locations[f"{found['file']}:{int(found['line'])}"] = None
            elif pattern in _VERSIONS:
                self.versions.setdefault(_VERSIONS[pattern], found[1])
            elif pattern is _PYTHON_FRAME:
                # The first value of a field stays: so these are the user's innermost frame and operator call.
                if OPERATOR_FILE.search(found["file"]):
                    return {"operator_call": str(line.number)}
                if not is_user_file(found["file"]):
                    return {}
                frame = {f"at_{name}": value for name, value in found.groupdict().items()}
                return {**frame, "at": str(line.number)}
            else:
                return {name: bound(value, 300) for name, value in found.groupdict().items() if value}
        return {}


Mark = Literal["launches", "traceback", "suspicious", "cut"]

_Target = Family | re.Pattern[str] | Mark  # what a line may contain if it has a hint text

_MARKS: dict[_Target, tuple[str, ...]] = {
    "launches": ("_launch: ",),
    "traceback": ("(most recent call ", "exception occurred:", "following exception:", '", line '),
    "suspicious": (
        *("rror", "ERROR", "ailed", "ailure", "FAIL", "xception", "bort", "atal", "FATAL", "panic"),
    ),
    "cut": ("truncated", "omitted", "skipped", "elided"),
}
_NO_DIGITS = str.maketrans("", "", "0123456789")


class LineMatches(NamedTuple):
    """What a line may contain: errors of these families, details for these patterns, and other marks."""

    families: tuple[Family, ...] = ()
    details: tuple[re.Pattern[str], ...] = ()
    marks: frozenset[Mark] = frozenset()


NOTHING = LineMatches()


@cache
def _hints() -> dict[str, list[_Target]]:
    """Map hint texts to families, patterns and marks. Every line that matches one has a hint of it."""
    texts: dict[_Target, Iterable[str]] = {
        family: frozenset().union(*(literals(pattern.pattern) for pattern in family.patterns))
        for family in FAMILIES
    }
    texts |= {pattern: literals(pattern.pattern) for pattern in DETAILS}
    texts |= _MARKS
    hints: dict[str, list[_Target]] = {}
    for target, of_target in texts.items():
        for hint in of_target:
            hints.setdefault(hint, []).append(target)
    return hints


def look(batch: Sequence[Line]) -> list[LineMatches]:
    """Return for each line of a batch what it may contain."""
    templates = [line.text.translate(_NO_DIGITS) for line in batch]
    text = "\n".join(set(templates))
    present = [(hint, targets) for hint, targets in _hints().items() if hint in text]
    found = dict.fromkeys(templates, NOTHING)
    for template in found if present else ():
        announced = {target for hint, targets in present if hint in template for target in targets}
        if announced:
            found[template] = LineMatches(
                tuple(family for family in FAMILIES if family in announced),
                tuple(pattern for pattern in DETAILS if pattern in announced),
                frozenset(target for target in announced if isinstance(target, str)),
            )
    return [found[template] for template in templates]
