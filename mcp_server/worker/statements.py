"""What a statement of a script would do: register an operator, or run the program."""

from __future__ import annotations

import ast
import builtins
from typing import Iterator, Union

# Of torch 2.8-2.15: what registers an operator, a library of them, or a class that a package takes.
_REGISTERING = (
    "torch.library.",
    "torch._library.",
    "torch.ops.load_library",
    "torch.classes.load_library",
    "torch.utils.cpp_extension.load",
    "torch.export.register_dataclass",
    "torch.utils._pytree.register_",
)
_ASKING = frozenset({"opcheck", "wrap_triton", "capture_triton", "infer_schema", "get_ctx", "get_kernel"})
# Methods of what `custom_op`, `triton_op` and `Library` give, beside `register_…`.
_METHODS = frozenset({"define", "impl", "fallback", "_register_fake", "_impl_with_aoti_compile"})
# What runs the program, starts another one, or asks for what only the program was given.
_RUNNING = (
    "torch._inductor.aot",
    "torch._inductor.compile",
    "torch._inductor.package.",
    "torch._export.",
    "torch._C._aoti.",
    "torch.export.export",
    "torch.export.draft_export",
    "torch.export.load",
    "torch.export.pt2_archive.",
    "torch.multiprocessing.",
    "torch.distributed.",
    "multiprocessing.",
    "subprocess.",
    "concurrent.",
    "threading.Thread",
    "resource.",
    "signal.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.spawn",
    "os._exit",
    "os.kill",
    "sys.exit",
    "runpy.",
)
_ASKS_ARGUMENTS = frozenset({"parse_args", "parse_known_args"})
_RUNNING_BUILTINS = frozenset({"exit", "quit", "input", "exec", "eval", "breakpoint", "__import__"})

_BLOCKS = (ast.If, ast.Try, ast.With, ast.For)
_SIMPLE = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Expr,
    ast.Import,
    ast.ImportFrom,
    ast.Pass,
    ast.Raise,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]


def called(node: ast.AST) -> Iterator[ast.expr]:
    """What is called when the statement is run, decorators included: not what bodies of functions call."""
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
    """What the names of a script's top level are: modules, definitions of its own, operators."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}
        self.defined: dict[str, Definition] = {}
        self.operators: set[str] = set()
        for node in ast.walk(tree):
            self._import(node)
        for each in flat(tree.body):
            if isinstance(each, _DEFINITIONS):
                self.defined.setdefault(each.name, each)
            self.operators |= set(self._operators(each))

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                self.imported[alias.asname or whole] = whole
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.imported[alias.asname or alias.name] = "{}.{}".format(node.module or "", alias.name)

    def _operators(self, node: ast.stmt) -> Iterator[str]:
        """Names that a registering statement binds."""
        if isinstance(node, _FUNCTIONS) and any(self.registers(each) for each in node.decorator_list):
            yield node.name
        if isinstance(node, ast.Assign) and self.registers(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        for item in node.items if isinstance(node, ast.With) else ():
            if isinstance(item.optional_vars, ast.Name) and self.registers(item.context_expr):
                yield item.optional_vars.id

    def full(self, node: ast.AST) -> str:
        """`a.b.c` with `a` as it was imported; "" for what is no such chain."""
        if isinstance(node, ast.Attribute):
            base = self.full(node.value)
            return base + "." + node.attr if base else ""
        return self.imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def registers(self, node: ast.AST) -> bool:
        """Whether what is called, or a call of it, registers something."""
        if isinstance(node, ast.Call):
            return self.registers(node.func)
        name = self.full(node)
        base, _, last = name.rpartition(".")
        if base in self.operators:
            return last in _METHODS or last.startswith("register_")
        return name.startswith(_REGISTERING) and last not in _ASKING


def flat(body: "list[ast.stmt]") -> Iterator[ast.stmt]:
    """Statements with those of their blocks."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody") if isinstance(node, _BLOCKS) else ():
            yield from flat(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from flat(handler.body)


def why_not(node: ast.stmt, names: Names) -> str:
    """Why a statement cannot be run without running the program; "" when it can."""
    for each in flat([node]):
        if not isinstance(each, (*_SIMPLE, *_BLOCKS, *_DEFINITIONS)):
            return "it is a {} statement".format(type(each).__name__.lower())
    seen: set[str] = set()
    return next((reason for each in called(node) for reason in _reasons(each, names, seen)), "")


def _reasons(function: ast.expr, names: Names, seen: "set[str]") -> Iterator[str]:
    if isinstance(function, ast.Call):  # a decorator with arguments; the call is looked at by itself
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
