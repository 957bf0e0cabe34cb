"""The operators that a script registers, taken out of it without running its program.

A script without `if __name__ == "__main__"` runs when it is imported. What registers its operators are some
of its statements: calls and decorators of `torch.library`, libraries that are loaded, imports, and what these
read. Where one that registers needs another that would run more than that, none is taken.
"""

from __future__ import annotations

import ast
import dis
import sys
from dataclasses import dataclass
from importlib.abc import InspectLoader
from types import CodeType
from typing import Any, Iterator, Optional, Sequence

from .statements import Names, called, why_not

# Modules of the standard library register nothing; nor does torch, which is there already.
_PLAIN = frozenset(getattr(sys, "stdlib_module_names", ())) | {"torch", "__future__"}
_PLACES = ("sys.path", "os.environ")  # what imports, and the loading of libraries, depend on


@dataclass(frozen=True)
class Taken:
    """`statements` register, or are needed for that; `lines` are of the former; `refused` is why not."""

    statements: tuple[ast.stmt, ...] = ()
    lines: tuple[int, ...] = ()
    refused: str = ""

    def text(self) -> str:
        """As a module of its own."""
        return "\n\n".join(ast.unparse(node) for node in self.statements) + "\n"

    def code(self, path: str) -> CodeType:
        """It keeps file and lines: Triton reads the source of a kernel there, and errors name them."""
        return code_of(self.statements, path)


@dataclass(frozen=True)
class _Statement:
    """One of the top level: what it binds, what it or its functions read, and whose value it changes."""

    node: ast.stmt
    binds: frozenset[str]
    reads: frozenset[str]
    changes: str


class _Script:
    """The statements of a script's top level, by number."""

    def __init__(self, source: bytes, path: str) -> None:
        tree = ast.parse(source, path)
        self.names = Names(tree)
        self.statements = [self._statement(node, path) for node in tree.body]

    def _statement(self, node: ast.stmt, path: str) -> _Statement:
        code = code_of([node], path)
        binds = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_NAME", "STORE_GLOBAL")}
        changes = _changed(node)
        known = "" if changes in self.names.imported else changes  # `torch.manual_seed(0)` changes no name
        return _Statement(node, frozenset(binds), frozenset(_reads(code)), known)

    def registering(self) -> list[int]:
        names = self.names
        return [
            n
            for n, each in enumerate(self.statements)
            if any(names.registers(one) for one in called(each.node))
        ]

    def helping(self) -> list[int]:
        """Imports that may register operators, and changes of where modules and libraries are looked for."""
        return [n for n, e in enumerate(self.statements) if e.changes in _PLACES or _brings_operators(e.node)]

    def needed(self, number: int) -> set[int]:
        """A statement and, again and again, what binds or changes the names that these read."""
        wanted: set[int] = set()
        left = {number}
        while left:
            wanted |= left
            reads = {name for n in left for name in self.statements[n].reads}
            left = {n for n, e in enumerate(self.statements) if e.binds & reads or e.changes in reads}
            left -= wanted
        return wanted

    def why_not(self, numbers: set[int]) -> str:
        for n in sorted(numbers):
            node = self.statements[n].node
            reason = why_not(node, self.names)
            if reason:
                return "line {} would have to be run, and {}".format(node.lineno, reason)
        return ""


def registrations(source: bytes, path: str) -> Taken:
    """The statements of a script that register operators, with those that they need, in their order."""
    try:
        script = _Script(source, path)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Taken(refused="it cannot be read: {}".format(error))
    roots = script.registering()
    wanted: set[int] = set().union(*(script.needed(n) for n in roots))
    refused = script.why_not(wanted)
    if refused:
        return Taken(refused=refused)
    for helping in map(script.needed, script.helping()):
        wanted |= helping if not script.why_not(helping) else set()
    taken = tuple(script.statements[n].node for n in sorted(wanted))
    return Taken(taken, tuple(script.statements[n].node.lineno for n in roots))


def code_of(statements: "Sequence[ast.stmt]", path: str) -> CodeType:
    """What a module of these statements runs when it is imported."""
    tree: Any = ast.Module(list(statements), [])  # taken as well as text, since Python 3.4
    return InspectLoader.source_to_code(tree, path)


def _reads(code: CodeType) -> Iterator[str]:
    """Names of the module that this code, or a function in it, looks up."""
    for each in dis.get_instructions(code):
        if each.opname.startswith("LOAD_") and each.opname.endswith(("GLOBAL", "GLOBALS", "NAME")):
            yield str(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


def _changed(node: ast.stmt) -> str:
    """The name behind `name[i] = …`, `name.part = …` or `name.method(…)` that stands alone, or a place."""
    target: Optional[ast.expr] = None
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        target = node.value.func
    inside = isinstance(target, (ast.Subscript, ast.Attribute))
    while isinstance(target, (ast.Subscript, ast.Attribute)) and ast.unparse(target) not in _PLACES:
        target = target.value
    return ast.unparse(target) if inside and target is not None else ""


def _brings_operators(node: ast.stmt) -> bool:
    """Whether it imports a module of the program, or of a package, which may register operators."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] not in _PLAIN for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in _PLAIN
