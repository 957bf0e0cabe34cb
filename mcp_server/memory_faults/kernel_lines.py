"""Memory accesses on one line of a Triton or C++ kernel, with their addresses as linear sums in elements."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms import term as terms
from mcp_server.package.terms.program import read_program

TermKind = Literal["pointer", "load", "scalar", "other"]
_MAX_SOURCE = 400_000


@dataclass(frozen=True, slots=True)
class Term:
    """A value that an address depends on. `line` is the 1-based line of a load, 0 for other kinds."""

    kind: TermKind
    name: str
    line: int = 0


@dataclass(frozen=True)
class Sum:
    """`constant` plus the sum of factor * term. None stands for an unknown factor or constant.

    `wraps`: the expression has a choice such as `x + n if x < 0 else x`, which maps negative values up.
    """

    terms: Mapping[Term, int | None] = field(default_factory=dict)
    constant: int | None = 0
    wraps: bool = False

    @classmethod
    def single(cls, kind: TermKind, name: str) -> Sum:
        return cls({Term(kind, name): 1})

    def of(self, kind: TermKind) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.kind == kind)

    def unknown(self) -> Sum:
        """The same terms with unknown factors."""
        return Sum(dict.fromkeys(self.terms), None, self.wraps)

    def scaled(self, number: int) -> Sum:
        terms = {term: None if factor is None else factor * number for term, factor in self.terms.items()}
        return Sum(terms, None if self.constant is None else self.constant * number, self.wraps)


def plus(a: Sum, b: Sum, sign: int = 1) -> Sum:
    """`a + sign * b`."""
    terms = dict(a.terms)
    for term, factor in b.terms.items():
        old = terms.get(term, 0)
        terms[term] = None if factor is None or old is None else old + sign * factor
    constant = None if a.constant is None or b.constant is None else a.constant + sign * b.constant
    return Sum(terms, constant, a.wraps or b.wraps)


def times(a: Sum, b: Sum, values: Mapping[str, int]) -> Sum:
    """`a * b`. A side of known value scales the other side; its own factors become unknown."""
    for one, other in ((a, b), (b, a)):
        number = value_of(one, values)
        if number is None:
            continue
        if not other.terms and other.constant is not None:
            product = one.scaled(other.constant)
            return Sum(product.terms, product.constant, a.wraps or b.wraps)
        product = other.scaled(number)
        own = [term for term in one.terms if term not in product.terms] if other.terms else []
        return Sum({**product.terms, **dict.fromkeys(own)}, product.constant, a.wraps or b.wraps)
    return Sum(dict.fromkeys([*a.terms, *b.terms]), None, a.wraps or b.wraps)


def value_of(total: Sum, values: Mapping[str, int]) -> int | None:
    """The value of a sum whose terms are all scalars with a value; else None."""
    if total.constant is None:
        return None
    found = total.constant
    for term, factor in total.terms.items():
        if term.kind != "scalar" or factor is None or term.name not in values:
            return None
        found += factor * values[term.name]
    return found


def merge(a: Sum, b: Sum) -> Sum:
    """The result of a choice between `a` and `b`: all terms, with the factors on which both agree."""
    terms: dict[Term, int | None] = {**a.terms, **b.terms}
    for term in a.terms.keys() & b.terms.keys():
        if a.terms[term] != b.terms[term]:
            terms[term] = None
    return Sum(terms, a.constant if a.constant == b.constant else None, True)


LOADS = frozenset({"load", "descriptor_load"})
_PASS_THROUGH = frozenset(
    {
        *("to", "cast", "multiple_of", "max_contiguous", "broadcast_to"),
        *("expand_dims", "reshape", "view", "full", "debug_barrier"),
    }
)
_CHOICES = frozenset({"where", "maximum", "minimum", "min", "max", "clamp"})


def callee(node: ast.Call) -> tuple[str, ast.expr | None]:
    """The name of the called function, and for a method call the object expression."""
    match node.func:
        case ast.Name(id=name):
            return name, None
        case ast.Attribute(attr=name, value=ast.Name(id="tl" | "triton" | "libdevice")):
            return name, None
        case ast.Attribute(attr=name, value=ast.Attribute(value=ast.Name(id="tl"))):  # tl.math and the like
            return name, None
        case ast.Attribute(attr=name, value=owner):
            return name, owner
    return "", None


def argument_of(node: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument given by name or by position; None without one."""
    by_name = next((word.value for word in node.keywords if word.arg == name), None)
    return by_name if by_name is not None or len(node.args) <= position else node.args[position]


Limit = Literal["low", "high"]


@dataclass(frozen=True)
class LineAccess:
    """One memory access. `code` is the call, `address` the pointer expression as a sum.

    Values in the address that were loaded from memory are indices. `parameters` are its pointer parameters.
    `masked`: the access has a mask argument. `limits` are the sides on which the mask bounds a loaded index.
    """

    direction: str
    code: str
    line: int
    parameters: tuple[str, ...]
    address: Sum
    masked: bool = False
    limits: frozenset[Limit] = frozenset()


