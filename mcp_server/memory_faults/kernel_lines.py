"""Memory accesses on one line of a Triton or C++ kernel, with their addresses as linear sums in elements."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms import term as terms
from mcp_server.package.terms.program import read_program

TermKind = Literal["pointer", "load", "scalar", "other"]
_MAX_DEPTH = 60
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

    terms: Mapping[Term, Fraction | None] = field(default_factory=dict)
    constant: Fraction | None = Fraction(0)
    wraps: bool = False

    @classmethod
    def single(cls, kind: TermKind, name: str) -> Sum:
        return cls({Term(kind, name): Fraction(1)})

    def of(self, kind: TermKind) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.kind == kind)

    def unknown(self) -> Sum:
        """The same terms with unknown factors."""
        return Sum(dict.fromkeys(self.terms), None, self.wraps)

    def scaled(self, number: Fraction) -> Sum:
        terms = {term: None if factor is None else factor * number for term, factor in self.terms.items()}
        return Sum(terms, None if self.constant is None else self.constant * number, self.wraps)


def plus(a: Sum, b: Sum, sign: int = 1) -> Sum:
    """`a + sign * b`."""
    terms = dict(a.terms)
    for term, factor in b.terms.items():
        old = terms.get(term, Fraction(0))
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


def value_of(total: Sum, values: Mapping[str, int]) -> Fraction | None:
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
    terms: dict[Term, Fraction | None] = {**a.terms, **b.terms}
    for term in a.terms.keys() & b.terms.keys():
        if a.terms[term] != b.terms[term]:
            terms[term] = None
    return Sum(terms, a.constant if a.constant == b.constant else None, True)


Resolve = Callable[[str, int, int], "Sum | None"]
"""Maps (name, line of use, depth) to the sum that the name stands for; None for an unknown name."""

LOADS = frozenset({"load", "descriptor_load"})
_PASS_THROUGH = frozenset(
    {
        *("to", "cast", "multiple_of", "max_contiguous", "broadcast_to"),
        *("expand_dims", "reshape", "view", "full", "debug_barrier"),
    }
)
_CHOICES = frozenset({"where", "maximum", "minimum", "min", "max", "clamp"})


@dataclass
class Reader:
    """Turns Python expressions into sums."""

    resolve: Resolve
    values: Mapping[str, int]

    def read(self, node: ast.expr, depth: int = 0) -> Sum:
        if depth > _MAX_DEPTH:
            return Sum(constant=None)
        match node:
            case ast.Constant(value=bool()):
                return Sum(constant=None)
            case ast.Constant(value=int() as number):
                return Sum(constant=Fraction(number))
            case ast.Name(id=name):
                found = self.resolve(name, node.lineno, depth + 1)
                return found if found is not None else Sum.single("other", name)
            case ast.BinOp(left=left, op=op, right=right):
                return self.operation(op, self.read(left, depth + 1), self.read(right, depth + 1))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return plus(Sum(), self.read(operand, depth + 1), -1)
            case ast.Subscript(value=value):
                return self.read(value, depth + 1)
            case ast.Call():
                return self._call(node, depth + 1)
            case ast.Attribute(value=ast.Name(id=name)) if name not in ("tl", "triton"):
                return self.read(ast.Name(id=name, lineno=node.lineno), depth + 1)
            case ast.IfExp(body=body, orelse=orelse):
                return merge(self.read(body, depth + 1), self.read(orelse, depth + 1))
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return self._all(children, depth + 1).unknown()

    def operation(self, op: ast.operator, left: Sum, right: Sum) -> Sum:
        """Sums and products keep factors; any other operation makes them unknown."""
        match op:
            case ast.Add():
                return plus(left, right)
            case ast.Sub():
                return plus(left, right, -1)
            case ast.Mult():
                return times(left, right, self.values)
        return plus(left.unknown(), right.unknown())

    def _call(self, node: ast.Call, depth: int) -> Sum:
        name, owner = callee(node)
        arguments = [*node.args, *(k.value for k in node.keywords if k.arg not in ("mask", "other"))]
        if name in LOADS and arguments:
            pointers = self.read(arguments[0], depth).of("pointer")
            return Sum({Term("load", p.name, node.lineno): Fraction(1) for p in pointers}, Fraction(0))
        operands = [*([owner] if owner is not None else []), *arguments]
        if name in _PASS_THROUGH:
            return self.read(operands[0], depth) if operands else Sum(constant=None)
        if name in _CHOICES:
            choices = [self.read(a, depth) for a in (arguments[1:] if name == "where" else arguments)]
            return merge(choices[0], choices[1]) if len(choices) >= 2 else Sum(constant=None)
        found = self._all(operands, depth)
        # make_block_ptr, advance, make_tensor_descriptor: the pointer is one of the arguments
        return Sum({**found.terms, Term("other", name): None}, None, found.wraps)

    def _all(self, nodes: list[ast.expr], depth: int) -> Sum:
        found = Sum()
        for node in nodes:
            found = plus(found, self.read(node, depth).unknown())
        return found


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

    `parameters` are the pointer parameters in the address. `masked`: the access has a mask argument.
    `limits` are the sides on which the mask bounds a loaded index of the address.
    """

    direction: str
    code: str
    line: int
    parameters: tuple[str, ...]
    address: Sum
    masked: bool = False
    limits: frozenset[Limit] = frozenset()

    @property
    def loads(self) -> tuple[Term, ...]:
        """Values in the address that were loaded from memory: indices."""
        return self.address.of("load")

    @property
    def scalars(self) -> tuple[Term, ...]:
        return self.address.of("scalar")


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
            return Sum(constant=Fraction(number))
        case terms.Position(name=name):
            return Sum.single("other", name)
        case terms.Size(name=name):
            return Sum.single("scalar" if name in use.scalars else "other", name)
        case terms.Element(parameter=name, line=line):
            return Sum({Term("load", name, line + use.kernel.first_line - 1): Fraction(1)})
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


