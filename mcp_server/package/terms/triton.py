"""Reads Triton kernels, Inductor's and the user's, as programs from the source that the wrapper embeds.

The statements are followed in order. A branch is a test on what is done in it; a function of the same source
is read where it is called. Of a loop each name is followed that grows by the same step in each turn, or that
gathers a reduction; other names that a turn takes over from the one before are not understood, and neither is
what a statement assigns that is not read.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from mcp_server.package.terms.asserts import IndexAssert
from mcp_server.package.terms.program import (
    Access,
    AccessKind,
    Check,
    Definition,
    Program,
    Source,
    Store,
    place_of,
)
from mcp_server.package.terms.reader import Reader
from mcp_server.package.terms.sizes import size_term
from mcp_server.package.terms.syntax import Call, Literal, Name, NotRead, Syntax, read_python
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    free_positions,
    is_address,
    is_float,
    parts,
    promoted,
    rebuilt,
    whole_dtype,
)
from mcp_server.package.terms.translate import cast, chosen, dtype_of, inverted, operator

_LONGEST = 400_000  # letters of a source
_DEEPEST = 8  # calls of functions, and loops in each other
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
    "tl.argmax": "argmax",
    "tl.argmin": "argmin",
    "triton_helpers.max2": "max",
    "triton_helpers.min2": "min",
    "triton_helpers.any": "any",
    "triton_helpers.prod": "prod",
}
_WITH_INDEX = {"triton_helpers.max_with_index": "max", "triton_helpers.min_with_index": "min"}
_STEPS_WITH_INDEX = {
    "triton_helpers.maximum_with_index": ("maximum", "argmaximum"),
    "triton_helpers.minimum_with_index": ("minimum", "argminimum"),
}
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
"""The reduction that a step of a loop belongs to, and the value from which it starts (None: any)."""
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

Value = Term | tuple[Term, ...]

_SIGNATURE = re.compile(r"'signature':\s*\{([^{}]*)\}")
_CONSTANTS = re.compile(r"'constants':\s*\{([^{}]*)\}")
_ENTRY = re.compile(r"'(\w+)':\s*'?([^,'}]+)")


def signature_of(source: str) -> dict[str, str]:
    """Types such as `*fp32` and `i64` by parameter, from the `triton_meta` in a Triton kernel's source."""
    found = _SIGNATURE.search(source)
    return dict(_ENTRY.findall(found[1])) if found else {}


def constants_of(source: str) -> dict[str, int]:
    """Integer `tl.constexpr` arguments by name, from the `triton_meta` in the source."""
    found = _CONSTANTS.search(source)
    values = _ENTRY.findall(found[1]) if found else []
    return {name: int(value) for name, value in values if value.strip().lstrip("-").isdecimal()}


def function_of(kernel: Source) -> ast.FunctionDef | None:
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


def read_triton_program(kernel: Source) -> Program:
    """What a Triton kernel does; nothing if its text cannot be parsed."""
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
    """The names that statements assign."""
    inside = (each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name))
    return list(dict.fromkeys(each.id for each in inside if isinstance(each.ctx, ast.Store)))


def _contains(nodes: Sequence[ast.stmt], kinds: type[ast.AST]) -> bool:
    return any(isinstance(each, kinds) for node in nodes for each in ast.walk(node))


