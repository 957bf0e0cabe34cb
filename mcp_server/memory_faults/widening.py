"""Sums that a Triton kernel keeps in 16 bits, and the kernel with float32 in their place.

float16 ends at 65504, and a running sum in 16 bits stops growing long before: a square sum of loud samples is
infinite, and the kernel writes finite nonsense. Read from the source alone: a value is narrow when it was
loaded through a 16-bit pointer, or made in a 16-bit dtype, and was not widened since.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from mcp_server.memory_faults.masked_lanes import called, function_of, parsed

_NARROW = frozenset({"float16", "bfloat16"})
_WIDE = frozenset({"float32", "float64"})
_SUMS = frozenset({"sum", "cumsum"})
_SIGNATURE = re.compile(r"'signature': \{([^{}]*)\}")
_POINTER = re.compile(r"'(\w+)': '\*(?:fp16|bf16)'")


@dataclass(frozen=True)
class NarrowSum:
    """A sum in 16 bits; `line` counts from 1 in the source, `text` is what is summed and how."""

    line: int
    text: str


def narrow_pointers(source: str) -> frozenset[str]:
    """Parameters that point to 16-bit floats, by the signature that Inductor writes above a kernel."""
    signature = _SIGNATURE.search(source)
    return frozenset(_POINTER.findall(signature[1])) if signature else frozenset()


def narrow_sums(source: str, kernel: str, pointers: frozenset[str]) -> tuple[NarrowSum, ...]:
    """The sums of function `kernel` that are kept in 16 bits, in the order of the lines."""
    tree = parsed(source)
    function = function_of(tree, kernel) if tree is not None else None
    reader = _read(function, pointers) if function is not None else None
    return tuple(reader.sums[line] for line in sorted(reader.sums)) if reader is not None else ()


def widened(source: str, kernel: str, pointers: frozenset[str]) -> str | None:
    """The source in which `kernel` computes in float32; None where it keeps no sum in 16 bits.

    What it stores gets the dtype of the tensor again, by `tl.store` itself. Comments are lost.
    """
    tree = parsed(source)
    function = function_of(tree, kernel) if tree is not None else None
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
    reader.block(function.body)  # a loop begins again with what its last iteration left
    return reader


@dataclass
class _Reader:
    """Which names are narrow: True, wide: False, and which are neither."""

    pointers: set[str]
    narrow: dict[str, bool | None] = field(default_factory=dict)
    sums: dict[int, NarrowSum] = field(default_factory=dict)

    def block(self, body: list[ast.stmt], *, loop: bool = False) -> None:
        for node in body:
            self.statement(node, loop)

    def statement(self, node: ast.stmt, loop: bool) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.assign(node.targets[0].id, node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self.add(node, node.target.id, loop)
        elif isinstance(node, (ast.For, ast.While)):
            self.block(node.body, loop=True)
        elif isinstance(node, ast.If):
            self.block([*node.body, *node.orelse], loop=loop)
        elif isinstance(node, ast.Expr):
            self.read(node.value)

    def assign(self, name: str, value: ast.expr) -> None:
        self.narrow[name] = self.read(value)
        if self.points(value):
            self.pointers.add(name)

    def add(self, node: ast.AugAssign, name: str, loop: bool) -> None:
        value = _either(self.narrow.get(name), self.read(node.value))
        self.narrow[name] = value
        if value and loop and isinstance(node.op, ast.Add) and name not in self.pointers:
            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))

    def points(self, node: ast.expr) -> bool:
        """Whether it is an address in a narrow tensor: made of its pointer, not loaded from there."""
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
            held, asked = self.read(node.func.value), _dtype(node)
            return held if asked is None else asked
        if name in ("zeros", "full"):
            return _dtype(node)
        if name == "where" and len(arguments) == 3:
            return _either(arguments[1], arguments[2])
        if name in _SUMS and first and _dtype(node) is None:
            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
        return first


class _Widen(ast.NodeTransformer):
    """Loads through narrow pointers become float32, and so does each 16-bit dtype that is named."""

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
    """Arithmetic of a wide and a narrow value is wide; a number has no say."""
    if a is None or b is None:
        return b if a is None else a
    return a and b


def _dtype(node: ast.Call) -> bool | None:
    """Whether a 16-bit (True) or a wider float is named among the arguments."""
    named = {n.attr for word in _arguments(node) for n in ast.walk(word) if isinstance(n, ast.Attribute)}
    return True if named & _NARROW else False if named & _WIDE else None


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(word.value for word in node.keywords)]


def _names(node: ast.AST) -> set[str]:
    """The names in it, less those of what it loads from memory."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call) and called(node) == "load":
        return set()
    return set().union(*(_names(child) for child in ast.iter_child_nodes(node)))
