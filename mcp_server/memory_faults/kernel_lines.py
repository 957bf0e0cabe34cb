"""Memory accesses on one line of a Triton or C++ kernel, with their addresses as linear sums in elements."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mcp_server.package.assertion import generated_line
from mcp_server.package.kernels import Kernel
from mcp_server.package.terms import term as terms
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.syntax import Call
from mcp_server.package.terms.translate import Lookup, Translator
from mcp_server.package.terms.triton import Reader, accesses_in, argument_of, flat, parsed

TermKind = Literal["pointer", "load", "scalar", "other"]
_DIRECTIONS = {"load": "read", "store": "write", "update": "atomic"}


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


def plus(a: Sum, b: Sum) -> Sum:
    terms = dict(a.terms)
    for term, factor in b.terms.items():
        old = terms.get(term, 0)
        terms[term] = None if factor is None or old is None else old + factor
    constant = None if a.constant is None or b.constant is None else a.constant + b.constant
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
    sums: dict[terms.Term, Sum] = field(default_factory=dict, repr=False)  # each shared term is read once


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
    """A place as a sum. Known factors of loaded elements show what these may be."""
    if term not in use.sums:
        use.sums[term] = _summed(term, use)
    return use.sums[term]


def _summed(term: terms.Term, use: KernelUse) -> Sum:
    match term:
        case terms.Number(value=int() as number) if not isinstance(number, bool):
            return Sum(constant=number)
        case terms.Position(name=name):
            return Sum({Term("other", name): 1}, None)  # a mask may let it begin anywhere
        case terms.Size(name=name):
            if name in use.tensors:
                return Sum.single("pointer", name)
            if name in use.scalars or name not in use.values:
                return Sum.single("scalar" if name in use.scalars else "other", name)
            return Sum(constant=use.values[name])
        case terms.Element(parameter=name, line=line):
            return Sum({Term("load", name, generated_line(use.kernel, line)): 1})
        case terms.Apply(op="cast", args=(inner,)):
            return _sum_of(inner, use)
        case terms.Apply(op="neg", args=(inner,)):
            return _sum_of(inner, use).scaled(-1)
        case terms.Apply(op="add" | "sub" | "mul" as op, args=(left, right)):
            first, second = _sum_of(left, use), _sum_of(right, use)
            if op == "mul":
                return times(first, second, use.values)
            return plus(first, second if op == "add" else second.scaled(-1))
        case terms.Apply(op="where", args=(_, first_choice, second_choice)):
            index = terms.unwrapped(term)
            either = (first_choice, second_choice) if index is term else (index, index)
            return merge(*(_sum_of(each, use) for each in either))
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
    tree, text = parsed(use.kernel.source), textwrap.dedent(use.kernel.source)
    nodes = ast.walk(tree) if tree is not None else ()
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        reader = _Reader(use, tree, function)
        for kind, node, mask in accesses_in(function):
            if line is not None and not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            address = _sum_of(reader.value(node.args[0], node.lineno), use)
            test = reader.value(mask, node.lineno) if mask is not None else None
            yield LineAccess(
                direction=_DIRECTIONS[kind],
                code=" ".join((ast.get_source_segment(text, node) or "").split())[:500],
                line=node.lineno,
                parameters=tuple(term.name for term in address.of("pointer")),
                address=address,
                masked=mask is not None,
                limits=_limits(test, frozenset(address.of("load")), use),
            )


def _limits(test: terms.Term | None, loads: frozenset[Term], use: KernelUse) -> frozenset[Limit]:
    """The sides on which a mask bounds what depends on these loads; only tests joined by `&` count."""
    match test:
        case terms.Apply(op="and" | "bitand", args=(left, right)):
            return _limits(left, loads, use) | _limits(right, loads, use)
        case (
            terms.Apply(op="lt" | "le", args=(small, large))
            | terms.Apply(op="gt" | "ge", args=(large, small))
        ):
            sides: list[tuple[terms.Term, Limit]] = [(small, "high"), (large, "low")]
            return frozenset(side for part, side in sides if loads & set(_sum_of(part, use).of("load")))
    return frozenset()


class _Translator(Translator):
    """What is loaded is an element of the first tensor in its address, wherever it is, under any mask."""

    def _call(self, call: Call, look: Lookup, line: int) -> terms.Term:
        if call.name.rpartition(".")[2] != "load" or not (call.receiver or call.args):
            return super()._call(call, look, line)
        address = terms.parts(self.term(call.receiver or call.args[0], look, line))
        names = (each.name for each in address if isinstance(each, terms.Size) and each.name in self.pointers)
        name = next(names, None)
        return terms.Element(name, terms.Number(0, "int64"), "int64", line) if name else terms.Unread("load")


class _Reader(Reader):
    """Follows names of one function of a source, whose functions may call each other.

    A tensor is a name in a sum. A parameter of a helper is what its first caller passes; `outer` callers were
    followed.
    """

    def __init__(
        self, use: KernelUse, tree: ast.Module | None, function: ast.FunctionDef, outer: int = 0
    ) -> None:
        super().__init__(use.kernel, function)
        self.use, self.tree, self.function, self.outer = use, tree, function, outer
        self.parameters = [argument.arg for argument in function.args.args]
        self.statements = tuple(flat(function.body, while_loops=True))
        pointers = dict.fromkeys(use.tensors, "int64")
        self.translator = _Translator(pointers, masks_hold=use.kernel.kind != "user_triton")

    def value(self, node: ast.expr, line: int) -> terms.Term:
        """What an expression on a line stands for."""
        return self.term(node, self.above(line), line)

    def look(self, name: str, at: int) -> terms.Term:
        if self._definition(name, at) is not None:
            return super().look(name, at)
        if name in self.parameters:
            return self._passed(name)
        for node in self.tree.body if self.tree is not None else ():
            match node:  # a module-level integer such as `NAME = 16`
                case ast.Assign(targets=[ast.Name(id=known)], value=ast.Constant(value=int() as number)) if (
                    known == name
                ):
                    return terms.Number(number, "int64")
        return super().look(name, at)

    def _passed(self, name: str) -> terms.Term:
        """What the first caller in the source passes; of the kernel itself, what the launch passes."""
        callers = ast.walk(self.tree) if self.tree is not None and self.outer < 8 else ()
        for caller in [node for node in callers if isinstance(node, ast.FunctionDef)]:
            for node in ast.walk(caller):
                match node:
                    case ast.Call(func=ast.Name(id=called)) if called == self.function.name:
                        argument = argument_of(node, name, self.parameters.index(name))
                        reader = _Reader(self.use, self.tree, caller, self.outer + 1)
                        return (
                            reader.value(argument, node.lineno) if argument is not None else terms.Size(name)
                        )
        return terms.Size(name)
