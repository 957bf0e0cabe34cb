"""Finds Triton reductions that their source shows to be wrong, and rewrites the kernel.

Masked lanes: `tl.load(p, mask=m, other=0.0)` fills the lanes that `m` masks off. Zeros are neutral in
`tl.sum`. In `tl.max` they are wrong if all values are negative, and `tl.exp` turns them into ones. The
rewritten kernel has neutral fill values.

Sums in 16 bits: the largest float16 is 65504, and a running 16-bit sum loses its addends to rounding long
before. The result can be finite and wrong. A value is narrow if it was loaded through a 16-bit pointer or
created with a 16-bit dtype, and not widened since. The rewritten kernel computes in float32.

Only the source is read: values are followed through assignments, element-wise arithmetic, `tl.where` and
loops. Code that is not understood counts as correct.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mcp_server.memory_faults.kernel_lines import argument_of, parsed
from mcp_server.package.kernels import signature_of

UNKNOWN = math.nan
_FLOAT: dict[str, Callable[[float], float]] = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "sqrt": math.sqrt, "abs": abs,
    "sin": math.sin, "cos": math.cos, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid"})
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}
_NARROW = frozenset({"float16", "bfloat16"})
_WIDE = frozenset({"float32", "float64"})
_SUMS = frozenset({"sum", "cumsum"})


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


@dataclass(frozen=True)
class Value:
    """`lanes` is None where they cannot be followed. `narrow`: 16 bits; None: unknown width, or no float."""

    lanes: Lanes | None = None
    narrow: bool | None = None


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


@dataclass(frozen=True)
class NarrowSum:
    """A sum in 16 bits: the 1-based line, and the summing expression."""

    line: int
    text: str


@dataclass
class _Reader:
    """`pointers` are the names of addresses in 16-bit tensors."""

    pointers: set[str]
    values: dict[str, Value]
    reductions: dict[tuple[int, int], Reduction] = field(default_factory=dict)
    sums: dict[int, NarrowSum] = field(default_factory=dict)

    def block(self, body: list[ast.stmt], *, loop: bool = False) -> None:
        for node in body:
            if isinstance(node, ast.Assign):
                value = self.read(node.value)
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.values[target.id] = value
                        self.pointers |= {target.id} if self.points(node.value) else set()
            elif isinstance(node, ast.AugAssign):
                value = self.arithmetic(node.op, self.read(node.target), self.read(node.value))
                if isinstance(node.target, ast.Name):
                    name = node.target.id
                    self.values[name] = value
                    if value.narrow and loop and isinstance(node.op, ast.Add) and name not in self.pointers:
                        self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
            elif isinstance(node, (ast.For, ast.While)):
                self.block(node.body, loop=True)
                self.block(node.body, loop=True)  # a loop starts with the values of its last iteration
            elif isinstance(node, ast.If):
                self.block([*node.body, *node.orelse], loop=loop)
            else:
                self.read_children(node)

    def read_children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.read(child)

    def points(self, node: ast.expr) -> bool:
        """Whether the expression is an address in a 16-bit tensor, not a value loaded from it."""
        return bool(_names(node) & self.pointers)

    def read(self, node: ast.expr) -> Value:
        literal = number(node)
        if literal is not None:
            return Value(Lanes(literal, uniform=True, never_negative=literal >= 0))
        if isinstance(node, ast.Name):
            return self.values.get(node.id, Value())
        if isinstance(node, ast.BinOp):
            same = ast.dump(node.left) == ast.dump(node.right)
            return self.arithmetic(node.op, self.read(node.left), self.read(node.right), same)
        if isinstance(node, ast.UnaryOp):
            value = self.read(node.operand)
            lanes = value.lanes if isinstance(node.op, ast.USub) else None
            negated = replace(lanes, filler=-lanes.filler, never_negative=False) if lanes else None
            return Value(negated, value.narrow)
        if isinstance(node, ast.Call):
            return self.call(node)
        self.read_children(node)
        return Value()

    def call(self, node: ast.Call) -> Value:
        name, dtype = called(node), _dtype(node)
        if name == "to" and isinstance(node.func, ast.Attribute):
            value = self.read(node.func.value)
            return Value(value.lanes, value.narrow if dtype is None else dtype)
        arguments = [self.read(argument) for argument in node.args]
        first = arguments[0] if arguments else Value()
        if name == "load":
            return Value(self.loaded(node), bool(node.args) and self.points(node.args[0]))
        if name in ("zeros", "full"):
            filler = 0.0 if name == "zeros" else number(node.args[1]) if len(node.args) > 1 else None
            return Value(Lanes(filler, uniform=True) if filler is not None else None, dtype)
        if name == "where" and len(arguments) == 3:
            _, value, other = arguments
            return Value(_where(node, value.lanes, other.lanes), _either(value.narrow, other.narrow))
        if name in _SUMS and first.narrow and dtype is None:
            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
        if name in NEUTRAL and name:
            self.check(node, name, first.lanes)
            return Value(Lanes(UNKNOWN, uniform=True), first.narrow)
        if name in ("maximum", "minimum") and len(arguments) == 2:
            return Value(_extreme(name, first.lanes, arguments[1].lanes), first.narrow)
        return Value(_mapped(name, first.lanes), first.narrow)

    def loaded(self, node: ast.Call) -> Lanes | None:
        mask, other = argument_of(node, "mask", 1), argument_of(node, "other", 2)
        if mask is None:
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - {"tl"}
            lanes = [self.values.get(name, Value()).lanes for name in names]
            scalar = all(one is not None and one.uniform for one in lanes)
            return Lanes(UNKNOWN, uniform=True) if scalar else None
        filler = UNKNOWN if other is None else number(other)
        return Lanes(filler, load=node, mask=ast.dump(mask)) if filler is not None else None

    def check(self, node: ast.Call, name: str, value: Lanes | None) -> None:
        """Record a reduction over lanes that do not hold its neutral value."""
        if value is None or value.uniform or value.load is None or value.filler == NEUTRAL[name]:
            return
        if not (value.never_negative and value.filler == 0 and "max" in name):
            self.reductions[node.lineno, node.col_offset] = Reduction(value.load, node, name)

    def arithmetic(self, op: ast.operator, left: Value, right: Value, same: bool = False) -> Value:
        a, b = left.lanes, right.lanes
        found = combined(a, b, lambda x, y: computed(op, x, y))
        if found is not None and a is not None and b is not None:
            square = same and isinstance(op, ast.Mult)
            both = a.never_negative and b.never_negative and isinstance(op, (ast.Add, ast.Mult, ast.Div))
            found = replace(found, never_negative=square or both)
        return Value(found, _either(left.narrow, right.narrow))


def _where(node: ast.Call, value: Lanes | None, other: Lanes | None) -> Lanes | None:
    """`tl.where(mask, x, filler)` with the mask of the load replaces the filler."""
    if value is None or other is None or not other.uniform or math.isnan(other.filler):
        return None
    masked = not value.uniform and ast.dump(node.args[0]) == value.mask
    return replace(value, filler=other.filler, never_negative=False) if masked else None


def _extreme(name: str, a: Lanes | None, b: Lanes | None) -> Lanes | None:
    """`tl.maximum` or `tl.minimum` of two values. The maximum with a value >= 0 is never negative."""
    pick = max if name == "maximum" else min
    found = combined(a, b, lambda x, y: UNKNOWN if math.isnan(x) or math.isnan(y) else pick(x, y))
    if found is None or a is None or b is None:
        return None
    clamped = name == "maximum" and b.uniform and b.never_negative
    return replace(found, never_negative=clamped or (a.never_negative and b.never_negative))


def _mapped(name: str | None, value: Lanes | None) -> Lanes | None:
    """A `tl` function applied element by element; None if it is not known."""
    if value is None or name not in _FLOAT:
        return None
    try:
        filler = _FLOAT[name](value.filler)
    except (ValueError, OverflowError):
        filler = UNKNOWN
    return replace(value, filler=filler, never_negative=name in _NEVER_NEGATIVE)


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


def paddings(source: str, kernel: str) -> tuple[Padding, ...]:
    """The reductions of function `kernel` that masked lanes change, by line."""
    tree = parsed(source)
    return tuple(
        Padding(
            load_line=found.load.lineno,
            load=ast.unparse(found.load),
            filler=ast.unparse(other) if (other := argument_of(found.load, "other", 2)) is not None else "",
            line=found.call.lineno,
            reduction=ast.unparse(found.call),
            operation=f"tl.{found.name}",
            needed=NEUTRAL[found.name],
        )
        for found in reductions(tree, kernel)
    )


def _read(tree: ast.Module | None, kernel: str, pointers: frozenset[str] = frozenset()) -> _Reader:
    """What the first function of that name does; nothing if there is none."""
    nodes = ast.walk(tree) if tree is not None else ()
    function = next((n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == kernel), None)
    arguments = function.args.args if function is not None else []
    scalar = Value(Lanes(UNKNOWN, uniform=True))
    reader = _Reader(set(pointers), {argument.arg: scalar for argument in arguments})
    reader.block(function.body if function is not None else [])
    return reader


def reductions(tree: ast.Module | None, kernel: str) -> list[Reduction]:
    """The reductions of a function in `tree` that masked lanes change, by line."""
    found = _read(tree, kernel).reductions
    return [found[key] for key in sorted(found)]


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
        found = next(iter(reductions(tree, kernel)), None)
        if found is None:
            return ast.unparse(tree) if changes else None
        needed, load = NEUTRAL[found.name], found.load
        text = repr(needed) if math.isfinite(needed) else f"float('{needed}')"
        wanted = ast.parse(text, mode="eval").body
        other = argument_of(load, "other", 2)
        # The load's fill value for a maximum or minimum; else, or if that is done, a `tl.where`.
        if math.isinf(needed) and (other is None or ast.dump(other) != ast.dump(wanted)):
            load.keywords = [word for word in load.keywords if word.arg != "other"]
            del load.args[2:3]
            load.keywords.append(ast.keyword("other", wanted))
            _set_initial_value(tree, found, wanted)
        else:
            _mask(tree, found, wanted)
        tree = parsed(ast.unparse(ast.fix_missing_locations(tree)))
    return None


def _set_initial_value(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """Start a running maximum at `value`: `x = tl.zeros(shape, …)` becomes `tl.full(shape, value, …)`."""
    running = found.call.args[0]
    if not isinstance(running, ast.Name):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=running.id), *_],
                value=ast.Call(
                    func=ast.Attribute(attr="zeros" | "full") as function, args=[_, *more] as args
                ),
            ):
                if function.attr == "zeros":
                    function.attr = "full"
                    args.insert(1, value)
                elif more:
                    args[1] = value


def _mask(tree: ast.Module, found: Reduction, value: ast.expr) -> None:
    """Put `tl.where(mask, x, value)` around the reduced value, or around the addend of a running sum."""
    mask = argument_of(found.load, "mask", 1)
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


def narrow_pointers(source: str) -> frozenset[str]:
    """Parameters that point to 16-bit floats, from the signature that Inductor prints with a kernel."""
    return frozenset(name for name, type_ in signature_of(source).items() if type_ in ("*fp16", "*bf16"))


def narrow_sums(source: str, kernel: str, pointers: frozenset[str]) -> tuple[NarrowSum, ...]:
    """The 16-bit sums of function `kernel`, by line."""
    sums = _read(parsed(source), kernel, pointers).sums
    return tuple(sums[line] for line in sorted(sums))


def widened(source: str, kernel: str, pointers: frozenset[str]) -> str | None:
    """The source with `kernel` computing in float32; None if it has no 16-bit sum.

    `tl.store` converts stored values back to the dtype of the tensor. Comments are lost.
    """
    tree = parsed(source)
    reader = _read(tree, kernel, pointers)
    # A bitcast reads the bits of a 16-bit value: widening would change its meaning.
    if tree is None or not reader.sums or "bitcast" in source:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == kernel:
            _Widen(reader.pointers).visit(node)
            break
    return ast.unparse(ast.fix_missing_locations(tree))


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
