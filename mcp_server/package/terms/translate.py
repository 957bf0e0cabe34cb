"""Turns syntax into terms: the meaning of the functions in generated code.

The tables follow torch/_inductor/codegen/cpp.py, cpp_prefix.h and triton.py of torch 2.8 to 2.15. Vector code
is read element by element: a loop that steps by a vector's width counts as one that steps by 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from mcp_server.package.terms.evaluate import MATH
from mcp_server.package.terms.interval import limits
from mcp_server.package.terms.parts import say, uncast
from mcp_server.package.terms.syntax import Call, Item, Literal, Name, Operation, Syntax
from mcp_server.package.terms.term import (
    Apply,
    Number,
    Scalar,
    Term,
    Unread,
    dtype_of,
    is_address,
    is_float,
    promoted,
    type_of,
)

Lookup = Callable[[str], Term]

_SPELLINGS = {
    "neg": "neg",
    "round": "nearbyint rint round",
    "remainder": "fmod mod",
    "mod": "remainder_integral remainder_integer div_mod",
    "floordiv": "floor_divide_integral div_floor_integer div_floor_floating div_floor_floating_vec",
    "truncdiv": "div_trunc_integer",
    "maximum": "maximum max max_propagate_nan clamp_min",
    "minimum": "minimum min min_propagate_nan clamp_max",
    "div": "div_rn fdiv fast_dividef",
    "exp": "fast_expf",
    "sqrt": "sqrt_rn",
    "rand_cpu": "normalized_rand_cpu",
}
"""Functions whose name differs from their operator's."""
_DRAWN = {
    **dict.fromkeys(("rand", "randn", "rand_cpu", "randn_cpu"), "float32"),
    **dict.fromkeys(("randint64", "randint64_cpu"), "int64"),
}
"""Random numbers by seed and offset, with their types. Triton draws other numbers from the same seed."""
_NAMED = {
    **{name: name for name in (*MATH, *_DRAWN)},
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


def operation_of(syntax: Syntax) -> tuple[str, tuple[Syntax, ...]]:
    """An expression's operator and operands; the operator is "" if it is not an operator on values."""
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
    """Turns expressions into terms. A subclass defines names, loads and the calls of its language.

    With `masks_hold`, a name such as `xmask` or `r0_mask` is read as True, and its definition is not used.
    """

    def __init__(self, look: Lookup, *, masks_hold: bool = True) -> None:
        self._look, self.masks_hold = look, masks_hold

    def look(self, name: str) -> Term:
        """The value of a name."""
        return self._look(name)

    def loaded(self, pointer: Term, _mask: Term | None = None, _other: Term | None = None, /) -> Term:
        """The value at an address; `_other` where the mask does not hold."""
        return Unread(f"*{say(pointer)}", args=(pointer,))

    def called(self, _call: Call, /) -> Term | None:
        """The result of a call that only the subclass knows. None for other calls."""
        return None

    def under(self, _test: Term, value: Callable[[], Term], /) -> Term:
        """A value that is computed only where a test holds."""
        return value()

    def on_axis(self, value: Term, _axis: int, /) -> Term:
        """Put the value's range on an axis of a block."""
        return value

    def term(self, syntax: Syntax) -> Term:
        """The term of an expression."""
        match syntax:
            case Literal(value=value, dtype=dtype):
                return Number(value, dtype)
            case Name(name=name) if self.masks_hold and _MASK.fullmatch(name):
                return Number(True, "bool")
            case Name(name=("inf" | "-inf" | "nan") as name):
                return Number(float(name), "float32")
            case Name(name=name):
                return self.look(name)
            case Item(base=base, index=index):
                pointer = self.term(base)  # if no address, it is an array of lanes, read as one
                at = (pointer, self.term(index)) if is_address(pointer.dtype) else ()
                return self.loaded(operator("add", at)) if at else pointer
            case Operation(op="deref", args=(pointer,)):
                return self.loaded(self.term(pointer))
            case Operation(op="axis", args=(value, Literal(value=axis))):
                return self.on_axis(self.term(value), int(axis))
            case Operation(op="div") if operation_of(syntax)[0] == "rsqrt":
                return operator("rsqrt", (self.term(operation_of(syntax)[1][0]),))
            case Operation(op="has_dtype", args=(value, Name(name=dtype))):
                return Number(self.term(value).dtype == dtype_of(dtype), "bool")
            case Operation(op="where", args=(test, first, second)):
                held = self.term(test)
                if isinstance(held, Number):
                    return self.term(first if held.value else second)
                left = self.under(held, lambda: self.term(first))
                return chosen(held, left, self.under(inverted(held), lambda: self.term(second)))
            case Operation(op=op, args=args):
                return operator(op, tuple(map(self.term, args)))
            case Call():
                return self._call(syntax)

    def _call(self, call: Call) -> Term:
        if (found := self.called(call)) is not None:
            return found
        last = call.name.rpartition("::")[2].rpartition(".")[2] or call.name
        type_ = call.template.partition(",")[0]
        args = call.args
        if call.receiver is not None and not call.name.startswith("."):
            args = (call.receiver, *args)
            if last in ("cast", "to") and type_:
                # `mask.template cast<float, 1>()` keeps the test as it is; `mask.to<float, 1>()` does not.
                value = self.term(args[0])
                return value if last == "cast" and value.dtype == "bool" else cast(value, dtype_of(type_))
        if last == "loadu" and call.receiver is not None and len(args) > 1:
            # `test.template loadu<float,1>(place)`: zero where the test fails.
            test = self.term(call.receiver)
            return self.loaded(self.term(args[1]), test, Number(0, dtype_of(type_) or "float32"))

        def at(number: int) -> Term:
            return self.term(args[number])

        if last in ("loadu", "from") and args and is_address((first := at(0)).dtype):
            return self.loaded(first)
        if last == "loadu" and args:
            return at(0)  # the kernel's local array counts as one element
        if (special := self._choice_or_cast(call, last, args, at)) is not None:
            return special
        if last == "arange" or (call.name == "()" and isinstance(args[0], Name | Call)):
            return at(0)
        if last == "clamp" and len(args) == 3:
            return operator("minimum", (operator("maximum", (at(0), at(1))), at(2)))
        if last in ("fma", "fmadd") and len(args) == 3:
            return operator("add", (operator("mul", (at(0), at(1))), at(2)))
        if call.name.startswith(".") and isinstance(call.receiver, Name):
            return self.look(call.receiver.name + call.name)
        if not args and call.name.isidentifier():
            return self.look(call.name)
        if last not in _NAMED:
            return Unread(call.name, args=tuple(map(at, range(len(args)))))
        return operator(_NAMED[last], tuple(map(at, range(len(args)))))

    def _choice_or_cast(self, call: Call, last: str, args: tuple[Syntax, ...], at: Operand) -> Term | None:
        """Translate choices, casts, and constants of a type. None for other calls."""
        type_ = call.template.partition(",")[0]
        if last == "where" and len(args) == 3:
            return chosen(at(0), at(1), at(2))
        if last == "blendv":
            return chosen(at(2), at(1), at(0))
        if last in ("static_cast", "reinterpret_cast", "convert", "c10_convert"):
            return cast(at(0), type_of(type_))
        if dtype := dtype_of(call.name):
            return cast(at(0), dtype)
        if call.name == "decltype" and len(args) == 1:
            return cast(at(0), self.look(call.template).dtype if call.template else None)
        if "numeric_limits" in call.name:
            return _limit(last, call.template)
        if last == "from" and "VecMask" in call.name and len(args) == 1:
            return cast(at(0), "bool")
        if last == "set" and len(args) == 3:
            return at(1)  # the first lanes of a vector; others are not stored
        if last in _PLAIN and args:
            value = at(0)
            broadcast = last.startswith("Vectorized") and isinstance(value, Number)
            return cast(value, dtype_of(type_)) if broadcast else value
        return None


Operand = Callable[[int], Term]


def _limit(what: str, template: str) -> Term:
    """A constant of `std::numeric_limits`."""
    dtype = dtype_of(template) or "float32"
    values: dict[str, Scalar] = {"infinity": math.inf, "quiet_NaN": math.nan}
    span = limits(dtype)
    values |= {"max": span.high, "lowest": span.low} | ({} if is_float(dtype) else {"min": span.low})
    return Number(values[what], dtype) if what in values else Unread(what)


def cast(value: Term, dtype: str | None) -> Term:
    """Convert a value to a type. Unchanged if it already has the type."""
    if dtype is None or value.dtype == dtype:
        return value
    if is_address(value.dtype) and not is_address(dtype):
        return Unread(dtype, dtype, (value,))  # the number of an address is unknown
    if isinstance(value, Number) and dtype != "bool" and (is_float(dtype) or not is_float(value.dtype)):
        return replace(value, dtype=dtype)
    return Apply("cast", (value,), dtype)


def inverted(test: Term) -> Term:
    """The negation of a test."""
    if isinstance(test, Number):
        return Number(not test.value, "bool")
    return test.args[0] if isinstance(test, Apply) and test.op == "not" else Apply("not", (test,), "bool")


def chosen(test: Term, first: Term, second: Term) -> Term:
    """Choose by a test. If the test is constant, such as a mask of the iteration space, return one value."""
    if isinstance(test, Number):
        return first if test.value else second
    if (operands := _rounded_down(test, first, second)) is not None:
        return operator("floordiv", operands)
    if (operands := _of_divisors_sign(test, first, second)) is not None:
        return operator("mod", operands)
    if _is_shift(test, first, second):
        return second
    return Apply("where", (test, first, second), promoted(first.dtype, second.dtype))


def _rounded_down(test: Term, first: Term, second: Term) -> tuple[Term, Term] | None:
    """The operands of an integer floor division in C++ form. None for other choices.

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
    """The operands of a remainder with its divisor's sign, like Python's `%`; else None.

    `r != 0 & (r < 0) != (b < 0) ? r + b : r` with `r = a % b` (`remainder` in
    torch/_inductor/codegen/common.py, torch 2.8-2.15); C++ code uses `signbit` for `r < 0`.
    """
    match test, first, second:
        case (
            Apply("and", (Apply("ne", (a, Number(value=0))), Apply("ne", (negative, of_divisor)))),
            Apply("add", (c, d)),
            Apply("remainder" | "mod", (divided, b)),
        ) if all(_is_same(second, each) for each in (a, c, _signed(negative))):
            return (divided, b) if _is_same(b, d) and _is_same(b, _signed(of_divisor)) else None
    return None


def _is_shift(test: Term, first: Term, second: Term) -> bool:
    """Whether a choice is the shift `second` with a special case for shifts by too many bits.

    `b < 0 || b >= limit ? (0 or a >> limit) : a << b` (cpp.py `bitwise_left_shift`).
    """
    match test, uncast(first), uncast(second):
        case (
            Apply("or", (Apply("lt", (b, Number(value=0))), Apply("ge", (c, Number(value=limit))))),
            beyond,
            Apply("shl" | "shr" as op, (a, d)),
        ) if uncast(b) is uncast(c) is uncast(d):
            match beyond:
                case Number(value=0):
                    return op == "shl"
                case Apply("shr", (e, Number(value=most))):
                    return op == "shr" and e is a and most == limit
    return False


def _signed(term: Term) -> Term | None:
    """The value that a term tests for being negative. None for other terms."""
    match term:
        case Apply("lt", (value, Number(value=0))) | Apply("signbit", (value,)):
            return value
    return None


def _is_same(a: Term, b: Term | None) -> bool:
    """Whether two terms are the same object, or equal numbers."""
    return a is b or (isinstance(a, Number) and isinstance(b, Number) and a.value == b.value)


def operator(op: str, args: tuple[Term, ...]) -> Term:
    """Build an operator, deriving its type from its operands."""
    types = [argument.dtype for argument in args]
    if op == "neg" and isinstance(args[0], Number):
        return replace(args[0], value=-args[0].value)
    if op == "add" and args[1] == Number(0, "int64") and types[0] == "int64":
        return args[0]  # the first lane of a vector
    if all(dtype == "bool" for dtype in types):
        op = {"bitand": "and", "bitor": "or", "bitnot": "not", "bitxor": "ne"}.get(op, op)
    if op in ("and", "or"):
        for this, other in (args, args[::-1]):
            if isinstance(this, Number):  # `True and x` is x, `True or x` is True
                return other if bool(this.value) == (op == "and") else this
    if op in _TESTS or op in _DRAWN:
        return Apply(op, args, _DRAWN.get(op, "bool"))
    dtype = promoted(*(types[:1] if op in ("shl", "shr") else types))
    whole = not is_float(dtype) and op in MATH and op not in _KEEPS_TYPE
    return Apply(op, args, "float32" if whole else dtype)