@dataclass(frozen=True)
class KernelUse:
    """A kernel at one launch. `values` holds its known scalar arguments and compile-time constants."""

    kernel: Kernel
    tensors: frozenset[str]
    scalars: frozenset[str]
    values: Mapping[str, int]


def cpp_accesses_on(use: KernelUse, line: int) -> tuple[LineAccess, ...]:
    """The accesses on a 1-based line of kernel.cpp."""
    kernel = use.kernel
    at = line - kernel.first_line + 1
    lines = kernel.source.split("\n")
    if not 1 <= at <= len(lines):
        return ()
    text = lines[at - 1].strip()
    places = {name: place for number, name, place in read_program(kernel).accesses if number == at}
    found = []
    for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text)):
        if name not in use.tensors or not re.search(rf"\b{name}\s*[\[+,)]", text):
            continue
        stored = re.match(rf"{name}\[.*\] = ", text) or re.search(rf"\.store\({name}\b", text)
        atomic = re.search(rf"atomic_add\w*(?:<[^()]*>)?\(&?{name}\b", text)
        direction = "atomic" if atomic else "write" if stored else "read"
        index = _sum_of(places[name], use) if name in places else Sum({Term("other", name): None}, None)
        if any((index.terms[load] or 0) < 0 for load in index.of("load")) and len(index.of("load")) > 1:
            index = index.unknown()  # of a difference no end of either element follows
        address = plus(Sum.single("pointer", name), index)
        found.append(LineAccess(direction, text[:500], line, (name,), address))
    return tuple(found)


def _sum_of(term: terms.Term, use: KernelUse) -> Sum:
    """A place in a C++ kernel. Known factors of loaded elements show what these may be."""
    match term:
        case terms.Number(value=int() as number):
            return Sum(constant=number)
        case terms.Position(name=name):
            return Sum.single("other", name)
        case terms.Size(name=name):
            return Sum.single("scalar" if name in use.scalars else "other", name)
        case terms.Element(parameter=name, line=line):
            return Sum({Term("load", name, line + use.kernel.first_line - 1): 1})
        case terms.Apply(op="cast", args=(inner,)):
            return _sum_of(inner, use)
        case terms.Apply(op="add" | "sub" | "mul" as op, args=(left, right)):
            first, second = _sum_of(left, use), _sum_of(right, use)
            if op == "mul":
                return times(first, second, use.values)
            return plus(first, second, 1 if op == "add" else -1)
        case terms.Apply() if (index := terms.unwrapped(term)) is not term:
            found = _sum_of(index, use)
            return Sum(found.terms, found.constant, wraps=True)
    total = Sum()
    for each in terms.parts(term):
        if isinstance(each, terms.Element | terms.Size | terms.Position):
            total = plus(total, _sum_of(each, use))
    return total.unknown()


def triton_accesses_on(use: KernelUse, line: int | None) -> tuple[LineAccess, ...]:
    """The loads, stores and atomics on a 1-based line, or all; none if the source cannot be parsed."""
    try:
        return tuple(_triton_accesses(use, line))
    except RecursionError:
        return ()


