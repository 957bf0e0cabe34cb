"""Reads Triton kernels, Inductor's and the user's, as programs from the source that the wrapper embeds.

The statements are read in order. A branch adds a test to everything inside it. A function of the same source
is read where it is called. A name whose value passes from one iteration to the next is understood only if it
grows by the same step in each iteration or accumulates a reduction. Names that an unread statement assigns
are not understood.
"""

import ast
import re
from collections.abc import Sequence
from typing import Any

from mcp_server.package.terms.parts import parts
from mcp_server.package.terms.program import Check, Definition, Program, Source
from mcp_server.package.terms.sizes import IndexAssert
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Term,
    Unread,
    is_float,
    promoted,
)
from mcp_server.package.terms.translate import cast, chosen, inverted, operator
from mcp_server.package.terms.triton_calls import DEEPEST, Functions, Value, ceiling, function_of, parsed

_INDEX = re.compile(r"(?P<axis>[xyz]|r\d*_?)index$")
_GATHERS = {
    "add": ("sum", 0),
    "mul": ("prod", 1),
    "maximum": ("max", float("-inf")),
    "minimum": ("min", float("inf")),
    "or": ("any", 0),
    "bitor": ("any", 0),
    "and": ("all", 1),
    "argmaximum": ("argmax", None),
    "argminimum": ("argmin", None),
    "welford_mean": ("mean", None),
    "welford_m2": ("m2", None),
}
"""The reduction for a step of a loop, and its start value (None: any)."""
_WITHOUT_EFFECT = frozenset(
    {
        "tl.debug_barrier",
        "tl.static_assert",
        "tl.assume",
        "tl.device_print",
        "tl.static_print",
        "tl.device_assert",
    }
)
_RANGES = frozenset({"range", "tl.range", "tl.static_range"})


def read_triton_program(kernel: Source) -> Program:
    """Read what a Triton kernel does. Empty if its text cannot be parsed."""
    function, tree = function_of(kernel), parsed(kernel.source)
    if function is None or tree is None:
        return Program()
    reader = _Reader(kernel, tree, function)
    try:
        reader.run(function.body)
    except RecursionError:
        reader.unread.append(function.lineno)
    return reader.program


def _stored(nodes: Sequence[ast.stmt]) -> list[str]:
    """List the names that statements assign."""
    inside = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return list(dict.fromkeys(each.id for each in inside if isinstance(each.ctx, ast.Store)))