def triton_accesses_on(use: KernelUse, line: int) -> tuple[LineAccess, ...]:
    """The loads, stores and atomics on a 1-based line of the source; empty if it cannot be parsed."""
    return tuple(access for access, first, last in every_access(use) if first <= line <= last)


def every_access(use: KernelUse) -> tuple[tuple[LineAccess, int, int], ...]:
    """Every access of a Triton kernel with its first and last line; none if the source cannot be parsed."""
    tree = parsed(use.kernel.source)
    if tree is None:
        return ()
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    text, found = textwrap.dedent(use.kernel.source), []
    for function in functions.values():
        scope = _Scope(use, tree, functions, function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = callee(node)[0]
            direction = {"load": "read", "store": "write"}.get(name)
            direction = "atomic" if name.startswith("atomic_") else direction
            if direction is None:
                continue
            address = scope.reader.read(node.args[0])
            mask = argument_of(node, "mask", 1 if direction == "read" else 2)
            access = LineAccess(
                direction=direction,
                code=" ".join((ast.get_source_segment(text, node) or "").split())[:500],
                line=node.lineno,
                parameters=tuple(term.name for term in address.of("pointer")),
                address=address,
                masked=not (mask is None or (isinstance(mask, ast.Constant) and mask.value is None)),
                limits=scope.limits(mask, frozenset(address.of("load"))) if mask is not None else frozenset(),
            )
            found.append((access, node.lineno, node.end_lineno or node.lineno))
    return tuple(found)


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a kernel's source; None if it does not parse or is too long."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _MAX_SOURCE else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class _Scope:
    """Resolves names of one function: assignments, then the caller's arguments, then module constants.

    `functions` are all those of the source, which may call each other.
    """

    def __init__(
        self,
        use: KernelUse,
        tree: ast.Module,
        functions: Mapping[str, ast.FunctionDef],
        function: ast.FunctionDef,
        outer: int = 0,
    ) -> None:
        self.use, self.tree, self.functions, self.function, self.outer = use, tree, functions, function, outer
        self.reader = Reader(self._resolve, use.values)
        self.parameters = [argument.arg for argument in function.args.args]
        self.assignments: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(function):
            for target in _targets(node):
                self.assignments.setdefault(target, []).append(node)  # type: ignore[arg-type]
        self._busy: set[tuple[str, int]] = set()

    def limits(self, mask: ast.expr, loads: frozenset[Term], depth: int = 0) -> frozenset[Limit]:
        """The sides on which a mask bounds what depends on these loads; only tests joined by `&` count."""
        match mask:
            case ast.BinOp(left=left, op=ast.BitAnd(), right=right) if depth < _MAX_DEPTH:
                return self.limits(left, loads, depth + 1) | self.limits(right, loads, depth + 1)
            case ast.Name(id=name) if depth < _MAX_DEPTH:
                node = self._last(name, mask.lineno)
                value = _value_for(name, node) if node is not None else None
                return self.limits(value, loads, depth + 1) if value is not None else frozenset()
            case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
                small, large = left, right
            case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
                small, large = right, left
            case _:
                return frozenset()
        sides: list[tuple[ast.expr, Limit]] = [(small, "high"), (large, "low")]
        return frozenset(side for part, side in sides if loads & set(self.reader.read(part).of("load")))

    def _last(self, name: str, line: int) -> ast.stmt | None:
        """The last assignment to a name above a line."""
        above = [n for n in self.assignments.get(name, []) if n.lineno < line]
        return max(above, key=lambda n: n.lineno, default=None)

    def _resolve(self, name: str, line: int, depth: int) -> Sum | None:
        node = self._last(name, line)
        if node is not None:
            return self._assigned(name, node, depth)
        if name in self.parameters:
            return self._parameter(name, depth)
        for node in self.tree.body:  # a module-level integer such as `NAME = 16`
            if name in _targets(node) and isinstance(value := _value_for(name, node), ast.Constant):
                return Sum(constant=Fraction(value.value)) if isinstance(value.value, int) else None
        return None

    def _assigned(self, name: str, node: ast.stmt, depth: int) -> Sum | None:
        if (name, node.lineno) in self._busy:
            return None
        self._busy.add((name, node.lineno))
        try:
            if isinstance(node, ast.AugAssign):
                before = self._resolve(name, node.lineno, depth) or Sum({Term("other", name): None})
                return self.reader.operation(node.op, before, self.reader.read(node.value, depth))
            if isinstance(node, ast.For):
                return Sum({Term("other", name): None}, None)
            value = _value_for(name, node)
            return self.reader.read(value, depth) if value is not None else None
        finally:
            self._busy.discard((name, node.lineno))

    def _parameter(self, name: str, depth: int) -> Sum | None:
        """What the first caller in the source passes; of the kernel itself, what the launch passes."""
        use = self.use
        for caller in self.functions.values() if self.outer < 8 else ():
            for node in ast.walk(caller):
                if isinstance(node, ast.Call) and callee(node)[0] == self.function.name:
                    argument = argument_of(node, name, self.parameters.index(name))
                    scope = _Scope(use, self.tree, self.functions, caller, self.outer + 1)
                    return scope.reader.read(argument, depth) if argument is not None else None
        if name in use.tensors:
            return Sum.single("pointer", name)
        if name in use.scalars:
            return Sum.single("scalar", name)
        return Sum(constant=Fraction(use.values[name])) if name in use.values else None


def _targets(node: ast.AST) -> list[str]:
    match node:
        case ast.Assign(targets=targets):
            return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        case (
            ast.AnnAssign(target=ast.Name(id=name))
            | ast.AugAssign(target=ast.Name(id=name))
            | ast.For(target=ast.Name(id=name))
        ):
            return [name]
    return []


def _value_for(name: str, node: ast.AST) -> ast.expr | None:
    """The expression that a statement assigns to `name`; tuples are unpacked element by element."""
    if isinstance(node, ast.AnnAssign):
        return node.value
    if not isinstance(node, ast.Assign):
        return None
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = zip(target.elts, node.value.elts, strict=False)
        return next((v for t, v in pairs if isinstance(t, ast.Name) and t.id == name), node.value)
    return node.value