def _triton_accesses(use: KernelUse, line: int | None) -> Iterator[LineAccess]:
    tree = parsed(use.kernel.source)
    nodes = list(ast.walk(tree)) if tree is not None else []
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    text = textwrap.dedent(use.kernel.source)
    for function in functions.values():
        scope = _Scope(use, tree, functions, function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if line is not None and not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            name = callee(node)[0]
            direction = {"load": "read", "store": "write"}.get(name)
            direction = "atomic" if name.startswith("atomic_") else direction
            if direction is None:
                continue
            address = scope.read(node.args[0])
            mask = argument_of(node, "mask", 1 if direction == "read" else 2)
            yield LineAccess(
                direction=direction,
                code=" ".join((ast.get_source_segment(text, node) or "").split())[:500],
                line=node.lineno,
                parameters=tuple(term.name for term in address.of("pointer")),
                address=address,
                masked=not (mask is None or (isinstance(mask, ast.Constant) and mask.value is None)),
                limits=scope.limits(mask, frozenset(address.of("load"))),
            )


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a kernel's source; None if it does not parse or is too long."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _MAX_SOURCE else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Scope:
    """Turns expressions of one function into sums.

    A name stands for what was last assigned to it, else for the caller's argument, else for a constant of the
    module. `functions` are all those of the source, which may call each other; `outer` callers were followed.
    """

    def __init__(
        self,
        use: KernelUse,
        tree: ast.Module | None,
        functions: Mapping[str, ast.FunctionDef],
        function: ast.FunctionDef,
        outer: int = 0,
    ) -> None:
        self.use, self.tree, self.functions, self.function, self.outer = use, tree, functions, function, outer
        self.parameters = [argument.arg for argument in function.args.args]
        self.assigned: dict[str, dict[int, ast.expr | None]] = {}  # by name and line
        for line, name, value in _assignments(ast.walk(function)):
            self.assigned.setdefault(name, {})[line] = value
        self._known: dict[tuple[str, int], Sum] = {}

    def read(self, node: ast.expr) -> Sum:
        match node:
            case ast.Constant(value=bool()):
                return Sum(constant=None)
            case ast.Constant(value=int() as number):
                return Sum(constant=number)
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)) if name not in ("tl", "triton"):
                return self._resolve(name, node.lineno)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return plus(self.read(left), self.read(right))
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return plus(self.read(left), self.read(right), -1)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return times(self.read(left), self.read(right), self.use.values)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return plus(Sum(), self.read(operand), -1)
            case ast.Subscript(value=value):
                return self.read(value)
            case ast.Call():
                return self._call(node)
            case ast.IfExp(body=body, orelse=orelse):
                return merge(self.read(body), self.read(orelse))
        # Any other operation makes the factors unknown.
        return self._all([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])

    def _call(self, node: ast.Call) -> Sum:
        name, owner = callee(node)
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg not in ("mask", "other"))]
        if name in LOADS and arguments:
            pointers = self.read(arguments[0]).of("pointer")
            return Sum({Term("load", p.name, node.lineno): 1 for p in pointers}, 0)
        operands = [*([owner] if owner is not None else []), *arguments]
        if name in _PASS_THROUGH:
            return self.read(operands[0]) if operands else Sum(constant=None)
        if name in _CHOICES:
            choices = [self.read(argument) for argument in arguments[name == "where" :]]
            return merge(choices[0], choices[1]) if len(choices) >= 2 else Sum(constant=None)
        found = self._all(operands)
        # make_block_ptr, advance, make_tensor_descriptor: the pointer is one of the arguments
        return Sum({**found.terms, Term("other", name): None}, None, found.wraps)

    def _all(self, nodes: list[ast.expr]) -> Sum:
        found = Sum()
        for node in nodes:
            found = plus(found, self.read(node).unknown())
        return found.unknown()

    def limits(self, mask: ast.expr | None, loads: frozenset[Term]) -> frozenset[Limit]:
        """The sides on which a mask bounds what depends on these loads; only tests joined by `&` count."""
        match mask:
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
                return self.limits(left, loads) | self.limits(right, loads)
            case ast.Name(id=name):
                line = self._last(name, mask.lineno)
                return self.limits(self.assigned[name][line], loads) if line else frozenset()
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
                small, large = left, right
            case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
                small, large = right, left
            case _:
                return frozenset()
        sides: list[tuple[ast.expr, Limit]] = [(small, "high"), (large, "low")]
        return frozenset(side for part, side in sides if loads & set(self.read(part).of("load")))

    def _last(self, name: str, line: int) -> int:
        """The line of the last assignment to a name above a line; 0 without one."""
        return max((at for at in self.assigned.get(name, ()) if at < line), default=0)

    def _resolve(self, name: str, line: int) -> Sum:
        if at := self._last(name, line):
            if (name, at) not in self._known:
                value = self.assigned[name][at]
                self._known[name, at] = Sum({Term("other", name): None}, None)  # for what depends on itself
                if value is not None:
                    self._known[name, at] = self.read(value)
            return self._known[name, at]
        if name in self.parameters:
            return self._parameter(name)
        for _, constant, value in _assignments(self.tree.body if self.tree is not None else ()):
            if constant == name and isinstance(value, ast.Constant) and isinstance(value.value, int):
                return Sum(constant=value.value)  # a module-level integer such as `NAME = 16`
        return Sum.single("other", name)

    def _parameter(self, name: str) -> Sum:
        """What the first caller in the source passes; of the kernel itself, what the launch passes."""
        use = self.use
        for caller in self.functions.values() if self.outer < 8 else ():
            for node in ast.walk(caller):
                if isinstance(node, ast.Call) and callee(node)[0] == self.function.name:
                    argument = argument_of(node, name, self.parameters.index(name))
                    scope = _Scope(use, self.tree, self.functions, caller, self.outer + 1)
                    return scope.read(argument) if argument is not None else Sum.single("other", name)
        if name in use.tensors:
            return Sum.single("pointer", name)
        if name in use.scalars:
            return Sum.single("scalar", name)
        return Sum(constant=use.values[name]) if name in use.values else Sum.single("other", name)


def _assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str, ast.expr | None]]:
    """Line, name and expression of each assignment; None for the variable of a loop."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name):
                        yield node.lineno, target.id, value
            case ast.Assign(targets=targets, value=value):
                names = (each for target in targets for each in ast.walk(target))
                yield from ((node.lineno, each.id, value) for each in names if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield node.lineno, name, value
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                before = ast.Name(name, lineno=node.lineno)
                yield node.lineno, name, ast.BinOp(before, op, value)
            case ast.For(target=ast.Name(id=name)):
                yield node.lineno, name, None
