"""The bounds checks that Inductor generates around computed indices, and the conditions that they print."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ASSERT = re.compile(
    r'(?:tl\.device_assert|AOTI_TORCH_CHECK|TORCH_CHECK)\(.*"index out of bounds: (?P<text>[^"]*)"'
)
_CONDITION = re.compile(r"(?:(?P<lower>-?[^<]+?) <= )?(?P<variable>\w+)(?: < (?P<upper>.+))?$")
_BROADCAST = re.compile(r"tl\.broadcast_to\((\w+), \[[^\]]*\]\)")


@dataclass(frozen=True, slots=True)
class IndexAssert:
    """One generated bounds check: 1-based line in the kernel's source, and the condition as printed."""

    line: int
    text: str
    variable: str
    lower: str | None
    upper: str | None


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
