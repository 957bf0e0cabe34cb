"""From syntax to terms: the meaning of the functions in generated code.

The tables follow torch/_inductor/codegen/cpp.py, cpp_prefix.h and triton.py of torch 2.8 to 2.15. Vector code
is read element by element: a loop that steps by a vector's width stands for one that steps by 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from mcp_server.package.terms.evaluate import MATH
from mcp_server.package.terms.syntax import Call, Item, Literal, Name, NotRead, Operation, Syntax, read_cpp
from mcp_server.package.terms.term import (
    DTYPES,
    Apply,
    Element,
    Number,
    Size,
    Term,
    Unread,
    is_float,
    promoted,
    say,
    understood,
)

Lookup = Callable[[str], Term]

# Other types are spelled as here, with `_t` in C++ and `tl.` in Triton.
_TYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "long": "int64",
    "int": "int32",
    "int1": "bool",
}
_SPELLINGS = {
    "neg": "neg",
    "round": "nearbyint rint round",
    "remainder": "fmod mod",
    "mod": "remainder_integral remainder_integer",
    "floordiv": "floor_divide_integral div_floor_integer div_floor_floating div_floor_floating_vec",
    "truncdiv": "div_trunc_integer",
    "maximum": "maximum max max_propagate_nan clamp_min",
    "minimum": "minimum min min_propagate_nan clamp_max",
    "div": "div_rn fdiv fast_dividef",
    "exp": "fast_expf",
    "sqrt": "sqrt_rn",
}
"""The functions of an operator that have another name."""
_NAMED = {
    **{name: name for name in MATH},
    **{name: op for op, names in _SPELLINGS.items() for name in names.split()},
}
_TESTS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "isnan", "isinf", "signbit"})
_KEEPS_TYPE = frozenset({"abs", "sign", "pow", "floor", "ceil", "trunc"})
_PLAIN = frozenset(
    {
        *("Vectorized", "VectorizedN", "VecMask", "broadcast_to", "reshape", "view", "expand_dims"),
        *("promote_to_tensor", "multiple_of", "max_contiguous"),
    }
)
_MASK = re.compile(r"[xyzr]\d*_?mask\b|\bmask_?[xyzr]?$")
_DTYPE = re.compile(r"^(?:const\s+)?(?:(?:at|c10|std)::)?([\w.]+)")


def dtype_of(text: str) -> str | None:
    """The type that C++ or Triton spells: `at::BFloat16`, `const int64_t*`, `tl.float32`."""
    match = _DTYPE.match(text.strip().replace("*", ""))
    name = match[1].removeprefix("tl.").removesuffix("_t") if match else ""
    return name if name in DTYPES else _TYPES.get(name)


def operation_of(syntax: Syntax) -> tuple[str, tuple[Syntax, ...]]:
    """The operator of an expression and its operands; "" for what is no operator of values."""
    match syntax:
        case Operation(op="div", args=(Literal(value=1), Call(name="std::sqrt", args=args))):
            return "rsqrt", args  # as torch/_inductor/codegen/cpp.py writes it for scalars
        case Operation(op=op, args=args):
            return op, args
        case Call(name=name, args=args, receiver=receiver):
            last = name.rpartition("::")[2].rpartition(".")[2] or name
            return _NAMED.get(last, ""), args if receiver is None else (receiver, *args)
    return "", ()


class Translator:
    """Turns the expressions of one kernel into terms. `pointers` maps its tensors to their element types.

    `masks_hold`: what is named as a mask of the iteration space holds, in place of what it is defined as.
    `loads` are the elements in all of these expressions.
    """

    def __init__(self, pointers: dict[str, str], *, masks_hold: bool = True) -> None:
        self.pointers, self.masks_hold = pointers, masks_hold
        self.loads: list[Element] = []

    def term(self, syntax: Syntax, look: Lookup, line: int) -> Term:
        """What an expression computes, its names looked up by `look`."""
        match syntax:
            case Literal(value=value, dtype=dtype):
                return Number(value, dtype)
            case Name(name=name) if self.masks_hold and _MASK.fullmatch(name):
                return Number(True, "bool")
            case Name(name=("inf" | "-inf" | "nan") as name):
                return Number(float(name), "float32")
            case Name(name=name):
                return look(name)
            case Item(base=Name(name=name), index=index) if name in self.pointers:
                return self._element(name, self.term(index, look, line), line)
            case Item(base=base):
                return self.term(base, look, line)  # one lane of a vector in an array
            case Operation(op="div") if operation_of(syntax)[0] == "rsqrt":
                return operator("rsqrt", (self.term(operation_of(syntax)[1][0], look, line),))
            case Operation(op="has_dtype", args=(value, Name(name=dtype))):
                return Number(self.term(value, look, line).dtype == dtype_of(dtype), "bool")
            case Operation(op=op, args=args):
                operands = tuple(self.term(each, look, line) for each in args)
                return chosen(*operands) if op == "where" else operator(op, operands)
            case Call():
                return self._call(syntax, look, line)

    def _call(self, call: Call, look: Lookup, line: int) -> Term:
        last = call.name.rpartition("::")[2].rpartition(".")[2] or call.name
        type_ = call.template.partition(",")[0]
        args = call.args
        if call.receiver is not None and not call.name.startswith("."):
            args = (call.receiver, *args)
            if last == "to" and len(args) > 1 and isinstance(args[1], Name):
                return cast(self.term(args[0], look, line), dtype_of(args[1].name))
            if last in ("cast", "to"):
                # `mask.template cast<float, 1>()` keeps the test as it is.
                value = self.term(args[0], look, line)
                return value if value.dtype == "bool" else cast(value, dtype_of(type_))
        if last == "loadu" and isinstance(call.receiver, Call) and "VecMask" in call.receiver.name:
            # `VecMask<float,1>::from(test).template loadu<float,1>(place)`: zero where the test fails.
            loaded = self._load(_pointer(args[1], self.pointers), args[1:], look, line)
            return chosen(self.term(call.receiver, look, line), loaded, Number(0, loaded.dtype))
        pointer = _pointer(args[0], self.pointers) if args else None
        if last in ("loadu", "load") or (last == "from" and pointer is not None):
            return self._load(pointer, args, look, line)

        def at(number: int) -> Term:
            return self.term(args[number], look, line)

        if (special := _choice_or_cast(call, last, args, at, look)) is not None:
            return special
        if call.name in ("tl.program_id", "tl.num_programs", "tl.arange"):
            inner = (str(a.value) if isinstance(a, Literal) else getattr(a, "name", "?") for a in args)
            return look(f"{call.name}({', '.join(inner)})")
        if last == "arange" or (call.name == "()" and isinstance(args[0], Name | Call)):
            return at(0)
        if last == "clamp" and len(args) == 3:
            return operator("minimum", (operator("maximum", (at(0), at(1))), at(2)))
        if last in ("fma", "fmadd") and len(args) == 3:
            return operator("add", (operator("mul", (at(0), at(1))), at(2)))
        if call.name.startswith(".") and isinstance(call.receiver, Name):
            return look(call.receiver.name + call.name)
        if not args and call.name.isidentifier():
            return look(call.name)
        if last == "vec_reduce_all" and args:
            return at(len(args) - 1)
        if last not in _NAMED:
            return Unread(call.name, args=tuple(map(at, range(len(args)))))
        return operator(_NAMED[last], tuple(map(at, range(len(args)))))

    def _element(self, parameter: str, index: Term, line: int) -> Element:
        self.loads.append(Element(parameter, index, self.pointers[parameter], line))
        return self.loads[-1]

    def _load(
        self, pointer: tuple[str, Syntax | None] | None, args: tuple[Syntax, ...], look: Lookup, line: int
    ) -> Term:
        if pointer is None:
            return self.term(args[0], look, line) if args else Unread("load")
        name, index = pointer
        place = self.term(index, look, line) if index is not None else Number(0, "int64")
        loaded = self._element(name, place, line)
        other = next((a for a in args if isinstance(a, Call) and a.name == "other"), None)
        mask = next((a for a in args[1:] if a is not other and not isinstance(a, Literal)), None)
        # `static_cast<int64_t>(8L)` behind a C++ pointer is the number of lanes.
        lanes = isinstance(mask, Call) and mask.name == "static_cast"
        if other is None or mask is None or lanes:
            return loaded
        return chosen(self.term(mask, look, line), loaded, self.term(other.args[0], look, line))


Operand = Callable[[int], Term]


def _choice_or_cast(
    call: Call, last: str, args: tuple[Syntax, ...], at: Operand, look: Lookup
) -> Term | None:
    """Choices, casts, and constants of a type; None for another call."""
    type_ = call.template.partition(",")[0]
    if last == "where" and len(args) == 3:
        return chosen(at(0), at(1), at(2))
    if last == "blendv":
        return chosen(at(2), at(1), at(0))
    if last in ("static_cast", "convert", "c10_convert"):
        return cast(at(0), dtype_of(type_))
    if dtype := dtype_of(call.name):
        return cast(at(0), dtype)
    if call.name == "decltype" and len(args) == 1:
        return cast(at(0), look(call.template).dtype if call.template else None)
    if "numeric_limits" in call.name:
        return _limit(last, call.template)
    if last == "from" and "VecMask" in call.name and len(args) == 1:
        return cast(at(0), "bool")
    if last == "set" and len(args) == 3:
        return at(1)  # the first lanes of a vector: the others are not stored
    if last in _PLAIN and args:
        value = at(0)
        broadcast = last.startswith("Vectorized") and isinstance(value, Number)
        return cast(value, dtype_of(type_)) if broadcast else value
    if last == "full" and len(args) > 1 and isinstance(args[-1], Name):
        variable, dot, _ = args[-1].name.partition(".dtype")  # `tmp13.dtype`
        return cast(at(len(args) - 2), look(variable).dtype if dot else dtype_of(variable))
    return None


def _pointer(syntax: Syntax, pointers: dict[str, str]) -> tuple[str, Syntax | None] | None:
    """The tensor and the index of `in_ptr0 + (x0)`."""
    match syntax:
        case Name(name=name) if name in pointers:
            return name, None
        case Operation(op="add", args=(left, right)):
            if (found := _pointer(left, pointers)) is not None:
                name, index = found
                return name, right if index is None else Operation("add", (index, right))
    return None


def _limit(what: str, template: str) -> Term:
    """A constant of `std::numeric_limits`."""
    dtype = dtype_of(template) or "float32"
    values: dict[str, float] = {"infinity": math.inf, "quiet_NaN": math.nan}
    if is_float(dtype):
        values |= {"max": 3.4028234663852886e38, "lowest": -3.4028234663852886e38}
    if dtype in ("int64", "int32"):
        top = 1 << (int(dtype[3:]) - 1)
        values |= {"max": top - 1, "min": -top, "lowest": -top}
    return Number(values[what], dtype) if what in values else Unread(what)


def cast(value: Term, dtype: str | None) -> Term:
    """A value converted to a type, or unchanged if it has that type."""
    if dtype is None or value.dtype == dtype:
        return value
    if isinstance(value, Number) and dtype != "bool" and (is_float(dtype) or not is_float(value.dtype)):
        return replace(value, dtype=dtype)
    return Apply("cast", (value,), dtype)


def chosen(test: Term, first: Term, second: Term) -> Term:
    """A choice by a test; masks of the iteration space alone choose the first."""
    if isinstance(test, Number):
        return first if test.value else second
    if (operands := _rounded_down(test, first, second)) is not None:
        return operator("floordiv", operands)
    if (operands := _of_divisors_sign(test, first, second)) is not None:
        return operator("mod", operands)
    return Apply("where", (test, first, second), promoted(first.dtype, second.dtype))


def _rounded_down(test: Term, first: Term, second: Term) -> tuple[Term, Term] | None:
    """The operands of a floor division of whole numbers as C++ code writes it; None for another choice.

    `(a < 0) != (b < 0) ? (a % b != 0 ? a / b - 1 : a / b) : a / b` (cpp.py `floordiv`, torch 2.8-2.12).
    """
    match test, first, second:
        case (
            Apply("ne", (Apply("lt", (a, Number(0))), _)),
            Apply(
                "where",
                (
                    Apply("ne", (Apply("remainder" | "fmod", (c, d)), Number(0))),
                    Apply("sub", (Apply("div" | "truncdiv", (e, f)), Number(1))),
                    Apply("div" | "truncdiv"),
                ),
            ),
            Apply("div" | "truncdiv", (g, h)),
        ) if all(_is_same(a, each) for each in (c, e, g)) and all(_is_same(h, each) for each in (d, f)):
            return None if is_float(second.dtype) else (g, h)
    return None


def _of_divisors_sign(test: Term, first: Term, second: Term) -> tuple[Term, Term] | None:
    """The operands of a remainder with the sign of its divisor, as Python's `%`; None for another choice.

    `r != 0 & (r < 0) != (b < 0) ? r + b : r` with `r = a % b` (`remainder` in
    torch/_inductor/codegen/common.py, torch 2.8-2.15); for `r < 0` C++ code has `signbit`.
    """
    match test, first, second:
        case (
            Apply("and", (Apply("ne", (a, Number(value=0))), Apply("ne", (negative, of_divisor)))),
            Apply("add", (c, d)),
            Apply("remainder" | "mod", (divided, b)),
        ) if all(_is_same(second, each) for each in (a, c, _signed(negative))):
            return (divided, b) if _is_same(b, d) and _is_same(b, _signed(of_divisor)) else None
    return None


def _signed(term: Term) -> Term | None:
    """What a term asks to be negative."""
    match term:
        case Apply("lt", (value, Number(value=0))) | Apply("signbit", (value,)):
            return value
    return None


def _is_same(a: Term, b: Term | None) -> bool:
    """Whether two terms are one, or the same number."""
    return a is b or (isinstance(a, Number) and isinstance(b, Number) and a.value == b.value)


def in_words(text: str) -> str:
    """A C++ expression over sizes as a model has it: `s71 // 2`; as it is where it is not understood."""
    term = size_term(text)
    return say(term) if term is not None and understood(term) else text


def size_term(text: str) -> Term | None:
    """A C++ expression over sizes as a term; None for other text."""
    try:
        return Translator({}).term(read_cpp(text), Size, 0)
    except (NotRead, RecursionError, IndexError):
        return None


def operator(op: str, args: tuple[Term, ...]) -> Term:
    """An operator, with the type that follows from those of its operands."""
    types = [argument.dtype for argument in args]
    if op == "neg" and isinstance(args[0], Number):
        return replace(args[0], value=-args[0].value)
    if all(dtype == "bool" for dtype in types):
        op = {"bitand": "and", "bitor": "or", "bitnot": "not", "bitxor": "ne"}.get(op, op)
    if op in ("and", "or"):
        for this, other in (args, args[::-1]):
            if isinstance(this, Number):  # the other operand of `mask & test`
                return other if bool(this.value) == (op == "and") else this
    if op in _TESTS:
        return Apply(op, args, "bool")
    dtype = promoted(*(types[:1] if op in ("shl", "shr") else types))
    whole = not is_float(dtype) and op in MATH and op not in _KEEPS_TYPE
    return Apply(op, args, "float32" if whole else dtype)
