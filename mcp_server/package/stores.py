"""Which parameters a Triton kernel stores to, told from its source text."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

_STORE = re.compile(r"tl\.(?P<call>store|atomic_\w+)\(")
_ASSIGNED = re.compile(r"^\s*(\w+)\s*(?:\+?=)\s*(.+)$", re.M)
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Stores:
    """`plain` and `atomic` targets; `data_index` those stored at an index computed from data.

    `unresolved` is true when the target of some store could not be told.
    """

    plain: frozenset[str]
    atomic: frozenset[str]
    data_index: frozenset[str]
    unresolved: bool


def find_stores(source: str, tensors: Collection[str]) -> Stores:
    """The stores of a kernel body to any of its tensor parameters.

    A pointer is followed through assignments (`p = out + offsets`); what stands inside `tl.load(...)` is an
    index, not a pointer.
    """
    assigned: dict[str, list[str]] | None = None
    plain: set[str] = set()
    atomic: set[str] = set()
    data_index: set[str] = set()
    unresolved = False
    for match in _STORE.finditer(source):
        pointer = _first_argument(source, match.end())
        first = _NAME.match(pointer)
        if first and first.group() in tensors:
            targets = {first.group()}
        else:
            assigned = _assignments(source) if assigned is None else assigned
            targets = _bases(pointer, frozenset(tensors), assigned)
        unresolved |= not targets
        (plain if match["call"] == "store" else atomic).update(targets)
        if "tmp" in pointer:
            data_index.update(targets)
    return Stores(frozenset(plain), frozenset(atomic), frozenset(data_index), unresolved)


def _assignments(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for match in _ASSIGNED.finditer(source):
        found.setdefault(match[1], []).append(match[2])
    return found


def _first_argument(source: str, start: int) -> str:
    """The text up to the first comma outside brackets."""
    depth = 0
    for index in range(start, min(len(source), start + 2000)):
        letter = source[index]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0 or (letter == "," and depth == 0):
            return source[start:index]
    return source[start : start + 2000]


def _bases(pointer: str, tensors: frozenset[str], assigned: dict[str, list[str]]) -> set[str]:
    """The parameters that a pointer expression may start from."""
    found: set[str] = set()
    seen: set[str] = set()
    queue = [pointer]
    while queue and len(seen) < _DEPTH * 10:
        for name in _NAME.findall(_without_loads(queue.pop())):
            if name in tensors:
                found.add(name)
            elif name not in seen:
                seen.add(name)
                queue += assigned.get(name, [])
    return found


def _without_loads(expression: str) -> str:
    """The expression with every `tl.load(...)` cut out."""
    start = expression.find("tl.load(")
    if start < 0:
        return expression
    depth = 0
    for index in range(start, len(expression)):
        depth += (expression[index] == "(") - (expression[index] == ")")
        if depth == 0 and expression[index] == ")":
            return expression[:start] + _without_loads(expression[index + 1 :])
    return expression[:start]
