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

from mcp_server.package.kernels import signature_of
from mcp_server.package.terms.evaluate import FUNCTIONS, applied
from mcp_server.package.terms.triton import argument_of, parsed

UNKNOWN = math.nan
_OF_ONE = frozenset({"exp", "exp2", "log", "sqrt", "abs", "sin", "cos", "sigmoid"})
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid"})
NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}
_NARROW = frozenset({"float16", "bfloat16"})
_WIDE = frozenset({"float32", "float64"})
_SUMS = frozenset({"sum", "cumsum"})


@dataclass(frozen=True)
class Value:
    """What is known of a value.

    `uniform`: all lanes are equal, and `filler` is the number. Otherwise the lanes outside `mask` hold
    `filler`, and `load` is the load that set them. A `filler` of NaN is unknown; None: the lanes cannot be
    followed. `narrow`: 16 bits; None: unknown width, or no float.
    """

    filler: float | None = None
    uniform: bool = False
    never_negative: bool = False
    load: ast.Call | None = None
    mask: str = ""
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
    match op:
        case ast.Mult():
            return 0.0 if 0 in (a, b) else a * b
        case ast.Div():
            return 0.0 if a == 0 else a / b if b else UNKNOWN
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
    return UNKNOWN


def combined(a: Value, b: Value, filler: Callable[[float, float], float], never_negative: bool) -> Value:
    """Both values element by element. The lanes are followed only where both are masked alike."""
    narrow = b.narrow if a.narrow is None else a.narrow if b.narrow is None else a.narrow and b.narrow
    alike = a.uniform or b.uniform or a.mask == b.mask
    if a.filler is None or b.filler is None or not alike:
        return Value(narrow=narrow)
    return replace(
        b if a.uniform else a,
        filler=filler(a.filler, b.filler),
        uniform=a.uniform and b.uniform,
        never_negative=never_negative,
        narrow=narrow,
    )


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
    load_node: ast.Call = field(repr=False)
    call_node: ast.Call = field(repr=False)


@dataclass(frozen=True)
class NarrowSum:
    """A sum in 16 bits: the 1-based line, and the summing expression."""

    line: int
    text: str


