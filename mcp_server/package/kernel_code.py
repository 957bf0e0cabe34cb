"""Reads the text of kernel bodies: index asserts, and the definitions that a value is a copy of.

Triton and C++ bodies are straight lines of assignments to `tmpN` (torch/_inductor/codegen/common.py,
triton.py, cpp.py). Each loop nest of a C++ kernel reuses the names, so the nearest definition above counts.
What a value is computed from is read in `package/terms`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ASSERT = re.compile(
    r'(?:tl\.device_assert|AOTI_TORCH_CHECK|TORCH_CHECK)\(.*"index out of bounds: (?P<text>[^"]*)"'
)
_CONDITION = re.compile(r"(?:(?P<lower>-?[^<]+?) <= )?(?P<variable>\w+)(?: < (?P<upper>.+))?$")
_BROADCAST = re.compile(r"tl\.broadcast_to\((\w+), \[[^\]]*\]\)")
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


def read_condition(text: str) -> tuple[str | None, str, str | None] | None:
    """(lower bound, variable, upper bound) of `0 <= tmp6 < ks0`; None for other text."""
    match = _CONDITION.fullmatch(text.strip())
    if not match or (match["lower"] is None and match["upper"] is None):
        return None
    return match["lower"], match["variable"], match["upper"]


def without_broadcast(text: str) -> str:
    """Remove `tl.broadcast_to(tmp4, [XBLOCK])` around the variable of a condition (Triton, torch 2.11)."""
    return _BROADCAST.sub(r"\1", text)


def find_asserts(source: str) -> tuple[IndexAssert, ...]:
    """The index asserts of a kernel, in order."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        match = _ASSERT.search(line)
        text = without_broadcast(match["text"]) if match else ""
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
            value = text.partition("=")[2].strip().rstrip(";")
            following = [line.strip() for line in lines[number : number + _MULTILINE]] if not value else []
            ends = [end for end, line in enumerate(following, 1) if line in (";", "();")]
            return Definition(number, name, value or " ".join(following[: ends[0] if ends else None]))
    return None