class _Reader(Functions):
    """Reads the statements of one kernel."""

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements. Return whether all paths end in a `return`, `break` or `continue`."""
        with self.where(None):
            return any(self.statement(node) for node in body)

    def statement(self, node: ast.stmt) -> bool:
        """Read one statement. Return whether the next one is never reached."""
        self.line = node.lineno
        match node:
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                before = ast.Name(id=name, ctx=ast.Load())
                self._assign(target, self.value(ast.BinOp(left=before, op=op, right=value)))
            case ast.Expr(value=ast.Call() as call):
                self._call_statement(call)
            case ast.Return(value=value):
                self.results.append(self.value(value) if value is not None else ())
                return True
            case ast.Break() | ast.Continue():
                return True
            case ast.If(test=test, body=body, orelse=orelse):
                return self._branch(self.read(test), body, orelse)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=function, args=ends), body=body) if (
                ast.unparse(function) in _RANGES and len(self.loops) < DEEPEST
            ):
                self._loop(name, [self.read(end) for end in ends[:3]], body, node.lineno)
            case ast.With(body=body):
                return self.run(body)
            case ast.While(body=body) | ast.For(body=body):
                self._unknown_loop(node, body)
            case ast.Pass() | ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
                pass
            case _:
                self._not_read(node)
        return False

    def _not_read(self, node: ast.stmt) -> None:
        self.unread.append(node.lineno)
        self.names |= {name: Unread(name) for name in _stored([node])}

    def _assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                term = value if not isinstance(value, tuple) else Unread(name, args=value)
                again = isinstance(term, Position) and _INDEX.fullmatch(term.name)  # `rindex = r0_index`
                if self.generated and (index := _INDEX.fullmatch(name)) and not again:
                    dtype = term.dtype if term.dtype in ("int32", "int64") else "int64"
                    term = Position(name, dtype)
                    numel = self.named(f"{index['axis']}numel")
                    self.spans.setdefault(name, Range(name, Number(0, "int64"), numel))
                self.names[name] = value if isinstance(value, tuple) else term
                self.definitions.append(Definition(name, self.line, term))
            case ast.Tuple(elts=targets) if isinstance(value, tuple) and len(value) == len(targets):
                for each, part in zip(targets, value, strict=True):
                    self._assign(each, part)
            case ast.Tuple(elts=targets):
                for each in targets:
                    self._assign(each, Unread(ast.unparse(each)))
            case _:
                self.unread.append(self.line)

    def _call_statement(self, call: ast.Call) -> None:
        name = ast.unparse(call.func)
        if name == "tl.device_assert" and call.lineno in self.asserts:
            self._check(self.asserts[call.lineno], call)
        elif name not in _WITHOUT_EFFECT:
            count = len(self.unread)
            value = self.value(call)
            known = name in self.functions or name.rpartition(".")[2].startswith(("store", "atomic_"))
            if not known and len(self.unread) == count and isinstance(value, Unread):
                self.unread.append(call.lineno)

    def _branch(self, test: Term, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        if isinstance(test, Number):
            return any(self.statement(each) for each in (body if test.value else orelse))
        before = dict(self.names)
        with self.where(test):
            ended = any(self.statement(each) for each in body)
        after, self.names = self.names, dict(before)
        with self.where(inverted(test)):
            other_ended = any(self.statement(each) for each in orelse)
        if ended and other_ended:
            return True
        if ended or other_ended:
            self.tests.append(inverted(test) if ended else test)  # holds until the end of the block
            self.names = self.names if ended else after
            return False
        for name in {**after, **self.names}:
            first, second = after.get(name), self.names.get(name)
            if first is not second:
                both = isinstance(first, Term) and isinstance(second, Term)
                self.names[name] = chosen(test, first, second) if both else Unread(name)  # type: ignore[arg-type]
        return False

    # Loops

    def _loop(self, name: str, ends: list[Term], body: list[ast.stmt], line: int) -> None:
        start, stop = (Number(0, "int32"), ends[0]) if len(ends) == 1 else ends[:2]
        step = ends[2] if len(ends) > 2 else Number(1, "int32")
        turn = Position(f"{name}@{line}", promoted(*(end.dtype for end in ends)))
        turns = ceiling(operator("sub", (cast(stop, "int64"), start)), step)
        loop = self.spans[turn.name] = Range(turn.name, Number(0, "int64"), turns)
        variable = operator("add", (start, operator("mul", (turn, step))))
        before = dict(self.names)
        carried = {
            each: Unread(f"{each} of the turn before", _dtype(before[each]))
            for each in _stored(body)
            if each in before
        }
        # A first reading finds only the names that grow by the same step in each iteration.
        records: list[list[Any]]
        records = [self.accesses, self.checks, self.definitions, self.unread]
        kept = [len(each) for each in records]
        after = self._turn(loop, body, {**before, **carried, name: variable})
        for record, count in zip(records, kept, strict=True):
            del record[count:]
        steps = {
            each: grown_by
            for each, marker in carried.items()
            if (grown_by := _step(after.get(each), marker)) is not None
        }
        grown = {each: _moved(before[each], turn, step) for each, step in steps.items()}
        after = self._turn(loop, body, {**before, **carried, **grown, name: variable})
        # Generated code computes the index of each iteration from the offset that the loop counts.
        direct = _stored([each for each in body if isinstance(each, ast.Assign)])
        own = [each for each in direct if self.generated and _INDEX.fullmatch(each)]
        self.settle((turn.name, *own), kept[0])
        self.names = before
        for each in _stored(body):
            if each in steps:
                self.names[each] = _moved(before[each], turns, steps[each])
            elif each not in carried or after.get(each) is not carried[each]:
                self.names[each] = self._gathered(
                    each, before.get(each), carried.get(each), after.get(each), loop
                )

    def _turn(self, loop: Range, body: list[ast.stmt], names: dict[str, Value]) -> dict[str, Value]:
        """Read one iteration and return the names after it."""
        self.names = names
        self.loops.append(loop)
        leaves = any(isinstance(each, ast.Break) for node in body for each in ast.walk(node))
        with self.where(Unread("break") if leaves else None):
            self.run(body)
        self.loops.pop()
        return self.names

    def _gathered(
        self, name: str, before: Value | None, marker: Unread | None, after: Value | None, loop: Range
    ) -> Term:
        """The reduction that a loop accumulates in a name, from what each iteration adds."""
        test: Term | None = None
        match after:
            case Apply(op="where", args=(condition, inner, kept)) if kept is marker:
                test, after = condition, inner
        if (
            marker is None
            or not isinstance(after, Apply)
            or after.op not in _GATHERS
            or not isinstance(before, Term)
        ):
            return Unread(name)
        kind, neutral = _GATHERS[after.op]
        others = [each for each in after.args if each is not marker]
        if len(others) != 1 or len(after.args) != 2 or _mentions(others[0]):
            return Unread(name)
        (body,) = others
        if test is not None:
            if neutral is None or _mentions(test):
                return Unread(name)
            body = chosen(test, body, cast(Number(neutral, body.dtype), body.dtype))
        ranges = self.reduced_axes(body) if self.generated else (loop,)
        dtype = "int64" if kind.startswith("arg") else promoted(body.dtype, before.dtype)
        fold = Fold(kind, ranges, body, dtype)
        starts = isinstance(before, Number) and (neutral is None or before.value == neutral)
        return fold if self.generated or starts else operator(after.op, (before, fold))

    def _unknown_loop(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        """Read a loop with unknown iterations. Names that it assigns are unknown inside and after it."""
        self.unread.append(node.lineno)
        self.names |= {name: Unread(name, _dtype(self.names.get(name))) for name in _stored([node])}
        with self.where(Unread("loop")):
            self.run(body)
        self.names |= {name: Unread(name, _dtype(self.names.get(name))) for name in _stored([node])}

    def _check(self, found: IndexAssert, call: ast.Call) -> None:
        """Record a `tl.device_assert` with its bounds as terms; a mask in it becomes the `test`."""
        value = self.named(found.variable)
        lower, upper = (
            self.read(ast.parse(end, mode="eval").body) if end else None for end in (found.lower, found.upper)
        )
        mask: Term | None = None
        match call.args[0]:
            case ast.BinOp(op=ast.BitOr(), right=ast.UnaryOp(op=ast.Invert(), operand=operand)):
                mask = self.read(operand)
        with self.where(mask):
            test = self.test()
        terms = tuple(each for each in (value, lower, upper, test) if each is not None)
        self.checks.append(Check(call.lineno, value, lower, upper, self.ranges(*terms), test))


def _dtype(value: Value | None) -> str:
    return value.dtype if isinstance(value, Term) else "float32"


def _mentions(term: Term) -> bool:
    """Whether a term depends on a value of the previous iteration."""
    inside = parts(term, inside_indices=True)
    return any(isinstance(each, Unread) and each.text.endswith(" of the turn before") for each in inside)


def _step(after: Value | None, marker: Unread) -> Term | None:
    """The step by which a name grows in each iteration. None if the step varies."""
    match after:
        case Apply(op="add", args=args, dtype=dtype) if not is_float(dtype) and marker in args:
            others = [each for each in args if each is not marker]
            varying = (Element, Position, Unread)
            if len(others) == 1 and not any(
                isinstance(each, varying) and not (isinstance(each, Position) and each.name.startswith("tl."))
                for each in parts(others[0], inside_indices=True)
            ):
                return others[0]
    return None


def _moved(before: Value, turn: Term, step: Term) -> Term:
    assert isinstance(before, Term), "only single values grow"
    return operator("add", (before, operator("mul", (turn, step))))
