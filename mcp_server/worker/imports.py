"""Imports modules that register custom operators, or only their registrations.

A script without `if __name__ == "__main__"` runs when it is imported. To get only its operators, run the
statements that register them (calls and decorators of `torch.library`, loads of libraries), imports, and the
statements that these need. If one of them would run the program itself, run none.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Iterator, Sequence, Union

from .events import OperatorsTaken
from .report import Refused, Report, facts

# What registers an operator, a library of operators, or a class that a package takes (torch 2.8-2.15).
_REGISTERING = (
    "torch.library.",
    "torch._library.",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.utils.cpp_extension.load",
    "torch.export.register_dataclass",
    "torch.utils._pytree.register_",
)
# Functions of these modules that register nothing.
_ASKING = frozenset({"opcheck", "wrap_triton", "capture_triton", "infer_schema", "get_ctx", "get_kernel"})
# Registering methods, besides `register_…`, of `Library` and of the results of `custom_op` and `triton_op`.
_METHODS = frozenset({"define", "impl", "fallback", "_register_fake", "_impl_with_aoti_compile"})
# Calls that do the program's own work: compile, export, start processes or threads, exit.
_RUNNING = (
    *("torch._inductor." + name for name in ("aot", "compile", "package.")),
    *("torch.export." + name for name in ("export", "draft_export", "load", "pt2_archive.")),
    *("torch." + name for name in ("_export.", "_C._aoti.", "multiprocessing.", "distributed.")),
    *("os." + name for name in ("system", "exec", "fork", "spawn", "_exit", "kill")),
    *(
        module + "."
        for module in ("multiprocessing", "subprocess", "concurrent", "resource", "signal", "runpy")
    ),
    "threading.Thread",
    "sys.exit",
)
_ASKS_ARGUMENTS = frozenset({"parse_args", "parse_known_args"})
_RUNNING_BUILTINS = frozenset({"exit", "quit", "input", "exec", "eval", "breakpoint", "__import__"})

_BLOCKS = (ast.If, ast.Try, ast.With, ast.For)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_SIMPLE = (*_ASSIGNMENTS, ast.Expr, ast.Import, ast.ImportFrom, ast.Pass, ast.Raise)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]


def called(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement calls when it runs: decorators count, bodies of functions do not."""
    if isinstance(node, ast.Call):
        yield node.func
    if isinstance(node, _DEFINITIONS):
        yield from node.decorator_list
    if isinstance(node, _FUNCTIONS):
        inner: list[ast.AST] = [*node.decorator_list, node.args]
    else:
        inner = [] if isinstance(node, ast.Lambda) else list(ast.iter_child_nodes(node))
    for each in inner:
        yield from called(each)


