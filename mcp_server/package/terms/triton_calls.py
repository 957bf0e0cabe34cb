"""What Triton functions return: loads, stores, reductions, ranges, and functions of the same source.

The functions at the end read a kernel's source: its function, its parameters and their types.
"""

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from mcp_server.package.terms.parts import free_positions, rebuilt
from mcp_server.package.terms.program import Access, Place, Reader, Source, Store, place_of
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
    dtype_of,
    is_address,
    is_float,
    promoted,
    whole_dtype,
)
from mcp_server.package.terms.translate import cast, chosen, operator

DEEPEST = 8  # nesting of function calls, and of loops
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

Value = Term | tuple[Term, ...]


class Functions(Reader):
    """Reads the expressions of one kernel."""

    def __init__(self, kernel: Source, tree: ast.Module, function: ast.FunctionDef) -> None:
        self.generated = kernel.kind == "triton"
        super().__init__(kernel, masks_hold=self.generated)
        self.grid, self.lines = kernel.grid, textwrap.dedent(kernel.source).split("\n")
        self.functions = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
        self.names: dict[str, Value] = {**module_numbers(tree), **given_arguments(kernel, function)}
        self.spans: dict[str, Range] = {}
        self.depth = 0  # nested function calls
        self.results: list[Value] = []  # results of the function being read
        self.call: ast.Call | None = None  # the load being read

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements. Return whether all paths end in a `return`, `break` or `continue`."""
        raise NotImplementedError

    def value(self, node: ast.expr) -> Value:
        """The value of an expression: a term, or several terms."""
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
            self.accesses.append(self._access(place, mask, self.call))
        if not place.parameter:
            return Unread("load", "int64", (pointer,))
        value = Element(place.parameter, place.index, pointer.dtype.removeprefix("*"), self.line)
        if mask is None or other is None:
            return value
        # Triton converts `other` to the dtype of what is loaded.
        return chosen(mask, value, cast(other, value.dtype) if is_float(value.dtype) else other)

    def called(self, call: Call) -> Term | None:
        """The result of a function of Triton or of the kernel's source. None for other calls."""
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
                asked = call.argument("dtype", 1)
                dtype = self._dtype(asked) if asked is not None else "float32"
                return Number(0, dtype) if dtype else Unread("zeros")
            case "full":
                return self._full(call)
            case "expand_dims" if not self.generated:
                axis = call.argument("axis", 1)
                value = self.term(call.args[0])
                return self.on_axis(value, int(axis.value != 1)) if isinstance(axis, Literal) else None
            case "cdiv":
                return ceiling(self.term(call.args[0]), self.term(call.args[1]))
            case "constexpr":
                return self.term(call.args[0])
            case "make_block_ptr" | "advance" | "make_tensor_descriptor":
                return self._block(call)
        if call.name in _REDUCTIONS:
            return self._reduced(_REDUCTIONS[call.name], self.term(call.args[0]), call)
        if last in ("multiple_of", "max_contiguous", "max_constancy"):
            return self.term(call.args[0])
        return None

    def _block(self, call: Call) -> Term:
        """A pointer to a block, whose elements are not read."""
        given = (*call.args, *(each for _, each in call.named if not isinstance(each, Call)))
        terms = tuple(self.term(each) for each in given if not isinstance(each, Call) or each.name != "[]")
        address = next((each.dtype for each in terms if is_address(each.dtype)), "*float32")
        return Unread(call.name, address, terms)

    def _several(self, call: Call) -> Value | None:
        """The results of a function that may have several. None for other functions."""
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
        dtype = self._dtype(type_)
        return cast(term, dtype) if dtype else Unread("to", args=(term,))

    def _dtype(self, given: object) -> str | None:
        """The dtype that `tl.float16`, `x.dtype` or `x_ptr.dtype.element_ty` names, if known."""
        if not isinstance(given, Name):
            return None
        variable, dot, of = re.sub(r"\.type\b", ".dtype", given.name).partition(".dtype")
        known = self.names.get(variable) if dot else None
        if not isinstance(known, Term):
            return dtype_of(given.name)
        return known.dtype.removeprefix("*") if of == ".element_ty" else known.dtype

    def _full(self, call: Call) -> Term:
        value, dtype = self.term(call.args[1]), call.argument("dtype", 2)
        known = self._dtype(dtype)
        return cast(value, known) if known else value if dtype is None else Unread("full", args=(value,))

    def _inlined(self, function: ast.FunctionDef, call: Call) -> Value:
        """What a function of the same source returns for these arguments."""
        if self.depth >= DEEPEST:
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
        return made[0] if len(made) == 1 else Unread(call.name)  # several: the result depends on the path

    def _reduced(self, kind: str, value: Term, call: Call, position: int = 1) -> Term:
        """Build a reduction over the r axes of a generated kernel, or over an axis of a block."""
        axis, dtype = call.argument("axis", position), call.argument("dtype", 9)
        value = cast(value, dtype_of(dtype.name)) if isinstance(dtype, Name) else value
        if isinstance(value, Fold) and value.kind == kind and not self._lanes(value):
            return value  # a loop has accumulated it
        ranges = self.reduced_axes(value) if self.generated else self._block_axes(value, axis)
        if not ranges:
            return Unread(kind, value.dtype, (value,))
        fold = Fold(kind, ranges, value, "int64" if kind.startswith("arg") else promoted(value.dtype))
        kept = call.argument("keep_dims", 9) == Literal(True, "bool")
        left = [name for name in self._lanes(fold) if "@" in name]
        if len(left) != 1 or kept:
            return fold

        def alone(term: Term) -> Term | None:
            """Remove the axis number of the only remaining axis."""
            single = isinstance(term, Position) and term.name == left[0]
            return Position(left[0].partition("@")[0], term.dtype) if single else None

        return rebuilt(fold, alone)

    def _lanes(self, term: Term) -> list[str]:
        prefix = "r" if self.generated else "tl.arange"
        return [name for name in free_positions(term) if name.startswith(prefix)]

    def reduced_axes(self, body: Term) -> tuple[Range, ...]:
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
        """List the loops around this point, and the lanes on which terms depend."""
        names = free_positions(*terms)
        found = {each.name: each for each in self.loops} if not self.generated else {}
        return tuple((found | {name: self._range(name) for name in names}).values())

    def _range(self, name: str) -> Range:
        if name in self.spans:
            return self.spans[name]
        # The number of programs along an axis comes from the launcher's C++ code.
        axis = name.partition("(")[2].rstrip(")")
        blocks = dict(zip("012", map(size_term, self.grid), strict=False)).get(axis)
        return Range(name, Number(0, "int64"), blocks or Unread("grid"))

    def _access(self, place: Place, mask: Term | None, call: ast.Call | None) -> Access:
        """Describe the access of `call` as a load."""
        test = self.test()
        terms = (*(part for part, _ in place.parts), *([test] if test is not None else []))
        line, code = (call.lineno, self._text(call)) if call is not None else (self.line, "")
        known = Access(kind="load", place=place, ranges=self.ranges(*terms), test=test, line=line, code=code)
        return replace(known, masked=mask is not None)

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
        stored = cast(stored, pointer.dtype.removeprefix("*")) if is_address(pointer.dtype) else Unread(how)
        place = place_of(pointer)
        with self.where(mask):
            access = self._access(place, mask, call.node)
        self.accesses.append(Store.of(access, "store" if how == "store" else "update", stored, mode))
        if not place.parameter:
            self.unread.append(self.line)


