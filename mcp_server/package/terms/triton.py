"""Reads Triton kernels, Inductor's and the user's, as programs from the source that the wrapper embeds."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mcp_server.package.kernel_code import IndexAssert, find_asserts
from mcp_server.package.kernels import Kernel, constants_of, signature_of
from mcp_server.package.terms.program import Check, Program, Store, Value
from mcp_server.package.terms.syntax import Call, Name, NotRead, Operation, Syntax, read_python
from mcp_server.package.terms.term import (
    Fold,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    itemsize_of,
    parts,
    promoted,
    whole_dtype,
)
from mcp_server.package.terms.translate import Translator, cast, dtype_of, operator, size_term

_LONGEST = 400_000  # letters of a source
_INDEX = re.compile(r"(?P<axis>[xyz]|r\d*_?)index$")
_POINTERS = {
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"fp{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "u8": "uint8",
    **dict.fromkeys(("i1", "u1"), "bool"),
}
_REDUCTIONS = {
    "tl.sum": "sum",
    "tl.max": "max",
    "tl.min": "min",
    "triton_helpers.max2": "max",
    "triton_helpers.min2": "min",
    "triton_helpers.any": "any",
    "triton_helpers.prod": "prod",
}
_WITH_INDEX = {"triton_helpers.max_with_index": "max", "triton_helpers.min_with_index": "min"}


@dataclass(frozen=True, eq=False, slots=True)
class _Assign:
    """`name = value` on a line. `number` is set for one of several results of a call."""

    name: str
    value: ast.expr
    line: int
    number: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """Where a pointer points: `parts` behind a parameter, each an index and the bytes that it counts in.

    A pointer is 64 bits wide, and each index as wide as its own type. `itemsize` is that of the pointer.
    """

    parameter: str
    itemsize: int
    parts: tuple[tuple[Term, int], ...]


def read_triton_program(kernel: Kernel) -> Program:
    """What a Triton kernel does; nothing if its text cannot be parsed."""
    function = function_of(kernel)
    if function is None:
        return Program((), ())
    reader = Reader(kernel, function)
    asserts = {check.line: check for check in find_asserts(kernel.source)}
    stores: list[Store] = []
    checks: list[Check] = []
    for at, node in enumerate(reader.statements):
        if isinstance(node, _Assign):
            continue
        name = ast.unparse(node.func)
        if name in ("tl.store", "tl.atomic_add"):
            stores += reader.store(node, at, "plain" if name == "tl.store" else "add")
        elif name == "tl.device_assert" and node.lineno in asserts:
            checks.append(reader.check(asserts[node.lineno], node, at))
    for at, node in enumerate(reader.statements, 1):  # also what reaches no store
        if isinstance(node, _Assign):
            reader.look(node.name, at)

    def value_at(name: str, line: int) -> Value:
        value = reader.look(name, reader.above(line))
        return value, reader.ranges((value,))

    return Program(tuple(stores), tuple(checks), tuple(reader.translator.loads), value_at)


def function_of(kernel: Kernel) -> ast.FunctionDef | None:
    """The kernel's own function, the last one of its source; None if that cannot be parsed."""
    tree = parsed(kernel.source)
    body = reversed(tree.body) if tree is not None else ()
    return next((node for node in body if isinstance(node, ast.FunctionDef)), None)


def parsed(source: str) -> ast.Module | None:
    """The syntax tree of a kernel's source, without its indentation; None if it is none, or too long."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def accesses_in(tree: ast.AST) -> Iterator[tuple[str, ast.Call, ast.expr | None]]:
    """Each load, store and (atomic) update with its kind, and its mask if it has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            kind = "update" if name.startswith("atomic_") else name
            if kind in ("load", "store", "update"):
                mask = argument_of(node, "mask", 1 if kind == "load" else 2)
                yield kind, node, None if isinstance(mask, ast.Constant) and mask.value is None else mask


def argument_of(node: ast.Call, name: str, position: int) -> ast.expr | None:
    """An argument given by name or by position; None without one."""
    by_name = next((word.value for word in node.keywords if word.arg == name), None)
    return by_name if by_name is not None or len(node.args) <= position else node.args[position]