class Names:
    """What the names of a script refer to: imports, definitions, and operators or libraries."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}
        self.defined: dict[str, Definition] = {}
        self.operators: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.imported[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    name = "{}.{}".format(node.module or "", alias.name)
                    self.imported[alias.asname or alias.name] = name
        for each in flat(tree.body):
            if isinstance(each, _DEFINITIONS):
                self.defined.setdefault(each.name, each)
            self.operators |= set(self._operators(each))

    def _operators(self, node: ast.stmt) -> Iterator[str]:
        """Yield the names that a registering statement binds."""
        if isinstance(node, _FUNCTIONS) and any(self.registers(each) for each in node.decorator_list):
            yield node.name
        if isinstance(node, ast.Assign) and self.registers(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        for item in node.items if isinstance(node, ast.With) else ():
            if isinstance(item.optional_vars, ast.Name) and self.registers(item.context_expr):
                yield item.optional_vars.id

    def full(self, node: ast.AST) -> str:
        """The text of `a.b.c`, with the full name of an imported `a`. "" for other expressions."""
        if isinstance(node, ast.Attribute):
            base = self.full(node.value)
            return base + "." + node.attr if base else ""
        return self.imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def registers(self, node: ast.AST) -> bool:
        """Whether a call registers something. `node` is the call, or the function that is called."""
        if isinstance(node, ast.Call):
            return self.registers(node.func)
        name = self.full(node)
        base, _, last = name.rpartition(".")
        if base in self.operators:
            return last in _METHODS or last.startswith("register_")
        return name.startswith(_REGISTERING) and last not in _ASKING


def flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements, and those in the blocks of `if`, `try`, `with` and `for`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody") if isinstance(node, _BLOCKS) else ():
            yield from flat(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from flat(handler.body)


def _reasons(function: ast.expr, names: Names, seen: set[str]) -> Iterator[str]:
    """Yield reasons why a call of `function` would run the program."""
    if isinstance(function, ast.Call):  # a decorator with arguments: `called` also yields the function in it
        return
    name = names.full(function)
    last = function.attr if isinstance(function, ast.Attribute) else name
    runs = name.startswith(_RUNNING) and not name.startswith(_REGISTERING)
    if runs or last in _ASKS_ARGUMENTS or (name in _RUNNING_BUILTINS and hasattr(builtins, name)):
        yield "it calls {}".format(name or last)
    if name in names.defined and name not in seen:
        seen.add(name)
        for node in ast.walk(names.defined[name]):
            if isinstance(node, ast.Call):
                for reason in _reasons(node.func, names, seen):
                    yield "{} {}".format(name, reason.replace("it calls", "calls", 1))


# Modules whose import registers nothing: the standard library, and torch, which is imported already.
_PLAIN = frozenset(getattr(sys, "stdlib_module_names", ())) | {"torch", "__future__"}
_PLACES = ("sys.path", "os.environ")  # imports and loads of libraries depend on these


@dataclass(frozen=True)
class RegistrationSlice:
    """The `statements` to run. `lines` are those that register operators; `refused` says why none can run."""

    statements: tuple[ast.stmt, ...] = ()
    lines: tuple[int, ...] = ()
    refused: str = ""

    def text(self) -> str:
        return "\n\n".join(ast.unparse(node) for node in self.statements) + "\n"


@dataclass(frozen=True)
class _Statement:
    """A top-level statement, and the names that it binds, reads (also in functions) and changes."""

    node: ast.stmt
    binds: set[str]
    reads: set[str]
    changes: str


class _Script:
    """The statements of a script's top level, by number."""

    def __init__(self, source: bytes, path: str) -> None:
        tree = ast.parse(source, path)
        self.names = Names(tree)
        self.statements = []
        for node in tree.body:
            code, changes = code_of([node], path), _changed(node)
            instructions = dis.get_instructions(code)
            stores = {one.argval for one in instructions if one.opname in ("STORE_NAME", "STORE_GLOBAL")}
            if changes in self.names.imported:  # `torch.manual_seed(0)` changes no name
                changes = ""
            self.statements.append(_Statement(node, stores, set(_reads(code)), changes))

    def needed(self, number: int) -> set[int]:
        """A statement and, transitively, those that bind or change the names that it reads."""
        wanted: set[int] = set()
        left = {number}
        while left:
            wanted |= left
            reads = {name for n in left for name in self.statements[n].reads}
            left = {n for n, e in enumerate(self.statements) if e.binds & reads or e.changes in reads}
            left -= wanted
        return wanted

    def why_not(self, numbers: set[int]) -> str:
        """Why these statements would run the program, or "" if they would not."""
        for node in (self.statements[n].node for n in sorted(numbers)):
            reasons = [
                "it is a {} statement".format(type(each).__name__.lower())
                for each in flat([node])
                if not isinstance(each, (*_SIMPLE, *_BLOCKS, *_DEFINITIONS))
            ]
            seen: set[str] = set()
            reasons += [reason for each in called(node) for reason in _reasons(each, self.names, seen)]
            if reasons:
                return "line {} would have to be run, and {}".format(node.lineno, reasons[0])
        return ""