def ceiling(total: Term, step: Term) -> Term:
    """Divide, rounding up: minus the floor division of the negated value."""
    return operator("neg", (operator("floordiv", (operator("neg", (total,)), step)),))


_LONGEST = 400_000  # characters of a source
_SIGNATURE = re.compile(r"'signature':\s*\{(?P<entries>[^{}]*)\}")
_CONSTANTS = re.compile(r"'constants':\s*\{(?P<entries>[^{}]*)\}")
_ENTRY = re.compile(r"'(?P<name>\w+)':\s*'?(?P<value>[^,'}]+)")


def signature_of(source: str) -> dict[str, str]:
    """Read types such as `*fp32` and `i64` by parameter from the `triton_meta` in a kernel's source."""
    found = _SIGNATURE.search(source)
    return dict(_ENTRY.findall(found["entries"])) if found else {}


def constants_of(source: str) -> dict[str, int]:
    """Read integer `tl.constexpr` arguments by name from the `triton_meta` in the source."""
    found = _CONSTANTS.search(source)
    values = _ENTRY.findall(found["entries"]) if found else []
    return {name: int(value) for name, value in values if value.strip().lstrip("-").isdecimal()}


def function_of(kernel: Source) -> ast.FunctionDef | None:
    """The kernel's own function, the last one in its source. None if it cannot be parsed."""
    tree = parsed(kernel.source)
    body = reversed(tree.body) if tree is not None else ()
    return next((node for node in body if isinstance(node, ast.FunctionDef)), None)


def parsed(source: str) -> ast.Module | None:
    """Parse a kernel's source, without its indentation. None if it is invalid or too long."""
    try:
        return ast.parse(textwrap.dedent(source)) if len(source) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def module_numbers(tree: ast.Module) -> dict[str, Term]:
    """Read the module's integers: `NAME = 16`, `NAME = tl.constexpr(16)`."""
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


def given_arguments(kernel: Source, function: ast.FunctionDef) -> dict[str, Term]:
    """Read the parameters of a kernel: addresses, numbers that were compiled in, and scalars."""
    types, constants = signature_of(kernel.source), constants_of(kernel.source)
    tensors = {each.name for each in kernel.parameters if each.type == "tensor"}
    found: dict[str, Term] = {}
    for argument in function.args.args:
        name, fixed = argument.arg, argument.annotation is not None
        type_ = types.get(name, "")
        if name in constants:
            found[name] = Number(constants[name], whole_dtype(constants[name]))
        elif type_.startswith("*") or name in tensors:
            found[name] = Size(name, f"*{dtype_of(type_) or 'float32'}")
        else:
            fixed = fixed and ast.unparse(argument.annotation) == "tl.constexpr"  # type: ignore[arg-type]
            found[name] = Size(name, "int32" if fixed else dtype_of(type_) or "int64")
    return found
