"""Index expressions as linear sums over pointers, loaded values and scalars, in elements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

TermKind = Literal["pointer", "load", "scalar", "other"]
_MAX_DEPTH = 60


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

    @property
    def number(self) -> Fraction | None:
        return self.constant if not self.terms else None

    def of(self, kind: TermKind) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.kind == kind)

    def unknown(self) -> Sum:
        """The same terms with unknown factors."""
        return Sum(dict.fromkeys(self.terms), None, self.wraps)


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
        if number is not None:
            scaled = {t: None if f is None else f * number for t, f in other.terms.items()}
            constant = None if other.constant is None else other.constant * number
            share: dict[Term, Fraction | None] = {}
            if other.terms:
                share = {term: None for term in one.terms if term not in scaled}
            if not other.terms and other.constant is not None:
                share = {t: None if f is None else f * other.constant for t, f in one.terms.items()}
                constant = None if one.constant is None else one.constant * other.constant
            return Sum({**scaled, **share}, constant, a.wraps or b.wraps)
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
    terms: dict[Term, Fraction | None] = {}
    for term in [*a.terms, *b.terms]:
        ours, theirs = a.terms.get(term, Fraction(0)), b.terms.get(term, Fraction(0))
        terms[term] = (
            ours if ours == theirs or term not in b.terms else theirs if term not in a.terms else None
        )
    return Sum(terms, a.constant if a.constant == b.constant else None, True)


Resolve = Callable[[str, int, int], "Sum | None"]
"""Maps (name, line of use, depth) to the sum that the name stands for; None for an unknown name."""

LOADS = frozenset({"load", "descriptor_load"})
_PASS_THROUGH = frozenset(
    {
        *("to", "cast", "int64_t", "int32_t", "static_cast", "multiple_of", "max_contiguous", "broadcast_to"),
        *("expand_dims", "reshape", "view", "full", "debug_barrier", "convert"),
    }
)
_CHOICES = frozenset({"where", "maximum", "minimum", "min", "max", "clamp"})


@dataclass
class Reader:
    """Turns Python expressions into sums. C++ expressions are rewritten to Python syntax first."""

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
                return found if found is not None else Sum({Term("other", name): Fraction(1)})
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
        return self._all(node, depth + 1)

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
        if name in _PASS_THROUGH:
            inner = owner if owner is not None else (arguments[0] if arguments else None)
            return self.read(inner, depth) if inner is not None else Sum(constant=None)
        if name in _CHOICES:
            choices = [self.read(a, depth) for a in (arguments[1:] if name == "where" else arguments)]
            return merge(choices[0], choices[1]) if len(choices) >= 2 else Sum(constant=None)
        found = Sum()
        for argument in ([owner] if owner is not None else []) + arguments:
            found = plus(found, self.read(argument, depth).unknown())
        # make_block_ptr, advance, make_tensor_descriptor: the pointer is one of the arguments
        return Sum({**found.terms, Term("other", name): None}, None, found.wraps)

    def _all(self, node: ast.expr, depth: int) -> Sum:
        found = Sum()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found = plus(found, self.read(child, depth).unknown())
        return found.unknown()


def callee(node: ast.Call) -> tuple[str, ast.expr | None]:
    """The name of the called function, and for a method call the object expression."""
    function = node.func
    if isinstance(function, ast.Name):
        return function.id, None
    if isinstance(function, ast.Attribute):
        module = isinstance(function.value, ast.Name) and function.value.id in ("tl", "triton", "libdevice")
        owner = function.value
        # `tl.math` and the like are modules too.
        nested = (
            isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "tl"
        )
        return function.attr, None if module or nested else owner
    return "", None