def registrations(source: bytes, path: str) -> RegistrationSlice:
    """The statements that register operators, and those that they need, in their order."""
    try:
        script = _Script(source, path)
    except (SyntaxError, ValueError, RecursionError) as error:
        return RegistrationSlice(refused="it cannot be read: {}".format(error))
    statements = [each.node for each in script.statements]
    roots = [
        n for n, node in enumerate(statements) if any(script.names.registers(one) for one in called(node))
    ]
    wanted: set[int] = set().union(*(script.needed(n) for n in roots))
    refused = script.why_not(wanted)
    if refused:
        return RegistrationSlice(refused=refused)
    for n, each in enumerate(script.statements):
        # Also take imports, which may register operators, and changes of search paths.
        if each.changes in _PLACES or _imported(each.node) - _PLAIN:
            helping = script.needed(n)
            wanted |= helping if not script.why_not(helping) else set()
    taken = tuple(statements[n] for n in sorted(wanted))
    return RegistrationSlice(taken, tuple(statements[n].lineno for n in roots))


def code_of(statements: Sequence[ast.stmt], path: str) -> CodeType:
    tree: Any = ast.Module(list(statements), [])  # typeshed wants text, but a tree works, too
    return InspectLoader.source_to_code(tree, path)


def _reads(code: CodeType) -> Iterator[str]:
    """Yield the global names that this code, or a function in it, reads."""
    for each in dis.get_instructions(code):
        if each.opname.startswith("LOAD_") and each.opname.endswith(("GLOBAL", "GLOBALS", "NAME")):
            yield str(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)


def _changed(node: ast.stmt) -> str:
    """`name` for a statement `name[i] = …`, `name.part = …` or `name.method(…)`. Else ""."""
    target: ast.expr | None = None
    if isinstance(node, _ASSIGNMENTS):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        target = node.value.func
    inside = isinstance(target, (ast.Subscript, ast.Attribute))
    while isinstance(target, (ast.Subscript, ast.Attribute)) and ast.unparse(target) not in _PLACES:
        target = target.value
    return ast.unparse(target) if inside and target is not None else ""


def _imported(node: ast.stmt) -> set[str]:
    """The top-level modules that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()


OPERATORS = "#operators"  # after the name of a file: import only the operators that it registers


def import_all(names: Sequence[str], report: Report) -> None:
    """Import modules, run .py files under a name other than `__main__`, load .so files as op libraries.

    For `FILE.py#operators`, run only the statements of `registrations`. Event `operators_taken` has their
    lines, or why there are none.
    """
    for name in names:
        report.phase("importing", name)
        if name.endswith(OPERATORS):
            _take_operators(name[: -len(OPERATORS)], report)
        elif name.endswith(".so"):
            import torch

            if not os.path.exists(name):
                raise Refused("no such operator library", name)
            torch.ops.load_library(name)
        elif name.endswith(".py"):
            run(module_of(_directory_first(name), PREFIX + os.path.basename(name)[:-3]))
        else:
            importlib.import_module(name)


class _Operators(SourceFileLoader):
    """Imports the statements of a script that register operators."""

    def __init__(self, name: str, path: str, taken: RegistrationSlice) -> None:
        super().__init__(name, path)
        self.taken = taken

    def get_code(self, _fullname: str) -> CodeType:
        # Keep the script's name and line numbers: Triton reads kernel source there, and errors name them.
        return code_of(self.taken.statements, self.path)


def _take_operators(path: str, report: Report) -> None:
    """Run the registrations of a script. Report errors, because the call may not need these operators."""
    path = _directory_first(path)
    module = module_of(path, PREFIX + os.path.basename(path)[:-3])
    with open(path, "rb") as file:
        taken = registrations(file.read(), path)
    lines, refused = list(taken.lines), taken.refused
    if taken.statements:
        try:
            _Operators(module.__name__, path, taken).exec_module(module)
        except Exception as error:
            raised = facts(error)
            lines, refused = [], "{}: {}".format(raised["type"], raised["text"])[:500]
    report.event(OperatorsTaken(path, lines, refused))


PREFIX = "_aoti_debug_import_"  # prefix of the names of modules that run from files


def _directory_first(path: str) -> str:
    """Return the absolute path of a file. Put its directory first on `sys.path`, as for a script."""
    if not os.path.exists(path):
        raise Refused("no such file to import", path)
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    return path


def module_of(path: str, name: str) -> ModuleType:
    """A new module for a file. `run` executes it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    return sys.modules[name]


def run(module: ModuleType) -> None:
    assert module.__spec__ is not None and module.__spec__.loader is not None
    module.__spec__.loader.exec_module(module)
