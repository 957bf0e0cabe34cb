"""Finds Triton reductions that masked lanes change, and rewrites the kernel with neutral fill values.

`tl.load(p, mask=m, other=0.0)` fills the lanes that `m` masks off. Zeros are neutral in `tl.sum`. In `tl.max`
they are wrong if all values are negative, and `tl.exp` turns them into ones. Only the source is read: values
are followed through assignments, element-wise arithmetic, `tl.where` and loops. Code that is not understood
counts as correct.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mcp_server.memory_faults.kernel_lines import argument_of, parsed

UNKNOWN = math.nan
_FLOAT: dict[str, Callable[[float], float]] = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "sqrt": math.sqrt, "abs": abs,
    "sin": math.sin, "cos": math.cos, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid"})
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}


@dataclass(frozen=True)
class Lanes:
    """What is known of a value across the lanes.

    `uniform`: all lanes are equal, and `filler` is the number. Otherwise the lanes outside `mask` hold
    `filler`, and `load` is the load that set them. A `filler` of NaN is unknown.
    """

    filler: float
    uniform: bool = False
    never_negative: bool = False
    load: ast.Call | None = None
    mask: str = ""


def number(node: ast.expr) -> float | None:
    """The value of a literal number, including `float("-inf")`; else None."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = number(operand)
            return -inner if inner is not None else None
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=text), *_]):
            return {"inf": math.inf, "-inf": -math.inf}.get(str(text).strip())
    return None


def computed(op: ast.operator, a: float, b: float) -> float:
    """The filler after an operation. Zero times unknown is zero; infinity absorbs unknown operands.

    An unknown factor is assumed to be positive.
    """
    if math.isinf(b) and not math.isinf(a) and isinstance(op, (ast.Add, ast.Mult)):
        a, b = b, a
    if math.isinf(a) and not math.isinf(b) and (math.isnan(b) or not isinstance(op, (ast.Mult, ast.Div))):
        return a
    if isinstance(op, ast.Mult):
        return 0.0 if 0 in (a, b) else a * b
    if isinstance(op, ast.Div):
        return 0.0 if a == 0 else a / b if b else UNKNOWN
    if not isinstance(op, (ast.Add, ast.Sub)):
        return UNKNOWN
    return a + b if isinstance(op, ast.Add) else a - b


def combined(a: Lanes | None, b: Lanes | None, filler: Callable[[float, float], float]) -> Lanes | None:
    """Both values element by element; None where their lanes are not masked alike."""
    if a is None or b is None or not (a.uniform or b.uniform or a.mask == b.mask):
        return None
    masked = a if not a.uniform else b
    return replace(masked, filler=filler(a.filler, b.filler), uniform=a.uniform and b.uniform)