class _Reader:
    """Reads the first function named `kernel`. `pointers` are the names of addresses in 16-bit tensors."""

    def __init__(self, tree: ast.Module | None, kernel: str, pointers: frozenset[str] = frozenset()) -> None:
        nodes = ast.walk(tree) if tree is not None else ()
        functions = (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == kernel)
        self.function = next(functions, None)
        self.pointers = set(pointers)
        self.values: dict[str, Value] = {}
        self.paddings: dict[tuple[int, int], Padding] = {}
        self.sums: dict[int, NarrowSum] = {}
        if self.function is not None:
            scalar = Value(UNKNOWN, uniform=True)
            self.values = {argument.arg: scalar for argument in self.function.args.args}
            self.block(self.function.body)

    def block(self, body: list[ast.stmt], *, loop: bool = False) -> None:
        for node in body:
            match node:
                case ast.Assign(targets=targets, value=assigned):
                    value = self.read(assigned)
                    for target in targets:
                        if isinstance(target, ast.Name):
                            self.values[target.id] = value
                            self.pointers |= {target.id} if self.points(assigned) else set()
                case ast.AugAssign(target=target, op=op, value=operand):
                    value = self.arithmetic(op, self.read(target), self.read(operand))
                    if isinstance(target, ast.Name):
                        self.values[target.id] = value
                        sums = loop and isinstance(op, ast.Add) and target.id not in self.pointers
                        if sums and value.narrow:
                            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
                case ast.For(body=inner) | ast.While(body=inner):
                    self.block(inner, loop=True)
                    self.block(inner, loop=True)  # a loop starts with the values of its last iteration
                case ast.If(body=inner, orelse=other):
                    self.block([*inner, *other], loop=loop)
                case _:
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
            return Value(literal, uniform=True, never_negative=literal >= 0)
        match node:
            case ast.Name(id=name):
                return self.values.get(name, Value())
            case ast.BinOp(left=left, op=op, right=right):
                same = ast.dump(left) == ast.dump(right)
                return self.arithmetic(op, self.read(left), self.read(right), same)
            case ast.UnaryOp(op=op, operand=operand):
                value = self.read(operand)
                if isinstance(op, ast.USub) and value.filler is not None:
                    return replace(value, filler=-value.filler, never_negative=False)
                return Value(narrow=value.narrow)
            case ast.Call():
                return self.call(node)
        self.read_children(node)
        return Value()

    def call(self, node: ast.Call) -> Value:
        name, dtype = called(node), _dtype(node)
        if name == "to" and isinstance(node.func, ast.Attribute):
            value = self.read(node.func.value)
            return value if dtype is None else replace(value, narrow=dtype)
        arguments = [self.read(argument) for argument in node.args]
        first, *others = arguments or [Value()]
        if name == "load":
            return self.loaded(node)
        if name in ("zeros", "full"):
            filler = 0.0 if name == "zeros" else number(node.args[1]) if others else None
            return Value(filler, uniform=filler is not None, narrow=dtype)
        if name == "where" and len(arguments) == 3:
            _, value, other = arguments
            replaced = combined(value, other, lambda _old, new: new, never_negative=False)
            # Only with the mask of the load it replaces the filler of all its lanes.
            again = other.uniform and not value.uniform and ast.dump(node.args[0]) == value.mask
            known = again and replaced.filler is not None and not math.isnan(replaced.filler)
            return replaced if known else Value(narrow=replaced.narrow)
        if name in _SUMS and first.narrow and dtype is None:
            self.sums[node.lineno] = NarrowSum(node.lineno, ast.unparse(node))
        if name in NEUTRAL:
            self.check(node, name, first)
            return Value(UNKNOWN, uniform=True, narrow=first.narrow)
        if name in ("maximum", "minimum") and len(arguments) == 2:
            other = others[0]
            # The maximum with a value >= 0 is never negative.
            clamped = name == "maximum" and other.uniform and other.never_negative
            positive = clamped or (first.never_negative and other.never_negative)
            return combined(first, other, FUNCTIONS[name], positive)
        if first.filler is None or name not in _OF_ONE:
            return Value(narrow=first.narrow)
        filler = float(applied(name, [first.filler], "float64"))
        return replace(first, filler=filler, never_negative=name in _NEVER_NEGATIVE)

    def loaded(self, node: ast.Call) -> Value:
        narrow = bool(node.args) and self.points(node.args[0])
        mask, other = argument_of(node, "mask", 1), argument_of(node, "other", 2)
        if mask is None:
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} - {"tl"}
            scalar = all(self.values.get(name, Value()).uniform for name in names)
            return Value(UNKNOWN if scalar else None, uniform=scalar, narrow=narrow)
        filler = UNKNOWN if other is None else number(other)
        return Value(filler, load=node, mask=ast.dump(mask), narrow=narrow)

    def check(self, node: ast.Call, name: str, value: Value) -> None:
        """Record a reduction over lanes that do not hold its neutral value."""
        load, neutral = value.load, NEUTRAL[name]
        if load is None or value.uniform or value.filler is None or value.filler == neutral:
            return
        if not (value.never_negative and value.filler == 0 and "max" in name):
            other = argument_of(load, "other", 2)
            self.paddings[node.lineno, node.col_offset] = Padding(
                load_line=load.lineno,
                load=ast.unparse(load),
                filler=ast.unparse(other) if other is not None else "",
                line=node.lineno,
                reduction=ast.unparse(node),
                operation=f"tl.{name}",
                needed=neutral,
                load_node=load,
                call_node=node,
            )

    def arithmetic(self, op: ast.operator, left: Value, right: Value, same: bool = False) -> Value:
        square = same and isinstance(op, ast.Mult)
        both = left.never_negative and right.never_negative
        positive = square or (both and isinstance(op, (ast.Add, ast.Mult, ast.Div)))
        return combined(left, right, lambda x, y: computed(op, x, y), positive)