def flat(body: list[ast.stmt], *, while_loops: bool = False) -> Iterator[_Assign | ast.Call]:
    """Assignments and calls in the order of the text; the body of a loop counts once.

    Those of `while` only on request: what they do differs from turn to turn.
    """
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield _Assign(name, value, node.lineno)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if not (
                _names(names) & _names(values)  # a swap
            ):
                for each, value in zip(names, values, strict=False):
                    if isinstance(each, ast.Name):
                        yield _Assign(each.id, value, node.lineno)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                for number, each in enumerate(names):
                    if isinstance(each, ast.Name):
                        yield _Assign(each.id, value, node.lineno, number)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield _Assign(name, value, node.lineno)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                before = ast.Name(id=target.id, lineno=node.lineno)
                yield _Assign(name, ast.BinOp(left=before, op=op, right=value), node.lineno)
            case ast.Expr(value=ast.Call() as call):
                yield call
            case ast.For(target=ast.Name(id=name), iter=values, body=inner):
                yield _Assign(name, values, node.lineno)
                yield from flat(inner, while_loops=while_loops)
            case ast.For(body=inner) | ast.With(body=inner):
                yield from flat(inner, while_loops=while_loops)
            case ast.While(body=inner) if while_loops:
                yield from flat(inner, while_loops=True)
            case ast.If(body=inner, orelse=other):
                yield from flat([*inner, *other], while_loops=while_loops)


def _names(nodes: list[ast.expr]) -> set[str]:
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


