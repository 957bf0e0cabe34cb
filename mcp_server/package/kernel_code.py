"""Reads a kernel body: index asserts, and the definitions and loads that a value comes from.

Triton and C++ bodies are straight lines of assignments to `tmpN` (torch/_inductor/codegen/common.py,
triton.py, cpp.py). Each loop nest of a C++ kernel reuses the names, so the nearest definition above counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_ASSERT = re.compile(
    r'(?:tl\.device_assert|AOTI_TORCH_CHECK|TORCH_CHECK)\(.*"index out of bounds: (?P<text>[^"]*)"'
)
_CONDITION = re.compile(r"(?:(?P<lower>-?[^<]+?) <= )?(?P<variable>\w+)(?: < (?P<upper>.+))?$")
_BROADCAST = re.compile(r"tl\.broadcast_to\((\w+), \[[^\]]*\]\)")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WHERE = re.compile(r"tl\.where\(|\w+ \? \w+ : \w+|::blendv\(")
_NEGATIVE = re.compile(r"\w+ < (?:0|\w+)\b")
_COPY = re.compile(
    r"^(?:c10::convert<int64_t>\()?(\w+)\)?$|\] = static_cast<int64_t>\((\w+)\[|(\w+)\.store\(tmpbuf\."
)
_INDIRECT = re.compile(r"\b(?:in|out|in_out)_ptr\d+(?:\[[^\]\n]*| \+ [^,;\n]*)\btmp\d+")
_MULTILINE = 40


@dataclass(frozen=True, slots=True)
class IndexAssert:
    """One generated bounds check: 1-based line in the kernel's source, and the condition as printed."""

    line: int
    text: str
    variable: str
    lower: str | None
    upper: str | None


@dataclass(frozen=True, slots=True)
class Definition:
    """`name = value` at a 1-based line of the kernel's source."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Load:
    """A read of a parameter: pointer, index expression, and the 1-based line."""

    parameter: str
    index: str
    line: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The origin of a value: definitions, nearest first, then the loads and scalar parameters they end in.

    `wraps`: negative values are first increased by the bound, as in Python indexing.
    """

    definitions: tuple[Definition, ...]
    loads: tuple[Load, ...]
    scalars: tuple[str, ...]
    wraps: bool


def read_condition(text: str) -> tuple[str | None, str, str | None] | None:
    """(lower bound, variable, upper bound) of `0 <= tmp6 < ks0`; None for other text."""
    match = _CONDITION.fullmatch(text.strip())
    if not match or (match["lower"] is None and match["upper"] is None):
        return None
    return match["lower"], match["variable"], match["upper"]


def unwrapped(text: str) -> str:
    """Remove `tl.broadcast_to(tmp4, [XBLOCK])` around the variable of a condition (Triton, torch 2.11)."""
    return _BROADCAST.sub(r"\1", text)