@dataclass(frozen=True)
class Padding:
    """A reduction that masked lanes change. Lines are 1-based in the kernel's source.

    `filler` is the load's fill value as source text ("" if it has none), `needed` the neutral value.
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
    """The AST nodes of a faulty reduction: the load, the reducing call and its name."""

    load: ast.Call
    call: ast.Call
    name: str


@dataclass
class _Reader:
    found: dict[tuple[int, int], Reduction] = field(default_factory=dict)
    values: dict[str, Lanes] = field(default_factory=dict)

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self.assign(node.targets[0], self.read(node.value))
            elif isinstance(node, ast.AugAssign):
                value = self.arithmetic(node.op, self.read(node.target), self.read(node.value))
                self.assign(node.target, value)
            elif isinstance(node, (ast.For, ast.While)):
                self.block(node.body)
                self.block(node.body)  # again, since a loop starts with the values of its last iteration
            elif isinstance(node, ast.If):
                self.block(node.body)
                self.block(node.orelse)
            else:
                self.read_children(node)

    def read_children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.read(child)

    def assign(self, target: ast.expr, value: Lanes | None) -> None:
        if isinstance(target, ast.Name):
            self.values.pop(target.id, None)
            if value is not None:
                self.values[target.id] = value

    def read(self, node: ast.expr) -> Lanes | None:
        """The lanes of an expression; None where they cannot be followed."""
        literal = number(node)
        if literal is not None:
            return Lanes(literal, uniform=True, never_negative=literal >= 0)
        if isinstance(node, ast.Name):
            return self.values.get(node.id)
        if isinstance(node, ast.BinOp):
            same = ast.dump(node.left) == ast.dump(node.right)
            return self.arithmetic(node.op, self.read(node.left), self.read(node.right), same)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.read(node.operand)
            return replace(value, filler=-value.filler, never_negative=False) if value else None
        if isinstance(node, ast.Call):
            return self.call(node)
        self.read_children(node)
        return None

    def call(self, node: ast.Call) -> Lanes | None:
        name = called(node)
        if name == "to" and isinstance(node.func, ast.Attribute):
            return self.read(node.func.value)
        arguments = [self.read(argument) for argument in node.args]
        first = arguments[0] if arguments else None
        if name == "load":
            return self.load(node)
        if name in NEUTRAL and name:
            self.check(node, name, first)
            return Lanes(UNKNOWN, uniform=True)
        if name in ("zeros", "full"):
            filler = 0.0 if name == "zeros" else number(node.args[1]) if len(node.args) > 1 else None
            return Lanes(filler, uniform=True) if filler is not None else None
        if name in ("maximum", "minimum") and len(arguments) == 2:
            return self.extreme(name, *arguments)
        if name == "where" and len(arguments) == 3:
            # `tl.where(mask, x, filler)` with the mask of the load replaces the filler.
            value, other = arguments[1:]
            if value is None or other is None or not other.uniform or math.isnan(other.filler):
                return None
            if value.uniform or ast.dump(node.args[0]) != value.mask:
                return None
            return replace(value, filler=other.filler, never_negative=False)
        if first is None or name not in _FLOAT:
            return None
        try:
            mapped = _FLOAT[name](first.filler)
        except (ValueError, OverflowError):
            mapped = UNKNOWN
        return replace(first, filler=mapped, never_negative=name in _NEVER_NEGATIVE)

    def load(self, node: ast.Call) -> Lanes | None:
        mask, other = mask_of(node), filler_of(node)
        if mask is None:
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - {"tl"}
            scalar = all(name in self.values and self.values[name].uniform for name in names)
            return Lanes(UNKNOWN, uniform=True) if scalar else None
        filler = UNKNOWN if other is None else number(other)
        return Lanes(filler, load=node, mask=ast.dump(mask)) if filler is not None else None

    def extreme(self, name: str, a: Lanes | None, b: Lanes | None) -> Lanes | None:
        """`tl.maximum` or `tl.minimum` of two values. The maximum with a value >= 0 is never negative."""
        pick = max if name == "maximum" else min
        found = combined(a, b, lambda x, y: UNKNOWN if math.isnan(x) or math.isnan(y) else pick(x, y))
        if found is None or a is None or b is None:
            return None
        clamped = name == "maximum" and b.uniform and b.never_negative
        return replace(found, never_negative=clamped or (a.never_negative and b.never_negative))

    def check(self, node: ast.Call, name: str, value: Lanes | None) -> None:
        """Record a reduction over lanes that do not hold its neutral value."""
        if value is None or value.uniform or value.load is None or value.filler == NEUTRAL[name]:
            return
        if not (value.never_negative and value.filler == 0 and "max" in name):
            self.found[node.lineno, node.col_offset] = Reduction(value.load, node, name)

    def arithmetic(
        self, op: ast.operator, a: Lanes | None, b: Lanes | None, same: bool = False
    ) -> Lanes | None:
        found = combined(a, b, lambda x, y: computed(op, x, y))
        if found is None or a is None or b is None:
            return None
        square = same and isinstance(op, ast.Mult)
        both = a.never_negative and b.never_negative and isinstance(op, (ast.Add, ast.Mult, ast.Div))
        return replace(found, never_negative=square or both)


def paddings(source: str, kernel: str) -> tuple[Padding, ...]:
    """The reductions of function `kernel` that masked lanes change, by line."""
    tree = parsed(source)
    return tuple(
        Padding(
            load_line=found.load.lineno,
            load=ast.unparse(found.load),
            filler=ast.unparse(other) if (other := filler_of(found.load)) is not None else "",
            line=found.call.lineno,
            reduction=ast.unparse(found.call),
            operation=f"tl.{found.name}",
            needed=NEUTRAL[found.name],
        )
        for found in (reductions(tree, kernel) if tree is not None else ())
    )


def function_of(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The first function of that name."""
    nodes = ast.walk(tree)
    return next((n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == name), None)


