"""The lines of methods and functions that a recorded line of the model calls, read from the source.

`torch.export` writes down the frames that are named `forward` (torch 2.13), so that the line of an operator
in a helper is told as the one that calls the helper.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcp_server.model import ModelLocation

_DEEPEST = 6
_LONGEST = 1 << 20  # bytes of a source file
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Subscript: "index",
}
_NOT_DATA = re.compile(r"\.(?:shape|size\(\)|sizes|stride\(\))$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Source:
    """A parsed file."""

    lines: list[str]
    tree: ast.Module

    def function_at(self, line: int) -> tuple[Function, ast.ClassDef | None] | None:
        """The innermost function around a line, and the class that it is a method of."""
        found: tuple[Function, ast.ClassDef | None] | None = None
        for node, owner in _functions(self.tree, None):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                found = node, owner
        return found

    def called(self, call: ast.Call, owner: ast.ClassDef | None) -> Function | None:
        """The method or function of this file that a call names; LookupError for one of another file."""
        if isinstance(call.func, ast.Name):
            return self._function(call.func.id)
        own = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        if own and call.func.value.id == "self" and owner is not None:  # type: ignore[attr-defined]
            return _named(owner.body, call.func.attr)  # type: ignore[attr-defined]
        return None

    def _function(self, name: str) -> Function | None:
        found = _named(self.tree.body, name)
        if found is None and not hasattr(builtins, name):
            raise LookupError(name)
        return found


def lines_doing(at: ModelLocation, operators: re.Pattern[str]) -> list[ModelLocation] | None:
    """The lines that do one of `operators`: a recorded line, or what it calls. None where that is open.

    It is where the file is another one by now, and where the line calls what is not in it.
    """
    source = _read(at)
    place = source.function_at(at.line) if source is not None else None
    if source is None or place is None:
        return None
    statements = [node for node in ast.walk(place[0]) if isinstance(node, ast.stmt) and node is not place[0]]
    around = [node for node in statements if node.lineno <= at.line <= (node.end_lineno or node.lineno)]
    try:
        found = sorted(set(_lines(source, around[-1:], place[1], operators, _DEEPEST)))
    except LookupError:
        return None
    return [ModelLocation(file=at.file, line=n, code=source.lines[n - 1].strip()) for n in found]


def _read(at: ModelLocation) -> _Source | None:
    """The file as it was when the line was recorded, as far as that line tells."""
    path = Path(at.file)
    try:
        if path.stat().st_size > _LONGEST:
            return None
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        same = at.line <= len(lines) and lines[at.line - 1].strip() == at.code.strip() != ""
        return _Source(lines, ast.parse(text)) if same else None
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _lines(
    source: _Source,
    statements: list[ast.stmt],
    owner: ast.ClassDef | None,
    operators: re.Pattern[str],
    depth: int,
) -> Iterator[int]:
    """Lines with one of the operators, in these statements and in what they call."""
    if not depth:
        raise LookupError("calls go too deep")
    for node in (node for statement in statements for node in ast.walk(statement)):
        function = source.called(node, owner) if isinstance(node, ast.Call) else None
        if function is not None and function.name != "forward":
            yield from _lines(source, list(function.body), _owner(source, function), operators, depth - 1)
        elif operators.fullmatch(_operator(node)):
            yield getattr(node, "lineno", 0)


def _owner(source: _Source, function: Function) -> ast.ClassDef | None:
    return next((owner for node, owner in _functions(source.tree, None) if node is function), None)


def _operator(node: ast.AST) -> str:
    """The name of the operator that a piece of source does; empty for what is none."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op), "")
    if isinstance(node, ast.Subscript):
        return "" if _NOT_DATA.search(ast.unparse(node.value)) or _by_numbers(node.slice) else "index"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.rstrip("_")
    return ""


def _by_numbers(index: ast.expr) -> bool:
    """Whether an index is made of numbers and slices alone: no data can be out of its bound."""
    return not any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for node in ast.walk(index))


def _functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function below a node with its class, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, owner
        yield from _functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _named(body: list[ast.stmt], name: str) -> Function | None:
    return next((node for node in body if isinstance(node, Function) and node.name == name), None)