class Reader:
    """Follows the names of one kernel."""

    def __init__(self, kernel: Kernel, function: ast.FunctionDef) -> None:
        types = signature_of(kernel.source)
        names = [argument.arg for argument in function.args.args]
        self.pointers = {
            name: _POINTERS.get(types[name].lstrip("*"), "float32")
            for name in names
            if types.get(name, "").startswith("*")
        }
        self.constants = constants_of(kernel.source)
        noted = ((each.arg, each.annotation) for each in function.args.args if each.annotation is not None)
        fixed = {name for name, note in noted if ast.unparse(note) == "tl.constexpr"}
        self.scalars = {
            name: "int32" if name in fixed else _POINTERS.get(types.get(name, ""), "int64")
            for name in names
            if name not in self.pointers
        }
        self.grid = kernel.grid
        self.translator = Translator(self.pointers)
        self.statements = tuple(flat(function.body))
        self.loops: dict[str, Range] = {}
        self._known: dict[_Assign, Term] = {}
        self._places: dict[_Assign, Place | None] = {}

    def above(self, line: int) -> int:
        """How many statements begin above a line."""
        lines = (each.line if isinstance(each, _Assign) else each.lineno for each in self.statements)
        return sum(each < line for each in lines)

    def term(self, node: ast.expr, at: int, line: int) -> Term:
        """The value of an expression just before statement number `at`."""
        try:
            return self._term(read_python(node), at, line)
        except (NotRead, RecursionError, IndexError):
            return Unread(ast.unparse(node)[:120])

    def _term(self, syntax: Syntax, at: int, line: int) -> Term:
        match syntax:
            case Call(name=name, args=(operand, *_)) if name in _REDUCTIONS:
                return self._reduced(_REDUCTIONS[name], operand, at, line)
            case Call(name=("to" | "broadcast_to" | "tl.broadcast_to"), receiver=Call() as inner, args=args):
                value = self._term(inner, at, line)
                return cast(value, dtype_of(args[0].name) if args and isinstance(args[0], Name) else None)
        return self.translator.term(syntax, lambda name: self.look(name, at), line)

    def look(self, name: str, at: int) -> Term:
        """The value of a variable just before a statement."""
        statement = self._definition(name, at)
        if _INDEX.fullmatch(name) and not (statement and isinstance(statement.value, ast.Name)):
            # But for a second name: `rindex = r0_index`. It has the type that it is computed in.
            value = self._value(statement) if statement else None
            return Position(name, value.dtype if value and value.dtype in ("int32", "int64") else "int64")
        if statement is not None:
            if statement not in self._known:
                self._known[statement] = Unread(name)  # for a value that depends on itself
                self._known[statement] = self._assigned(statement)
            return self._known[statement]
        if name in self.constants:
            return Number(self.constants[name], whole_dtype(self.constants[name]))
        if name.startswith(("tl.program_id(", "tl.arange(")):
            return Position(name, "int32")
        if name.startswith("tl.num_programs("):
            return Size(name, "int32")
        return Size(name, self.scalars[name]) if name in self.scalars else Unread(name)

    def _value(self, statement: _Assign) -> Term:
        return self.term(statement.value, self.statements.index(statement), statement.line)

    def _definition(self, name: str, at: int) -> _Assign | None:
        found = (s for s in reversed(self.statements[:at]) if isinstance(s, _Assign) and s.name == name)
        return next(found, None)

    def _assigned(self, statement: _Assign) -> Term:
        at, line = self.statements.index(statement), statement.line
        match statement.value:
            case ast.Call(func=function, args=ends) if ast.unparse(function) in ("range", "tl.range"):
                return self._looped(statement, [self.term(end, at, line) for end in ends[:3]])
            case ast.Call(func=function, args=[operand, *_]) if ast.unparse(function) in _WITH_INDEX:
                if statement.number is not None:
                    kind = _WITH_INDEX[ast.unparse(function)]
                    kind = f"arg{kind}" if statement.number else kind
                    return self._reduced(kind, read_python(operand), at, line)
        return Unread(statement.name) if statement.number is not None else self._value(statement)

    def _looped(self, statement: _Assign, ends: list[Term]) -> Term:
        """The variable of a loop: its first value, and a step for each turn."""
        start, stop = (Number(0, "int32"), ends[0]) if len(ends) == 1 else ends[:2]
        step = ends[2] if len(ends) > 2 else Number(1, "int32")
        turn = Position(f"{statement.name}@{statement.line}", promoted(*(end.dtype for end in ends)))
        # Rounded up: floor division of what is negated.
        negated = operator("sub", (cast(start, "int64"), stop))
        turns = operator("neg", (operator("floordiv", (negated, step)),))
        self.loops[turn.name] = Range(turn.name, Number(0, "int64"), turns)
        return operator("add", (start, operator("mul", (turn, step))))

    def _reduced(self, kind: str, operand: Syntax, at: int, line: int) -> Term:
        """A reduction over the r axes: of a block, or of the values that a loop has accumulated."""
        if isinstance(operand, Name) and operand.name.startswith("_"):
            body = self._gathered(operand.name, at)
        else:
            body = self._term(operand, at, line)
        dtype = "int64" if kind.startswith("arg") else promoted(body.dtype)
        ranges = tuple(r for r in self.ranges((body,)) if r.name.startswith(("r", "tl.arange")))
        if not ranges:  # all r axes of the kernel
            names = dict.fromkeys(s.name for s in self.statements if isinstance(s, _Assign))
            axes = ((name, self.look(name, len(self.statements))) for name in names if name.startswith("r"))
            ranges = tuple(
                self._range(n) for n, axis in axes if isinstance(axis, Position) and axis.name == n
            )
        return Fold(kind, ranges, body, dtype)

    def _gathered(self, name: str, at: int) -> Term:
        """The value that a loop adds to the accumulator `_tmp2`: the other operand of the update."""
        update = self._definition(name, at)
        syntax = read_python(update.value) if update else Name(name)
        if isinstance(syntax, Call) and syntax.name == "tl.where":
            syntax = syntax.args[1]
        if isinstance(syntax, Name) and (inner := self._definition(syntax.name, at)) is not None:
            update, syntax = inner, read_python(inner.value)
        if update is None or not isinstance(syntax, Call | Operation):
            return Unread(name)
        operand = next((a for a in syntax.args if not (isinstance(a, Name) and a.name == name)), None)
        if operand is None or len(syntax.args) != 2:
            return Unread(name)
        return self._term(operand, self.statements.index(update), update.line)

    def ranges(self, terms: tuple[Term, ...]) -> tuple[Range, ...]:
        """The index variables that terms depend on, without those of reductions inside them."""
        inside = (each for term in terms for each in parts(term, inside_indices=True))
        names = dict.fromkeys(each.name for each in inside if isinstance(each, Position))
        return tuple(map(self._range, names))

    def _range(self, name: str) -> Range:
        start = Number(0, "int64")
        if name in self.loops:
            return self.loops[name]
        if match := _INDEX.fullmatch(name):
            return Range(name, start, self.look(f"{match['axis']}numel", len(self.statements)))
        inner = name.partition("(")[2].rstrip(")")
        if name.startswith("tl.arange"):
            ends = [each.strip() for each in inner.split(",")]
            first, last = (
                Number(int(e), "int64") if e.isdigit() else self.look(e, 0) for e in (ends[0], ends[-1])
            )
            return Range(name, first, last)
        # The number of programs along an axis, from the C++ of the launcher.
        blocks = dict(zip("012", map(size_term, self.grid), strict=False)).get(inner)
        return Range(name, start, blocks or Unread("grid"))

    def store(self, call: ast.Call, at: int, mode: str) -> list[Store]:
        """The store of a call; none unless its pointer is a parameter plus an index."""
        line = call.lineno
        place = self.place(call.args[0], at, line)
        dtype = self.pointers[place.parameter] if place is not None else ""
        if place is None or len(call.args) < 2 or place.itemsize != itemsize_of(dtype):
            return []
        value = cast(self.term(call.args[1], at, line), dtype)
        index = place.parts[0][0] if place.parts else Number(0, "int64")
        for part, _ in place.parts[1:]:
            index = operator("add", (cast(index, "int64"), cast(part, "int64")))  # as wide as a pointer
        return [Store(place.parameter, index, value, self.ranges((index,)), line, mode)]

    def place(self, node: ast.expr, at: int, line: int) -> Place | None:
        """`out_ptr0 + (x0)`, through assignments, casts and changes of shape; None for what is no pointer."""
        match node:
            case ast.Name(id=name) if (found := self._definition(name, at)) is not None:
                if found not in self._places:
                    self._places[found] = None
                    self._places[found] = self.place(found.value, self.statements.index(found), line)
                return self._places[found]
            case ast.Name(id=name) if name in self.pointers:
                return Place(name, itemsize_of(self.pointers[name]), ())
            case ast.Subscript(value=value):
                return self.place(value, at, line)
            case ast.Call(func=ast.Attribute(attr="to", value=value), args=[ast.Call(args=[type_]) as made]):
                inner = self.place(value, at, line)
                dtype = dtype_of(ast.unparse(type_)) if "pointer_type" in ast.unparse(made.func) else None
                return replace(inner, itemsize=itemsize_of(dtype)) if inner and dtype else None
            case ast.Call(func=ast.Attribute(attr="broadcast_to"), args=[value, *_]):
                return self.place(value, at, line)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                for pointer, offset in ((left, right), (right, left)):
                    if (base := self.place(pointer, at, line)) is not None:
                        part = (self.term(offset, at, line), base.itemsize)
                        return replace(base, parts=(*base.parts, part))
        return None

    def check(self, found: IndexAssert, call: ast.Call, at: int) -> Check:
        """A `tl.device_assert` with its ends as terms; a mask in it is the `test`."""
        line = call.lineno
        value = self.look(found.variable, at)
        lower, upper = (
            self.term(ast.parse(end, mode="eval").body, at, line) if end else None
            for end in (found.lower, found.upper)
        )
        test: Term | None = None
        match call.args[0]:
            case ast.BinOp(op=ast.BitOr(), right=ast.UnaryOp(op=ast.Invert(), operand=mask)):
                test = self.term(mask, at, line)
        if isinstance(test, Number):
            test = None
        terms = tuple(each for each in (value, lower, upper, test) if each is not None)
        return Check(line, value, lower, upper, self.ranges(terms), test)