def _dtype(node: ast.Call) -> bool | None:
    """Whether the dtype among the arguments has 16 bits; None without one."""
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


def called(node: ast.Call) -> str:
    """The attribute name of a call such as `tl.load(...)`; empty for a plain name."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def paddings(source: str, kernel: str) -> tuple[Padding, ...]:
    """The reductions of function `kernel` that masked lanes change, by line."""
    found = _Reader(parsed(source), kernel).paddings
    return tuple(found[place] for place in sorted(found))


_MAX_CHANGES = 8  # rewrites of one kernel


def repaired(source: str, kernel: str) -> str | None:
    """The source with neutral fill values for all reductions of `kernel`; None if nothing can be changed.

    Comments are lost.
    """
    tree = parsed(source)
    for changes in range(_MAX_CHANGES):
        if tree is None:
            return None
        found = _Reader(tree, kernel).paddings
        if not found:
            return ast.unparse(tree) if changes else None
        padding = found[min(found)]
        needed, load = padding.needed, padding.load_node
        text = repr(needed) if math.isfinite(needed) else f"float('{needed}')"
        wanted = ast.parse(text, mode="eval").body
        # The load's fill value for a maximum or minimum; else, or if that is done, a `tl.where`.
        if math.isinf(needed) and padding.filler != text:
            load.keywords = [word for word in load.keywords if word.arg != "other"]
            del load.args[2:3]
            load.keywords.append(ast.keyword("other", wanted))
            _set_initial_value(tree, padding.call_node, wanted)
        else:
            _mask(tree, padding, wanted)
        tree = parsed(ast.unparse(ast.fix_missing_locations(tree)))
    return None


def _set_initial_value(tree: ast.Module, reduction: ast.Call, value: ast.expr) -> None:
    """Start a running maximum at `value`: `x = tl.zeros(shape, …)` becomes `tl.full(shape, value, …)`."""
    running = reduction.args[0]
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


def _mask(tree: ast.Module, padding: Padding, value: ast.expr) -> None:
    """Put `tl.where(mask, x, value)` around the reduced value, or around the addend of a running sum."""
    mask = argument_of(padding.load_node, "mask", 1)
    assert mask is not None, "only masked loads are found"

    def where(operand: ast.expr) -> ast.expr:
        function = ast.Attribute(ast.Name("tl", ast.Load()), "where", ast.Load())
        return ast.Call(function, [mask, operand, value], [])

    reduced = padding.call_node.args
    running = reduced[0].id if isinstance(reduced[0], ast.Name) else None
    added = False
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add()) if name == running:
                node.value, added = where(node.value), True
    if not added:
        reduced[0] = where(reduced[0])


def narrow_pointers(source: str) -> frozenset[str]:
    """Parameters that point to 16-bit floats, from the signature that Inductor prints with a kernel."""
    return frozenset(name for name, type_ in signature_of(source).items() if type_ in ("*fp16", "*bf16"))


def narrow_sums(source: str, kernel: str, pointers: frozenset[str]) -> tuple[NarrowSum, ...]:
    """The 16-bit sums of function `kernel`, by line."""
    sums = _Reader(parsed(source), kernel, pointers).sums
    return tuple(sums[line] for line in sorted(sums))


def widened(source: str, kernel: str, pointers: frozenset[str]) -> str | None:
    """The source with `kernel` computing in float32; None if it has no 16-bit sum.

    `tl.store` converts stored values back to the dtype of the tensor. Comments are lost.
    """
    tree = parsed(source)
    reader = _Reader(tree, kernel, pointers)
    # A bitcast reads the bits of a 16-bit value: widening would change its meaning.
    if tree is None or reader.function is None or not reader.sums or "bitcast" in source:
        return None
    _Widen(reader.pointers).visit(reader.function)
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
