"""What a check of the program's own compared, where more likeness would have let it pass."""

from __future__ import annotations

import ast
from types import FrameType
from typing import Iterator

from .source_at import function_at, innermost

GREATER, LESS = (ast.Gt, ast.GtE), (ast.Lt, ast.LtE)


def compared(places: "list[tuple[FrameType, int]]") -> list[str]:
    """Variables, and attributes of them, from which the check at the innermost of these lines was computed.

    None of them for a check that fails over too small a number, as over a score that did not rise.
    """
    for frame, line in places:
        check = innermost(frame, line, (ast.If, ast.Assert))
        if isinstance(check, (ast.If, ast.Assert)):
            function = function_at(frame, line)
            return sorted(_behind(check.test, function)) if _wants_likeness(check) else []
    return []


def _wants_likeness(check: "ast.If | ast.Assert") -> bool:
    """Whether it fails where a number is too large, or where something is not equal or close."""
    wrong = LESS if isinstance(check, ast.If) else GREATER
    tests = [each for each in ast.walk(check.test) if isinstance(each, ast.Compare)]
    return not any(isinstance(sign, wrong) for test in tests for sign in test.ops)


def _behind(test: ast.AST, function: "ast.stmt | None") -> set[str]:
    """Names in the test, and in what the function assigned to them."""
    assigned: dict[str, list[ast.AST]] = {}
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in _names(target):
                    assigned.setdefault(name, []).append(node.value)
    found, left = set(), list(_names(test))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for value in assigned.get(name, ()) for each in _names(value)]
    return found


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            yield "{}.{}".format(each.value.id, each.attr)
