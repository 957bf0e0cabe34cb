"""Masked lanes that take part in a reduction of a Triton kernel: a filler that is not its neutral value.

`tl.load(p, mask=m, other=0.0)` fills the lanes that `m` leaves out. In `tl.sum` zeros change nothing; in
`tl.max` they do as soon as all values are negative, and after `tl.exp` they are ones. Read from the source
alone: values are followed through assignments, element-wise arithmetic, `tl.where` and loops, and anything
that is not understood counts as sound.
"""

from __future__ import annotations

import ast
import math
import textwrap
from dataclasses import dataclass, field, replace

from mcp_server.faults.lanes import UNKNOWN, Lanes, computed, extreme, mapped, number, stays

NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}
_LONGEST = 100_000


@dataclass(frozen=True)
class Padding:
    """A reduction that masked lanes change. Lines count from 1 in the kernel's source.

    `filler` is what the lanes of the load hold (source text, "" for nothing at all), `needed` what the
    reduction would need there.
    """

    load_line: int
    load: str
    filler: str
    line: int
    reduction: str
    operation: str
    needed: float


@dataclass(frozen=True)
class Reduction:
    """The nodes of one: the load whose lanes it meets, the call that reduces, and what it would need."""

    load: ast.Call
    call: ast.Call
    name: str

    @property
    def needed(self) -> float:
        return NEUTRAL[self.name]


@dataclass
class _Reader:
    found: dict[tuple[int, int], Reduction] = field(default_factory=dict)
    values: dict[str, Lanes] = field(default_factory=dict)

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assign(node.targets[0], self.read(node.value))
        elif isinstance(node, ast.AugAssign):
            self.assign(node.target, self.arithmetic(node.op, self.read(node.target), self.read(node.value)))
        elif isinstance(node, (ast.For, ast.While)):
            self.block(node.body)
            self.block(node.body)  # what the last iteration left is what the next one begins with
        elif isinstance(node, ast.If):
            self.block(node.body)
            self.block(node.orelse)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.read(child)

    def assign(self, target: ast.expr, value: Lanes | None) -> None:
        if not isinstance(target, ast.Name):
            return
        self.values.pop(target.id, None)
        if value is not None:
            self.values[target.id] = value

    def read(self, node: ast.expr) -> Lanes | None:
        """None for what is not followed."""
        literal = number(node)
        if literal is not None:
            return Lanes(literal, uniform=True, never_negative=literal >= 0)
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node.op, self.read(node.left), self.read(node.right), _same(node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.read(node.operand)
            return replace(value, filler=-value.filler, never_negative=False) if value else None
        if isinstance(node, ast.Call):
            return self.call(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.read(child)
        return None

    def call(self, node: ast.Call) -> Lanes | None:
        name = called(node)
        if name == "to" and isinstance(node.func, ast.Attribute):
            return self.read(node.func.value)
        arguments = [self.read(argument) for argument in node.args]
        first = arguments[0] if arguments else None
        if name == "load":
            return _loaded(node, self.values)
        if name in NEUTRAL and name:
            self.check(node, name, first)
            return Lanes(UNKNOWN, uniform=True)
        if name in ("zeros", "full"):
            filler = 0.0 if name == "zeros" else number(node.args[1]) if len(node.args) > 1 else None
            return Lanes(filler, uniform=True) if filler is not None else None
        if name in ("maximum", "minimum") and len(arguments) == 2:
            return extreme(name, *arguments)
        if name == "where" and len(arguments) == 3:
            return _chosen(node, arguments[1], arguments[2])
        return mapped(name, first) if first is not None else None

    def check(self, node: ast.Call, name: str, value: Lanes | None) -> None:
        """Note a reduction over lanes that hold something else than its neutral value."""
        if value is None or value.uniform or value.load is None:
            return
        wanted = NEUTRAL[name]
        if value.filler == wanted or (value.never_negative and value.filler == 0 and "max" in name):
            return
        self.found[node.lineno, node.col_offset] = Reduction(value.load, node, name)

    def arithmetic(
        self, op: ast.operator, a: Lanes | None, b: Lanes | None, same: bool = False
    ) -> Lanes | None:
        if a is None or b is None or not (a.uniform or b.uniform or a.mask == b.mask):
            return None
        masked = a if not a.uniform else b
        filler = computed(op, a.filler, b.filler)
        square = same and isinstance(op, ast.Mult)
        return replace(
            masked, filler=filler, uniform=a.uniform and b.uniform, never_negative=square or stays(op, a, b)
        )


def paddings(source: str, kernel: str) -> tuple[Padding, ...]:
    """The reductions of function `kernel` that masked lanes change, in the order of the lines."""
    tree = parsed(source)
    return tuple(_padding(found) for found in reductions(tree, kernel)) if tree is not None else ()


def parsed(source: str) -> ast.Module | None:
    """None for what cannot be read."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_of(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The first function of that name."""
    nodes = ast.walk(tree)
    return next((n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name), None)


def reductions(tree: ast.Module, kernel: str) -> list[Reduction]:
    """Nodes of `tree`, in the order of the lines; empty where there is no such function."""
    function = function_of(tree, kernel)
    if function is None:
        return []
    reader = _Reader(values={arg.arg: Lanes(UNKNOWN, uniform=True) for arg in function.args.args})
    reader.block(function.body)
    return [reader.found[key] for key in sorted(reader.found)]


def filler_of(load: ast.Call) -> ast.expr | None:
    """The argument `other` of a load; None where it has none."""
    return _keyword(load, "other", 2)


def mask_of(load: ast.Call) -> ast.expr | None:
    """The argument `mask` of a load."""
    return _keyword(load, "mask", 1)


def _padding(found: Reduction) -> Padding:
    other = filler_of(found.load)
    return Padding(
        load_line=found.load.lineno,
        load=ast.unparse(found.load),
        filler=ast.unparse(other) if other is not None else "",
        line=found.call.lineno,
        reduction=ast.unparse(found.call),
        operation=f"tl.{found.name}",
        needed=found.needed,
    )


def _loaded(node: ast.Call, values: dict[str, Lanes]) -> Lanes | None:
    mask = mask_of(node)
    if mask is None:
        names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - {"tl"}
        scalar = all(name in values and values[name].uniform for name in names)
        return Lanes(UNKNOWN, uniform=True) if scalar else None
    other = filler_of(node)
    filler = UNKNOWN if other is None else number(other)
    return Lanes(filler, load=node, mask=ast.dump(mask)) if filler is not None else None


def _keyword(node: ast.Call, name: str, place: int) -> ast.expr | None:
    by_name = next((word.value for word in node.keywords if word.arg == name), None)
    return by_name if by_name is not None or len(node.args) <= place else node.args[place]


def called(node: ast.Call) -> str | None:
    """The last part of the name that is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else None


def _same(node: ast.BinOp) -> bool:
    return ast.dump(node.left) == ast.dump(node.right)


def _chosen(node: ast.Call, kept: Lanes | None, other: Lanes | None) -> Lanes | None:
    """`tl.where(mask, x, filler)` fills the lanes of the mask anew."""
    if kept is None or other is None or not other.uniform or math.isnan(other.filler):
        return None
    if kept.uniform or ast.dump(node.args[0]) != kept.mask:
        return None
    return replace(kept, filler=other.filler, never_negative=False)