class _Reader(Reader):
    """Reads one kernel."""

    def __init__(self, kernel: Source, tree: ast.Module, function: ast.FunctionDef) -> None:
        self.generated = kernel.kind == "triton"
        super().__init__(kernel, masks_hold=self.generated)
        self.grid, self.lines = kernel.grid, textwrap.dedent(kernel.source).split("\n")
        self.functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
        self.names: dict[str, Value] = {**_module_numbers(tree), **_arguments(kernel, function)}
        self.spans: dict[str, Range] = {}
        self.depth = 0  # of calls
        self.results: list[Value] = []  # of the function that is read
        self.call: ast.Call | None = None  # the load that is read

    # Statements

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements; whether all ways through them end in a `return`, `break` or `continue`."""
        with self.where(None):
            return any(self.statement(node) for node in body)

    def statement(self, node: ast.stmt) -> bool:
        """Read one statement; whether the next one is never reached."""
        self.line = node.lineno
        match node:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self.value(value))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self.value(value))
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
                ast.unparse(function) in _RANGES and len(self.loops) < _DEEPEST
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
            self.tests.append(inverted(test) if ended else test)  # until the end of the block
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
        turns = _ceiling(operator("sub", (cast(stop, "int64"), start)), step)
        loop = self.spans[turn.name] = Range(turn.name, Number(0, "int64"), turns)
        variable = operator("add", (start, operator("mul", (turn, step))))
        before = dict(self.names)
        carried = {
            each: Unread(f"{each} of the turn before", _dtype(before[each]))
            for each in _stored(body)
            if each in before
        }
        # First only to see which names grow by the same step in each turn.
        records: list[list[Any]]
        records = [self.stores, self.checks, self.accesses, self.definitions, self.unread]
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
        self.settle(turn.name, kept[0], kept[2])
        self.names = before
        for each in _stored(body):
            if each in steps:
                self.names[each] = _moved(before[each], turns, steps[each])
            elif each not in carried or after.get(each) is not carried[each]:
                self.names[each] = self._gathered(
                    each, before.get(each), carried.get(each), after.get(each), loop
                )

    def _turn(self, loop: Range, body: list[ast.stmt], names: dict[str, Value]) -> dict[str, Value]:
        """The names after one turn."""
        self.names = names
        self.loops.append(loop)
        with self.where(Unread("break") if _contains(body, ast.Break) else None):
            self.run(body)
        self.loops.pop()
        return self.names

    def _gathered(
        self, name: str, before: Value | None, marker: Unread | None, after: Value | None, loop: Range
    ) -> Term:
        """What a loop gathers in a name: a reduction of what each turn adds."""
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
        ranges = self._reduced_axes(body) if self.generated else (loop,)
        dtype = "int64" if kind.startswith("arg") else promoted(body.dtype, before.dtype)
        fold = Fold(kind, ranges, body, dtype)
        starts = isinstance(before, Number) and (neutral is None or before.value == neutral)
        return fold if self.generated or starts else operator(after.op, (before, fold))

    def _unknown_loop(self, node: ast.stmt, body: list[ast.stmt]) -> None:
        """A loop whose turns are not known: what it takes over from the turn before is not either."""
        self.unread.append(node.lineno)
        self.names |= {name: Unread(name, _dtype(self.names.get(name))) for name in _stored([node])}
        with self.where(Unread("loop")):
            self.run(body)
        self.names |= {name: Unread(name, _dtype(self.names.get(name))) for name in _stored([node])}

    # Expressions

    def value(self, node: ast.expr) -> Value:
        """The value of an expression: a term, or several."""
        if isinstance(node, ast.Tuple):
            return tuple(self.read(each) for each in node.elts)
        if isinstance(node, ast.Call):
            try:
                call = read_python(node)
                found = self._several(call) if isinstance(call, Call) else None
                if found is not None:
                    return found
            except (NotRead, IndexError):
                pass
        return self.read(node)

    def read(self, node: ast.expr) -> Term:
        """The value of an expression as one term."""
        try:
            return self.term(read_python(node))
        except (NotRead, IndexError):
            names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
            known = (self.names.get(name) for name in names)
            return Unread(
                ast.unparse(node)[:120], args=tuple(each for each in known if isinstance(each, Term))
            )

    def named(self, name: str) -> Term:
        value = self.names.get(name)
        if isinstance(value, tuple):
            return Unread(name, args=value)
        return value if value is not None else Unread(name)

    def on_axis(self, value: Term, axis: int) -> Term:
        if self.generated:
            return value

        def moved(term: Term) -> Term | None:
            if not isinstance(term, Position) or not term.name.startswith("tl.arange") or "@" in term.name:
                return None
            name = f"{term.name}@{axis}"
            span = self.spans[term.name]
            self.spans.setdefault(name, Range(name, span.start, span.stop))
            return Position(name, term.dtype)

        return rebuilt(value, moved)

    def loaded(self, pointer: Term, mask: Term | None = None, other: Term | None = None) -> Term:
        place = place_of(pointer)
        with self.where(mask):
            self._access("load", pointer, mask is not None, self.call)
        if not place.parameter:
            return Unread("load", "int64", (pointer,))
        value = Element(place.parameter, place.index, pointer.dtype.removeprefix("*"), self.line)
        if mask is None or other is None:
            return value
        return chosen(mask, value, other)

    def called(self, call: Call) -> Term | None:
        """The result of a function of Triton, or of the same source."""
        last = call.name.rpartition(".")[2]
        several = self._several(call)
        if several is not None:
            return Unread(call.name, args=several) if isinstance(several, tuple) else several
        match last:
            case "load":
                at = call.receiver or call.argument("pointer", 0)
                mask, other = self._mask(call, 1), call.argument("other", 2)
                default = self.term(other) if other and other != Name("None") else None
                pointer = self.term(at) if at else Unread("load")
                self.call = call.node
                return self.loaded(pointer, mask, default)
            case "program_id" | "num_programs":
                axis = call.argument("axis", 0)
                key = f"tl.{last}({axis.value if isinstance(axis, Literal) else '?'})"
                return Position(key, "int32") if last == "program_id" else Size(key, "int32")
            case "arange":
                return self._arange(call)
            case "to" | "cast" if call.args:
                return self._converted(call)
            case "zeros" | "zeros_like":
                dtype = call.argument("dtype", 1)
                return Number(0, (dtype_of(dtype.name) if isinstance(dtype, Name) else None) or "float32")
            case "full":
                return self._full(call)
            case "expand_dims" if not self.generated:
                axis = call.argument("axis", 1)
                value = self.term(call.args[0])
                return self.on_axis(value, int(axis.value != 1)) if isinstance(axis, Literal) else None
            case "cdiv":
                return _ceiling(self.term(call.args[0]), self.term(call.args[1]))
            case "constexpr":
                return self.term(call.args[0])
            case "make_block_ptr" | "advance" | "make_tensor_descriptor":
                given = (*call.args, *(each for _, each in call.named if not isinstance(each, Call)))
                terms = tuple(
                    self.term(each) for each in given if not isinstance(each, Call) or each.name != "[]"
                )
                address = next((each.dtype for each in terms if is_address(each.dtype)), "*float32")
                return Unread(call.name, address, terms)
        if call.name in _REDUCTIONS:
            return self._reduced(_REDUCTIONS[call.name], self.term(call.args[0]), call)
        if last in ("multiple_of", "max_contiguous", "max_constancy"):
            return self.term(call.args[0])
        return None

    def _several(self, call: Call) -> Value | None:
        """The results of a function that may have several; None for another one."""
        last = call.name.rpartition(".")[2]
        if call.receiver is None and call.name in self.functions:
            return self._inlined(self.functions[call.name], call)
        if last == "store" or last.startswith("atomic_"):
            self._store(call, last)
            return Unread(call.name)
        if call.name in _WITH_INDEX:
            kind, value, index = _WITH_INDEX[call.name], *map(self.term, call.args[:2])
            first = self._reduced(kind, value, call, 2)
            gathered = isinstance(index, Fold) and index.kind == f"arg{kind}"
            return first, index if gathered else self._reduced(f"arg{kind}", value, call, 2)
        if call.name in _STEPS_WITH_INDEX:
            best, place, value, _ = map(self.term, call.args[:4])
            ops = _STEPS_WITH_INDEX[call.name]
            return operator(ops[0], (best, value)), Apply(ops[1], (place, value), "int64")
        if call.name == "triton_helpers.welford_reduce":
            value, mean, m2 = map(self.term, call.args[:3])
            made = (
                Apply("welford_mean", (mean, value), value.dtype),
                Apply("welford_m2", (m2, value), value.dtype),
            )
            return *made, Unread("weight")
        if call.name == "triton_helpers.welford":
            return tuple(map(self.term, call.args[:3]))
        return None

    def _mask(self, call: Call, position: int) -> Term | None:
        mask = call.argument("mask", position)
        if mask is None or mask == Name("None"):
            return None
        test = self.term(mask)
        return None if self.generated and isinstance(test, Number) and test.value else test

    def _arange(self, call: Call) -> Term:
        words = [
            str(each.value) if isinstance(each, Literal) else getattr(each, "name", "?") for each in call.args
        ]
        name = f"tl.arange({', '.join(words)})"
        first, last = (self.term(each) for each in (call.args[0], call.args[-1]))
        self.spans.setdefault(name, Range(name, first, last))
        return Position(name, "int32")

    def _converted(self, call: Call) -> Term:
        value, type_ = (call.receiver, call.args[0]) if call.receiver is not None else call.args[:2]
        term = self.term(value)
        if any(name == "bitcast" for name, _ in call.named):
            return Unread("bitcast", args=(term,))
        match type_:
            case Call(name="tl.pointer_type", args=(Name(name=name), *_)):
                return cast(term, f"*{dtype_of(name) or 'float32'}")
            case Name(name=name):
                variable, dot, _ = name.partition(".dtype")
                dtype = self.named(variable).dtype if dot else dtype_of(name)
                return cast(term, dtype) if dtype else term
        return Unread("to", args=(term,))

    def _full(self, call: Call) -> Term:
        value, dtype = self.term(call.args[1]), call.argument("dtype", 2)
        if isinstance(dtype, Name):
            variable, dot, _ = dtype.name.partition(".dtype")  # `tmp13.dtype`
            return cast(value, self.named(variable).dtype if dot else dtype_of(dtype.name))
        return value

    def _inlined(self, function: ast.FunctionDef, call: Call) -> Value:
        """What a function of the same source returns for these arguments."""
        if self.depth >= _DEEPEST:
            return Unread(call.name)
        names = [argument.arg for argument in function.args.args]
        given = dict(zip(names, call.args, strict=False)) | dict(call.named)
        values: dict[str, Value] = {name: self.term(each) for name, each in given.items()}
        outside, line, results = self.names, self.line, self.results
        around = {name: value for name, value in outside.items() if name not in names}
        self.names, self.results, self.depth = around | values, [], self.depth + 1
        self.run(function.body)
        made = self.results
        self.names, self.line, self.results, self.depth = outside, line, results, self.depth - 1
        return made[0] if len(made) == 1 else Unread(call.name)  # of several each holds on a way of its own

    def _reduced(self, kind: str, value: Term, call: Call, position: int = 1) -> Term:
        """A reduction over the r axes of a generated kernel, or over an axis of a block."""
        axis, dtype = call.argument("axis", position), call.argument("dtype", 9)
        value = cast(value, dtype_of(dtype.name)) if isinstance(dtype, Name) else value
        if isinstance(value, Fold) and value.kind == kind and not self._lanes(value):
            return value  # a loop has gathered it
        ranges = self._reduced_axes(value) if self.generated else self._block_axes(value, axis)
        if not ranges:
            return Unread(kind, value.dtype, (value,))
        fold = Fold(kind, ranges, value, "int64" if kind.startswith("arg") else promoted(value.dtype))
        kept = call.argument("keep_dims", 9) == Literal(True, "bool")
        left = [name for name in self._lanes(fold) if "@" in name]
        if len(left) != 1 or kept:
            return fold

        def alone(term: Term) -> Term | None:
            """The one axis that is left has no place among others."""
            single = isinstance(term, Position) and term.name == left[0]
            return Position(left[0].partition("@")[0], term.dtype) if single else None

        return rebuilt(fold, alone)

    def _lanes(self, term: Term) -> list[str]:
        prefix = "r" if self.generated else "tl.arange"
        return [name for name in free_positions(term) if name.startswith(prefix)]

    def _reduced_axes(self, body: Term) -> tuple[Range, ...]:
        every = (name for name, value in self.names.items() if isinstance(value, Position))
        names = self._lanes(body) or [name for name in every if name.startswith("r")]
        return tuple(self.spans[name] for name in dict.fromkeys(names) if name in self.spans)

    def _block_axes(self, value: Term, axis: Syntax | None) -> tuple[Range, ...]:
        names = self._lanes(value)
        placed = [name for name in names if "@" in name]
        if isinstance(axis, Literal) and placed:
            if len(placed) < len(names):
                return ()
            names = [name for name in names if name.endswith(f"@{axis.value}")]
        return tuple(self.spans[name] for name in names)

    # What is recorded

    def ranges(self, *terms: Term) -> tuple[Range, ...]:
        """The loops around this place, and the lanes that terms depend on."""
        names = free_positions(*terms)
        found = {each.name: each for each in self.loops} if not self.generated else {}
        return tuple((found | {name: self._range(name) for name in names}).values())

    def _range(self, name: str) -> Range:
        if name in self.spans:
            return self.spans[name]
        # The number of programs along an axis, from the C++ of the launcher.
        axis = name.partition("(")[2].rstrip(")")
        blocks = dict(zip("012", map(size_term, self.grid), strict=False)).get(axis)
        return Range(name, Number(0, "int64"), blocks or Unread("grid"))

    def _access(self, kind: AccessKind, pointer: Term, masked: bool, call: ast.Call | None) -> None:
        place, test = place_of(pointer), self.test()
        terms = (*(part for part, _ in place.parts), *([test] if test is not None else []))
        line, code = (call.lineno, self._text(call)) if call is not None else (self.line, "")
        self.accesses.append(Access(kind, place, self.ranges(*terms), test, line, masked, code))

    def _text(self, node: ast.Call) -> str:
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
        return "\n".join([lines[0].encode()[node.col_offset :].decode(), *lines[1:]])

    def _store(self, call: Call, how: str) -> None:
        at = call.receiver or call.argument("pointer", 0)
        value = call.argument("value" if how == "store" else "val", 0 if call.receiver is not None else 1)
        if at is None or value is None:
            self.unread.append(self.line)
            return
        pointer, mask = self.term(at), self._mask(call, 2)
        mode = "add" if how == "atomic_add" else "plain"
        stored = self.term(value) if how in ("store", "atomic_add") else Unread(how)
        place = place_of(pointer)
        with self.where(mask):
            self._access("store" if how == "store" else "update", pointer, mask is not None, call.node)
            test = self.test()
        if not place.parameter:
            self.unread.append(self.line)
            return
        stored = cast(stored, pointer.dtype.removeprefix("*")) if is_address(pointer.dtype) else Unread(how)
        ranges = self.ranges(place.index, *([test] if test is not None else []))
        for name in (place.parameter, *place.others):
            self.stores.append(Store(name, place.index, stored, ranges, self.line, mode, test))

    def _check(self, found: IndexAssert, call: ast.Call) -> None:
        """A `tl.device_assert` with its ends as terms; a mask in it is the `test`."""
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


def _module_numbers(tree: ast.Module) -> dict[str, Term]:
    """The whole numbers of the module: `NAME = 16`, `NAME = tl.constexpr(16)`."""
    found: dict[str, Term] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() as number))
                | ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Constant(value=int() as number)])
                )
            ):
                found[name] = Number(number, whole_dtype(number))
    return found


def _arguments(kernel: Source, function: ast.FunctionDef) -> dict[str, Term]:
    """The parameters of a kernel: addresses, numbers that were compiled in, and scalars."""
    types, constants = signature_of(kernel.source), constants_of(kernel.source)
    tensors = {each.name for each in kernel.parameters if each.type == "tensor"}
    found: dict[str, Term] = {}
    for argument in function.args.args:
        name, fixed = argument.arg, argument.annotation is not None
        type_ = types.get(name, "")
        if name in constants:
            found[name] = Number(constants[name], whole_dtype(constants[name]))
        elif type_.startswith("*") or name in tensors:
            found[name] = Size(name, f"*{_POINTERS.get(type_.lstrip('*'), 'float32')}")
        else:
            fixed = fixed and ast.unparse(argument.annotation) == "tl.constexpr"  # type: ignore[arg-type]
            found[name] = Size(name, "int32" if fixed else _POINTERS.get(type_, "int64"))
    return found


def _dtype(value: Value | None) -> str:
    return value.dtype if isinstance(value, Term) else "float32"


def _ceiling(total: Term, step: Term) -> Term:
    """A division rounded up: the floor division of what is negated."""
    return operator("neg", (operator("floordiv", (operator("neg", (total,)), step)),))


def _mentions(term: Term) -> bool:
    """Whether a term depends on a value of the turn before."""
    inside = parts(term, inside_indices=True)
    return any(isinstance(each, Unread) and each.text.endswith(" of the turn before") for each in inside)


def _step(after: Value | None, marker: Unread) -> Term | None:
    """By how much a name grows in each turn; None where that is not the same in all of them."""
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
