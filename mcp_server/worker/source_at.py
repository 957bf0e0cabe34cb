"""The program's own source around the line at which a frame stands, and what its names are there."""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any, Optional


def innermost(frame: FrameType, line: int, kinds: Any = ast.stmt) -> Optional[ast.stmt]:
    """The last statement of these kinds to begin around that line; None where the source is not to be had."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    around = [node for node in ast.walk(tree) if isinstance(node, kinds) and _holds(node, line)]
    return max(around, key=lambda node: (node.lineno, node.col_offset), default=None)


def function_at(frame: FrameType, line: int) -> Optional[ast.stmt]:
    """The function that stands around that line; None at the top level of a module."""
    return innermost(frame, line, (ast.FunctionDef, ast.AsyncFunctionDef))


def variable(name: str, frame: FrameType) -> Any:
    """Of the function, else of its module; None where there is none."""
    return frame.f_locals.get(name, frame.f_globals.get(name))


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
