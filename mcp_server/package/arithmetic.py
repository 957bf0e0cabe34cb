"""Evaluates shape expressions of generated C++ exactly, without executing anything.

Covers what `cexpr` (torch/_inductor/codegen/cpp_utils.py, 2.8-2.15) prints for sizes and strides: sums,
products, rational factors (`(1.0/2.0)*n`), floor division, modulus, min and max.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

_MAX_LENGTH = 2000
_LARGEST = 1 << 256
_REWRITES = (
    (re.compile(r"(?<=\d)L+\b"), ""),
    (re.compile(r"static_cast<\w+>"), ""),
    (re.compile(r"(?:c10|at::native)::div_floor_integer"), "floordiv"),
    (re.compile(r"std::(min|max)(?:<\w+>)?"), r"\1"),
)
_Operator = Callable[[Fraction, Fraction], Fraction | int]
_BINARY: dict[type[ast.operator], _Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, _Operator] = {"floordiv": operator.floordiv, "min": min, "max": max}


class _Unknown(Exception):
    """The expression has a name without a value, or is not arithmetic."""


def evaluate(text: str, values: Mapping[str, int]) -> Fraction | None:
    """The value of `text`; None for an unknown name, other syntax or division by zero."""
    if len(text) > _MAX_LENGTH:
        return None
    try:
        return _value(_parsed(text).body, values)
    except (_Unknown, SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def names_in(text: str) -> tuple[str, ...]:
    """The symbols of an expression, in order; empty if it cannot be parsed."""
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(name for name in names if name not in _FUNCTIONS))


def _parsed(text: str) -> ast.Expression:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return ast.parse(text.strip(), mode="eval")


def _value(node: ast.expr, values: Mapping[str, int]) -> Fraction:
    result = _raw_value(node, values)
    if abs(result) > _LARGEST:
        raise _Unknown
    return result


def _raw_value(node: ast.expr, values: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number):
            return Fraction(number)
        case ast.Name(id=name) if name in values:
            return Fraction(values[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return Fraction(_BINARY[type(op)](_value(left, values), _value(right, values)))
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _FUNCTIONS:
            return Fraction(_FUNCTIONS[name](_value(left, values), _value(right, values)))
    raise _Unknown


_WHOLE = re.compile(r"[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """Parse an integer; None for other text, and for more digits than 64 bits have.

    Stricter than `int`, which raises beyond 4,300 digits, and `str.isdigit`, which accepts "²".
    """
    return int(text) if _WHOLE.fullmatch(text) else None