def reductions(tree: ast.Module, kernel: str) -> list[Reduction]:
    """The faulty reductions of a function in `tree`, by line; empty if there is no such function."""
    function = function_of(tree, kernel)
    if function is None:
        return []
    reader = _Reader(values={arg.arg: Lanes(UNKNOWN, uniform=True) for arg in function.args.args})
    reader.block(function.body)
    return [reader.found[key] for key in sorted(reader.found)]


def filler_of(load: ast.Call) -> ast.expr | None:
    """The `other` argument of a load, its fill value; None without one."""
    return argument_of(load, "other", 2)


def mask_of(load: ast.Call) -> ast.expr | None:
    """The `mask` argument of a load; None without one."""
    return argument_of(load, "mask", 1)


def called(node: ast.Call) -> str | None:
    """The attribute name of a call such as `tl.load(...)`; None for a plain name."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else None


_MAX_CHANGES = 8  # rewrites of one kernel


def repaired(source: str, kernel: str) -> str | None:
    """The source with neutral fill values for all reductions of `kernel`; None if nothing can be changed.

    Comments are lost.
    """
    tree = parsed(source)
    for changes in range(_MAX_CHANGES):
        if tree is None:
            return None
        found = reductions(tree, kernel)
        if not found:
            return ast.unparse(tree) if changes else None
        _repair(tree, found[0])
        tree = parsed(ast.unparse(ast.fix_missing_locations(tree)))
    return None


def _repair(tree: ast.Module, found: Reduction) -> None:
    """Change the load's fill value for a maximum or minimum; else, or if that is done, add a `tl.where`."""
    needed, load = NEUTRAL[found.name], found.load
    text = repr(needed) if math.isfinite(needed) else f"float('{needed}')"
    wanted = ast.parse(text, mode="eval").body
    other = filler_of(load)
    if math.isinf(needed) and (other is None or ast.dump(other) != ast.dump(wanted)):
        load.keywords = [word for word in load.keywords if word.arg != "other"]
        del load.args[2:3]
        load.keywords.append(ast.keyword("other", wanted))
        _set_initial_value(tree, found, wanted)
    else:
        _mask(tree, found, wanted)


def _set_initial_value(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """Start a running maximum at `value`: `x = tl.zeros(shape, …)` becomes `tl.full(shape, value, …)`."""
    running = found.call.args[0]
    if not isinstance(running, ast.Name):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=running.id), *_], value=ast.Call(func=ast.Attribute()) as call
            ):
                function = call.func
                assert isinstance(function, ast.Attribute)
                if function.attr == "zeros":
                    function.attr = "full"
                    call.args.insert(1, value)
                elif function.attr == "full" and len(call.args) > 1:
                    call.args[1] = value


def _mask(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """Put `tl.where(mask, x, value)` around the reduced value, or around the addend of a running sum."""
    mask = mask_of(found.load)
    assert mask is not None, "only masked loads are found"

    def where(operand: ast.expr) -> ast.expr:
        function = ast.Attribute(ast.Name("tl", ast.Load()), "where", ast.Load())
        return ast.Call(function, [mask, operand, value], [])

    summed = found.call.args[0]
    running = summed.id if isinstance(summed, ast.Name) else None
    added = False
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()) if name == running:
                node.value, added = where(node.value), True
    if not added:
        found.call.args[0] = where(summed)
