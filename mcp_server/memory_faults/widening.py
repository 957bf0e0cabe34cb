"""Finds sums that a Triton kernel accumulates in 16 bits, and rewrites the kernel to use float32.

The largest float16 is 65504, and a running 16-bit sum loses its addends to rounding long before. The result
can be finite and wrong. Only the source is read: a value is narrow if it was loaded through a 16-bit pointer
or created with a 16-bit dtype, and not widened since.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from mcp_server.memory_faults.kernel_lines import parsed
from mcp_server.memory_faults.masked_lanes import called, function_of

_NARROW = frozenset({"float16", "bfloat16"})
_WIDE = frozenset({"float32", "float64"})
_SUMS = frozenset({"sum", "cumsum"})
_SIGNATURE = re.compile(r"'signature': \{([^{}]*)\}")
_POINTER = re.compile(r"'(\w+)': '\*(?:fp16|bf16)'")


@dataclass(frozen=True)
class NarrowSum:
    """A sum in 16 bits: the 1-based line, and the summing expression."""

    line: int
    text: str


def narrow_pointers(source: str) -> frozenset[str]:
    """Parameters that point to 16-bit floats, from the signature that Inductor prints with a kernel."""
    signature = _SIGNATURE.search(source)
    return frozenset(_POINTER.findall(signature[1])) if signature else frozenset()


def narrow_sums(source: str, kernel: str, pointers: frozenset[str]) -> tuple[NarrowSum, ...]:
    """The 16-bit sums of function `kernel`, by line."""
    tree = parsed(source)
    function = function_of(tree, kernel) if tree is not None else None
    sums = _read(function, pointers).sums if function is not None else {}
    return tuple(sums[line] for line in sorted(sums))


def widened(source: str, kernel: str, pointers: frozenset[str]) -> str | None:
    """The source with `kernel` computing in float32; None if it has no 16-bit sum.

    `tl.store` converts stored values back to the dtype of the tensor. Comments are lost.
    """
    tree = parsed(source)
    function = function_of(tree, kernel) if tree is not None else None
    # A bitcast reads the bits of a 16-bit value: widening would change its meaning.
    if tree is None or function is None or "bitcast" in source:
        return None
    reader = _read(function, pointers)
    if not reader.sums:
        return None
    _Widen(reader.pointers).visit(function)
    return ast.unparse(ast.fix_missing_locations(tree))


def _read(function: ast.FunctionDef, pointers: frozenset[str]) -> _Reader:
    reader = _Reader(set(pointers))
    reader.block(function.body)
    reader.block(function.body)  # again, since a loop starts with the values of its last iteration
    return reader


@dataclass
class _Reader:
    """Tracks the width of each name: True is 16-bit, False is wider, None is unknown or no float."""

    pointers: set[str]
    narrow: dict[str, bool | None] = field(default_factory=dict)
    sums: dict[int, NarrowSum] = field(default_factory=dict)

    def block(self, body: list[ast.stmt], *, loop: bool = False) -> None:
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                self.narrow[name] = self.read(node.value)
                if self.points(node.value):
                    self.pointers.add(name)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                value = self.narrow[name] = _either(self.narrow.get(name), self.read(node.value))
                if value and loop and isinstance(node.op, ast.Add) and name not in self.pointers:
                    self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
            elif isinstance(node, (ast.For, ast.While)):
                self.block(node.body, loop=True)
            elif isinstance(node, ast.If):
                self.block([*node.body, *node.orelse], loop=loop)
            elif isinstance(node, ast.Expr):
                self.read(node.value)

    def points(self, node: ast.expr) -> bool:
        """Whether the expression is an address in a 16-bit tensor, not a value loaded from it."""
        return bool(_names(node) & self.pointers)

    def read(self, node: ast.expr) -> bool | None:
        if isinstance(node, ast.Name):
            return self.narrow.get(node.id)
        if isinstance(node, ast.BinOp):
            return _either(self.read(node.left), self.read(node.right))
        if isinstance(node, ast.UnaryOp):
            return self.read(node.operand)
        return self.call(node) if isinstance(node, ast.Call) else None

    def call(self, node: ast.Call) -> bool | None:
        name, arguments = called(node), [self.read(argument) for argument in node.args]
        first = arguments[0] if arguments else None
        if name == "load":
            return bool(node.args) and self.points(node.args[0])
        if name == "to" and isinstance(node.func, ast.Attribute):
            current, target = self.read(node.func.value), _dtype(node)
            return current if target is None else target
        if name in ("zeros", "full"):
            return _dtype(node)
        if name == "where" and len(arguments) == 3:
            return _either(arguments[1], arguments[2])
        if name in _SUMS and first and _dtype(node) is None:
            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
        return first


class _Widen(ast.NodeTransformer):
    """Casts loads from 16-bit pointers to float32, and replaces 16-bit dtypes by float32."""

    def __init__(self, pointers: set[str]) -> None:
        self.pointers = pointers

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if called(node) == "load" and node.args and _names(node.args[0]) & self.pointers:
            return ast.Call(ast.Attribute(node, "to", ast.Load()), [_float32()], [])
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return _float32() if node.attr in _NARROW else node


def _float32() -> ast.expr:
    return ast.Attribute(ast.Name("tl", ast.Load()), "float32", ast.Load())


def _either(a: bool | None, b: bool | None) -> bool | None:
    """Width of a binary operation: wide if either side is wide; unknown sides are ignored."""
    if a is None or b is None:
        return b if a is None else a
    return a and b


def _dtype(node: ast.Call) -> bool | None:
    """The width of the dtype among the arguments; None without one."""
    arguments = [*node.args, *(word.value for word in node.keywords)]
    named = {n.attr for word in arguments for n in ast.walk(word) if isinstance(n, ast.Attribute)}
    return True if named & _NARROW else False if named & _WIDE else None


def _names(node: ast.AST) -> set[str]:
    """Names in an expression, except inside loads."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call) and called(node) == "load":
        return set()
    return set().union(*(_names(child) for child in ast.iter_child_nodes(node)))
