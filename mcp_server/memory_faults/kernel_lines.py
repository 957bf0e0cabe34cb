"""Memory accesses on one line of a kernel's source, for Triton and C++."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from mcp_server.memory_faults.linear import Reader, Sum, Term, callee, plus
from mcp_server.package.kernel_code import Trace, accesses_at, trace_value
from mcp_server.package.kernels import Kernel


@dataclass(frozen=True)
class LineAccess:
    """One memory access. `code` is the call, `address` the pointer expression as a sum.

    `parameters` are the pointer parameters in the address. `masked`: the access has a mask argument.
    """

    direction: str
    code: str
    line: int
    parameters: tuple[str, ...]
    address: Sum
    masked: bool = False

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


_REWRITES = (
    (re.compile(r"(?<=\d)(?:UL|L|U)+\b"), ""),
    (re.compile(r"static_cast<[\w: ]+>"), ""),
    (re.compile(r"c10::convert<[\w: ]+>"), ""),
    (re.compile(r"c10::div_floor_integer"), "floordiv"),
    (re.compile(r"\b(?:std|at|c10)::"), ""),
)


# Arithmetic that may scale a value: a product (not the `*` of a pointer type), shifts, division.
_ARITHMETIC = re.compile(r"\w\)* ?\* ?\(*[\w]|<<|>>|[/%]")


def cpp_accesses_on(use: KernelUse, line: int) -> tuple[LineAccess, ...]:
    """The accesses on a 1-based line of kernel.cpp."""
    kernel = use.kernel
    at = line - kernel.first_line + 1
    lines = kernel.source.split("\n")
    if not 1 <= at <= len(lines):
        return ()
    text = lines[at - 1].strip()
    return tuple(
        LineAccess(
            direction=_cpp_direction(text, load.parameter),
            code=text[:500],
            line=line,
            parameters=(load.parameter,),
            address=plus(Sum({Term("pointer", load.parameter): Fraction(1)}), _index(use, load.index, at)),
            masked=False,
        )
        for load in accesses_at(kernel.source, at, use.tensors)
    )


def _cpp_direction(text: str, parameter: str) -> str:
    name = re.escape(parameter)
    if re.search(rf"atomic_add\w*(?:<[^()]*>)?\(&?{name}\b", text):
        return "atomic"
    stored = re.match(rf"{name}\[.*\] = ", text) or re.search(rf"\.store\({name}\b", text)
    return "write" if stored else "read"


def _index(use: KernelUse, index: str, line: int) -> Sum:
    for pattern, replacement in _REWRITES:
        index = pattern.sub(replacement, index)
    try:
        tree = ast.parse(index.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return Sum({Term("other", index[:80]): None}, None)

    def resolve(name: str, _line: int, _depth: int) -> Sum | None:
        return _resolve_cpp(use, name, line)

    return Reader(resolve, use.values).read(tree.body)


def _resolve_cpp(use: KernelUse, name: str, line: int) -> Sum | None:
    if name in use.scalars:
        return Sum({Term("scalar", name): Fraction(1)})
    if not name.startswith("tmp"):
        return None
    trace = trace_value(use.kernel.source, name, line, use.tensors, use.scalars)
    if not trace.loads:
        return None
    first = use.kernel.first_line - 1
    factor = _factor(trace)
    loads = {Term("load", load.parameter, load.line + first): factor for load in trace.loads}
    return Sum(loads, Fraction(0) if factor is not None else None, trace.wraps)


def _factor(trace: Trace) -> Fraction | None:
    """1 for a load that is only copied, converted or wrapped by its bound; None after other arithmetic."""
    loads = {load.line for load in trace.loads}
    computed = [d.value for d in trace.definitions if d.line not in loads]
    plain = len(trace.loads) == 1 and not any(_ARITHMETIC.search(value) for value in computed)
    return Fraction(1) if plain else None


_DIRECTIONS = {"load": "read", "store": "write"}
_CONSTANTS = re.compile(r"'constants': (\{[^{}]*\})")
_MAX_SOURCE = 400_000


def triton_accesses_on(use: KernelUse, line: int) -> tuple[LineAccess, ...]:
    """The loads, stores and atomics on a 1-based line of the source; empty if it cannot be parsed."""
    return tuple(access for access, first, last in every_access(use) if first <= line <= last)


def every_access(use: KernelUse) -> tuple[tuple[LineAccess, int, int], ...]:
    """Every access of a Triton kernel with its first and last line."""
    source = _Source.read(use)
    return tuple(source.accesses()) if source is not None else ()


def constants_of(source: str) -> dict[str, int]:
    """Integer `tl.constexpr` arguments by name, from the `triton_meta` in the source."""
    found = _CONSTANTS.search(source)
    try:
        values = ast.literal_eval(found[1]) if found else {}
    except (ValueError, SyntaxError):
        return {}
    return {str(k): v for k, v in values.items() if isinstance(v, int) and not isinstance(v, bool)}


@dataclass
class _Source:
    use: KernelUse
    tree: ast.Module
    text: str

    @classmethod
    def read(cls, use: KernelUse) -> _Source | None:
        text = textwrap.dedent(use.kernel.source)
        if len(text) > _MAX_SOURCE:
            return None
        try:
            return cls(use, ast.parse(text), text)
        except (SyntaxError, ValueError, RecursionError):
            return None

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    def accesses(self) -> Iterator[tuple[LineAccess, int, int]]:
        for function in self.functions.values():
            scope = _Scope(self, function)
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and (direction := _triton_direction(node)) and node.args:
                    yield self._access(node, direction, scope), node.lineno, node.end_lineno or node.lineno

    def _access(self, node: ast.Call, direction: str, scope: _Scope) -> LineAccess:
        address = scope.reader.read(node.args[0])
        code = ast.get_source_segment(self.text, node) or ""
        return LineAccess(
            direction=direction,
            code=" ".join(code.split())[:500],
            line=node.lineno,
            parameters=tuple(term.name for term in address.of("pointer")),
            address=address,
            masked=_masked(node, direction),
        )

    def calls_of(self, name: str) -> list[tuple[ast.Call, ast.FunctionDef]]:
        return [
            (node, function)
            for function in self.functions.values()
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and callee(node)[0] == name
        ]


def _triton_direction(node: ast.Call) -> str:
    """`read`, `write` or `atomic`; empty for a call that is not a memory access."""
    name = callee(node)[0]
    return "atomic" if name.startswith("atomic_") else _DIRECTIONS.get(name, "")


def _masked(node: ast.Call, direction: str) -> bool:
    """Whether the access has a mask argument other than `None`."""
    position = {"read": 1, "write": 2}.get(direction, 2)
    argument = next((k.value for k in node.keywords if k.arg == "mask"), None)
    if argument is None and len(node.args) > position:
        argument = node.args[position]
    return argument is not None and not (isinstance(argument, ast.Constant) and argument.value is None)


class _Scope:
    """Resolves names of one function: assignments, then the caller's arguments, then module constants."""

    def __init__(self, source: _Source, function: ast.FunctionDef, outer: int = 0) -> None:
        self.source, self.function, self.outer = source, function, outer
        self.reader = Reader(self._resolve, source.use.values)
        self._busy: set[tuple[str, int]] = set()

    @cached_property
    def assignments(self) -> dict[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for node in ast.walk(self.function):
            for target in _targets(node):
                found.setdefault(target, []).append(node)  # type: ignore[arg-type]
        return found

    @cached_property
    def parameters(self) -> list[str]:
        return [argument.arg for argument in self.function.args.args]

    def _resolve(self, name: str, line: int, depth: int) -> Sum | None:
        above = [n for n in self.assignments.get(name, []) if n.lineno < line]
        if above:
            return self._assigned(name, max(above, key=lambda n: n.lineno), depth)
        if name in self.parameters:
            return self._parameter(name, depth)
        return _module_constant(self.source, name)

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
        use = self.source.use
        calls = self.source.calls_of(self.function.name) if self.outer < 8 else []
        if not calls:
            return _kernel_parameter(use, name)
        node, caller = calls[0]
        position = self.parameters.index(name)
        argument = next((k.value for k in node.keywords if k.arg == name), None)
        if argument is None and position < len(node.args):
            argument = node.args[position]
        if argument is None:
            return None
        return _Scope(self.source, caller, self.outer + 1).reader.read(argument, depth)


def _kernel_parameter(use: KernelUse, name: str) -> Sum | None:
    """A parameter of the kernel function, as passed at the launch."""
    if name in use.tensors:
        return Sum({Term("pointer", name): Fraction(1)})
    if name in use.scalars:
        return Sum({Term("scalar", name): Fraction(1)})
    return Sum(constant=Fraction(use.values[name])) if name in use.values else None


def _module_constant(source: _Source, name: str) -> Sum | None:
    """The value of a module-level integer such as `NAME = 16`."""
    for node in source.tree.body:
        if name in _targets(node) and isinstance(value := _value_for(name, node), ast.Constant):
            return Sum(constant=Fraction(value.value)) if isinstance(value.value, int) else None
    return None


def _targets(node: ast.AST) -> list[str]:
    match node:
        case ast.Assign(targets=targets):
            return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.For(target=ast.Name(id=name)):
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