def find_asserts(source: str) -> tuple[IndexAssert, ...]:
    """The index asserts of a kernel, in order."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        match = _ASSERT.search(line)
        text = unwrapped(match["text"]) if match else ""
        condition = read_condition(text)
        if condition:
            lower, variable, upper = condition
            found.append(IndexAssert(number, text, variable, lower, upper))
    return tuple(found)


def indexes_unchecked(source: str) -> bool:
    """Whether a C++ kernel uses computed indices without any index check.

    This is code compiled with `assert_indirect_indexing` off.
    """
    kernels = source.split('extern "C"')[1:]
    return any(_INDIRECT.search(kernel) and "index out of bounds: " not in kernel for kernel in kernels)


def trace_value(
    source: str, variable: str, line: int, tensors: Collection[str], scalars: Collection[str]
) -> Trace:
    """Follow the value of `variable` at `line` back to loads of `tensors` and to `scalars`."""
    lines = source.split("\n")
    queue = [(variable, line)]
    definitions: dict[tuple[str, int], Definition] = {}
    loads: dict[Load, None] = {}
    used: dict[str, None] = {}
    while queue:
        name, below = queue.pop(0)
        if name in scalars:
            used[name] = None
        definition = definition_above(lines, name, below)
        if definition is None or (name, definition.line) in definitions:
            continue
        definitions[name, definition.line] = definition
        found = loads_of(definition, tensors)
        loads.update(dict.fromkeys(found))
        queue += [] if found else [(n, definition.line) for n in _NAME.findall(definition.value) if n != name]
    chain = tuple(definitions.values())
    return Trace(chain, tuple(loads), tuple(used), _wraps(chain))


def indexed_by(source: str, variable: str, line: int, tensors: Collection[str]) -> tuple[Load, ...]:
    """Accesses below `line` indexed by the checked variable, or by the value that it was copied from."""
    lines = source.split("\n")
    names = {variable, *_copies(lines, variable, line)}
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    found = []
    for number in range(line + 1, min(len(lines), line + _MULTILINE) + 1):
        text = lines[number - 1]
        found += [a for a in _accesses(text, number, tensors) if pattern.search(a.index)]
    return tuple(found)


def accesses_at(source: str, line: int, tensors: Collection[str]) -> tuple[Load, ...]:
    """The accesses to parameters on one line (1-based in the source)."""
    return tuple(_accesses(source.split("\n")[line - 1], line, tensors))


def _copies(lines: list[str], variable: str, line: int) -> list[str]:
    """Names that the variable is a copy of. C++ asserts check a converted or unpacked copy of the index."""
    names: list[str] = []
    definition = definition_above(lines, variable, line)
    while definition is not None and len(names) < _MULTILINE:
        name = copied_name(definition)
        if name is None:
            break
        names.append(name)
        definition = definition_above(lines, name, definition.line)
    return names


def copied_name(definition: Definition) -> str | None:
    """The variable that a definition only copies, converts or unpacks."""
    match = _COPY.search(definition.value)
    name = next((group for group in match.groups() if group), "") if match else ""
    return name if name.isidentifier() else None


def definition_above(lines: list[str], name: str, below: int) -> Definition | None:
    """The nearest assignment to `name` above a line. Its value may span lines (a C++ lambda)."""
    start = re.compile(rf"^\s*(?:[\w:<>, ]+ )?{re.escape(name)}\s*=(?!=)")
    for number in range(min(below, len(lines) + 1) - 1, 0, -1):
        text = lines[number - 1]
        if name in text and start.match(text):
            return Definition(number, name, _value(lines, number))
    return None


def _value(lines: list[str], number: int) -> str:
    text = lines[number - 1]
    value = text.partition("=")[2].strip()
    if value:
        return value.rstrip(";")
    parts = []
    for line in lines[number : number + _MULTILINE]:
        parts.append(line.strip())
        if line.strip() in (";", "();"):
            break
    return " ".join(parts)


def loads_of(definition: Definition, tensors: Collection[str]) -> list[Load]:
    """The accesses to parameters in the value of a definition."""
    return _accesses(definition.value, definition.line, tensors)


def _accesses(text: str, line: int, tensors: Collection[str]) -> list[Load]:
    """`tl.load(p + (i), mask)`, `tl.store(p + (i), …)`, `p[i]`, `loadu(p + i, …)` for parameters p."""
    found = []
    for name in dict.fromkeys(_NAME.findall(text)):
        if name not in tensors:
            continue
        match = re.search(rf"\b{re.escape(name)}\s*(?:\[|\+|,|\))", text)
        if match:
            found.append(Load(name, _index(text, match.end(), text[match.end() - 1]), line))
    return found


def _index(text: str, start: int, opening: str) -> str:
    """The index expression after a pointer: to the closing bracket, or to the comma of the call."""
    if opening == ")":
        return "0"
    depth = 0
    for position in range(start, len(text)):
        letter = text[position]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            return text[start:position].strip()
    return text[start:].strip()


def _wraps(chain: tuple[Definition, ...]) -> bool:
    """Whether the chain selects between a value and the value plus the bound, by sign."""
    selects = any(_WHERE.search(d.value) for d in chain)
    return selects and any(_NEGATIVE.search(d.value) for d in chain)
