"""From syntax to terms: what the functions of generated code mean.

The tables follow torch/_inductor/codegen/cpp.py, cpp_prefix.h and triton.py of torch 2.8 to 2.15. Vector code
is read element by element: a loop that steps by a vector's width stands for one that steps by 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mcp_server.package.terms.syntax import Call, Item, Literal, Name, Syntax
from mcp_server.package.terms.term import Apply, Element, Number, Term, Unread, is_float, promoted

Lookup = Callable[[str], Term]

_TYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "int64_t": "int64",
    "int32_t": "int32",
    "int16_t": "int16",
    "int8_t": "int8",
    "uint8_t": "uint8",
    "long": "int64",
    "int": "int32",
    "bool": "bool",
    "tl.float32": "float32",
    "tl.float64": "float64",
    "tl.float16": "float16",
    "tl.bfloat16": "bfloat16",
    "tl.int64": "int64",
    "tl.int32": "int32",
    "tl.int16": "int16",
    "tl.int8": "int8",
    "tl.uint8": "uint8",
    "tl.int1": "bool",
}
_SIGNS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "remainder",
    "py%": "mod",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "==": "eq",
    "!=": "ne",
    "&&": "and",
    "||": "or",
    "&": "bitand",
    "|": "bitor",
    "^": "bitxor",
    "<<": "shl",
    ">>": "shr",
    "unary -": "neg",
    "unary !": "not",
    "unary ~": "bitnot",
}
_SAME = {
    name: name
    for name in (
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "asin",
        "acos",
        "atan",
        "atan2",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "sigmoid",
        "floor",
        "ceil",
        "trunc",
        "abs",
        "hypot",
        "copysign",
        "reciprocal",
        "isnan",
        "isinf",
        "signbit",
        "sign",
        "pow",
    )
}
_NAMED = {
    **_SAME,
    "nearbyint": "round",
    "rint": "round",
    "round": "round",
    "fmod": "remainder",
    "mod": "remainder",
    "remainder_integral": "mod",
    "remainder_integer": "mod",
    "floor_divide_integral": "floordiv",
    "div_floor_integer": "floordiv",
    "max_propagate_nan": "maximum",
    "min_propagate_nan": "minimum",
    "maximum": "maximum",
    "minimum": "minimum",
    "clamp_min": "maximum",
    "clamp_max": "minimum",
    "max": "maximum",
    "min": "minimum",
    "neg": "neg",
    "div_rn": "div",
    "fdiv": "div",
    "fast_expf": "exp",
    "fast_dividef": "div",
    "sqrt_rn": "sqrt",
}
_TESTS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "isnan", "isinf", "signbit"})
_WHOLE = frozenset({"floordiv", "truncdiv"})
_PLAIN = frozenset(
    {"Vectorized", "VectorizedN", "VecMask", "broadcast_to", "reshape", "expand_dims", "promote_to_tensor"}
)
_MASK = re.compile(r"[xyzr]\d*_?mask\b|\bmask_?[xyzr]?$")
_DTYPE = re.compile(r"^(?:const\s+)?(?:(?:at|c10|std)::)?([\w.]+)")


def dtype_of(text: str) -> str | None:
    """The type that C++ or Triton spells: `at::BFloat16`, `const int64_t*`, `tl.float32`."""
    match = _DTYPE.match(text.strip().replace("*", ""))
    return _TYPES.get(match[1]) if match else None


class Translator:
    """Turns the expressions of one kernel into terms. `pointers` maps its tensors to their element types."""

    def __init__(self, pointers: dict[str, str]) -> None:
        self.pointers = pointers

    def term(self, syntax: Syntax, look: Lookup, line: int) -> Term:
        """What an expression computes, its names looked up by `look`."""
        match syntax:
            case Literal(value=value, dtype=dtype):
                return Number(value, dtype)
            case Name(name=name):
                return self._name(name, look)
            case Item(base=Name(name=name), index=index) if name in self.pointers:
                return Element(name, self.term(index, look, line), self.pointers[name], line)
            case Item(base=base):
                return self.term(base, look, line)  # one lane of a vector in an array
            case Call():
                return self._call(syntax, look, line)

    def _name(self, name: str, look: Lookup) -> Term:
        if _MASK.fullmatch(name):
            return Number(True, "bool")
        if name in ("inf", "-inf", "nan"):
            return Number(float(name), "float32")
        return look(name)

    def _call(self, call: Call, look: Lookup, line: int) -> Term:
        last = call.name.rpartition("::")[2].rpartition(".")[2] or call.name
        if call.receiver is not None and not call.name.startswith("."):
            args = (call.receiver, *call.args)
            if last == "to" and len(args) > 1 and isinstance(args[1], Name):
                return cast(self.term(args[0], look, line), dtype_of(args[1].name))
            if last in ("cast", "to"):
                return self._cast_mask(call, args[0], look, line)
        else:
            args = call.args
        if last in ("loadu", "load") or (last == "from" and args and _points(args[0], self.pointers)):
            return self._load(args, look, line)
        special = self._special(call, last, args, look, line)
        if special is not None:
            return special
        op = _SIGNS.get(call.name) or _NAMED.get(last)
        if op is None:
            return Unread(call.name)
        return operator(op, tuple(self.term(each, look, line) for each in args))

    def _special(
        self, call: Call, last: str, args: tuple[Syntax, ...], look: Lookup, line: int
    ) -> Term | None:
        """What is neither an operator nor a function of values; None for those."""

        def at(number: int) -> Term:
            return self.term(args[number], look, line)

        if call.name == "?" or (last == "where" and len(args) == 3):
            return chosen(at(0), at(1), at(2))
        if last == "blendv":
            return chosen(at(2), at(1), at(0))
        if last in ("static_cast", "convert", "c10_convert"):
            return cast(at(0), dtype_of(call.template.partition(",")[0]))
        if call.name in _TYPES:
            return cast(at(0), _TYPES[call.name])
        if call.name == "decltype" and len(args) == 1:
            like = look(call.template) if call.template else None
            return cast(at(0), like.dtype if like is not None else None)
        if "numeric_limits" in call.name:
            return _limit(last, call.template)
        if last in _PLAIN and args:
            value = at(0)
            broadcast = last.startswith("Vectorized") and isinstance(value, Number)
            return cast(value, dtype_of(call.template.partition(",")[0])) if broadcast else value
        if last == "full" and len(args) > 1 and isinstance(args[-1], Name):
            return cast(at(len(args) - 2), _dtype_named(args[-1].name, look))
        return self._rarer(call, last, args, look, line)

    def _rarer(self, call: Call, last: str, args: tuple[Syntax, ...], look: Lookup, line: int) -> Term | None:
        def at(number: int) -> Term:
            return self.term(args[number], look, line)

        if last == "arange" and call.name != "tl.arange":
            return at(0)
        if call.name in ("tl.program_id", "tl.arange"):
            return look(_spelled(call))
        if last == "float" and len(args) == 1:
            return at(0)
        if last == "clamp" and len(args) == 3:
            return operator("minimum", (operator("maximum", (at(0), at(1))), at(2)))
        if last in ("fma", "fmadd") and len(args) == 3:
            return operator("add", (operator("mul", (at(0), at(1))), at(2)))
        if last == "div_trunc_integer":
            return operator("truncdiv", (at(0), at(1)))
        if call.name.startswith(".") and isinstance(call.receiver, Name):
            return look(call.receiver.name + call.name)
        if call.name == "()" and isinstance(args[0], Name | Call):
            return at(0)
        if not args and call.name.isidentifier():
            return look(call.name)
        if last in ("vec_reduce_all", "promote_to_tensor") and args:
            return self.term(args[-1], look, line)
        return None

    def _load(self, args: tuple[Syntax, ...], look: Lookup, line: int) -> Term:
        pointer = _pointer(args[0], self.pointers) if args else None
        if pointer is None:
            return self.term(args[0], look, line) if args else Unread("load")
        name, index = pointer
        place = self.term(index, look, line) if index is not None else Number(0, "int64")
        loaded = Element(name, place, self.pointers[name], line)
        other = next((a for a in args if isinstance(a, Call) and a.name == "other"), None)
        mask = next((a for a in args[1:] if a is not other and not isinstance(a, Literal)), None)
        if other is None or mask is None or _is_size(mask):
            return loaded
        return chosen(self.term(mask, look, line), loaded, self.term(other.args[0], look, line))

    def _cast_mask(self, call: Call, receiver: Syntax, look: Lookup, line: int) -> Term:
        """`mask.template cast<float, 1>()` keeps the test as it is; other casts change the type."""
        value = self.term(receiver, look, line)
        return value if value.dtype == "bool" else cast(value, dtype_of(call.template.partition(",")[0]))


def _dtype_named(name: str, look: Lookup) -> str | None:
    """The type of `tl.float32`, or of `tmp13.dtype`."""
    variable = name.removesuffix(".dtype")
    return dtype_of(name) if variable == name else look(variable).dtype


def _is_size(syntax: Syntax) -> bool:
    """`static_cast<int64_t>(8L)` behind a C++ pointer: how many lanes are loaded."""
    return isinstance(syntax, Call) and syntax.name == "static_cast"


def _spelled(call: Call) -> str:
    inner = ", ".join(str(a.value) if isinstance(a, Literal) else getattr(a, "name", "?") for a in call.args)
    return f"{call.name}({inner})"


def _points(syntax: Syntax, pointers: dict[str, str]) -> bool:
    return _pointer(syntax, pointers) is not None


def _pointer(syntax: Syntax, pointers: dict[str, str]) -> tuple[str, Syntax | None] | None:
    """The tensor and the index of `in_ptr0 + (x0)`."""
    match syntax:
        case Name(name=name) if name in pointers:
            return name, None
        case Call(name="+", args=(left, right)):
            found = _pointer(left, pointers)
            if found is None:
                return None
            name, index = found
            return name, right if index is None else Call("+", (index, right))
    return None


def _limit(what: str, template: str) -> Term:
    dtype = dtype_of(template) or "float32"
    values: dict[str, float] = {"infinity": float("inf"), "quiet_NaN": float("nan")}
    if is_float(dtype) and what in ("max", "lowest"):
        values |= {"max": 3.4028234663852886e38, "lowest": -3.4028234663852886e38}
    if dtype in ("int64", "int32"):
        bits = int(dtype[3:])
        values |= {"max": (1 << (bits - 1)) - 1, "min": -(1 << (bits - 1)), "lowest": -(1 << (bits - 1))}
    return Number(values[what], dtype) if what in values else Unread(what)


def cast(value: Term, dtype: str | None) -> Term:
    """A value as another type; as it is where it has that type."""
    if dtype is None or value.dtype == dtype:
        return value
    if isinstance(value, Number) and dtype != "bool" and (is_float(dtype) or not is_float(value.dtype)):
        return replace(value, dtype=dtype)
    return Apply("cast", (value,), dtype)


def chosen(test: Term, first: Term, second: Term) -> Term:
    """A choice by a test; masks of the iteration space alone choose the first."""
    if isinstance(test, Number):
        return first if test.value else second
    return Apply("where", (test, first, second), promoted(first.dtype, second.dtype))


def operator(op: str, args: tuple[Term, ...]) -> Term:
    """An operator with the type that its operands give it."""
    types = [argument.dtype for argument in args]
    if op == "neg" and isinstance(args[0], Number):
        return replace(args[0], value=-args[0].value)
    if all(dtype == "bool" for dtype in types):
        op = {"bitand": "and", "bitor": "or", "bitnot": "not", "bitxor": "ne"}.get(op, op)
    if op in ("and", "or") and (known := _decided(op, args)) is not None:
        return known
    if op in _TESTS:
        return Apply(op, args, "bool")
    dtype = promoted(*(types[:1] if op in ("shl", "shr") else types))
    if op in _WHOLE or is_float(dtype) or op in _KEEPS_TYPE:
        return Apply(op, args, dtype)
    return Apply(op, args, "float32" if op in _SAME and op not in _KEEPS_TYPE else dtype)


_KEEPS_TYPE = frozenset({"abs", "sign", "pow", "floor", "ceil", "trunc"})


def _decided(op: str, args: tuple[Term, ...]) -> Term | None:
    """The other operand of `mask & test`."""
    for this, other in (args, args[::-1]):
        if isinstance(this, Number):
            return other if bool(this.value) == (op == "and") else this
    return None
