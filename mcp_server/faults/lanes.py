"""What the lanes of a Triton value hold beyond its mask, through the arithmetic of the language."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

UNKNOWN = math.nan
_FLOAT: dict[str, Callable[[float], float]] = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "sqrt": math.sqrt, "abs": abs,
    "sin": math.sin, "cos": math.cos, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid"})


@dataclass(frozen=True)
class Lanes:
    """What is known of a value, lane by lane.

    `uniform`: the same in all lanes, and `filler` its number where known. Else a value whose lanes beyond
    `mask` hold `filler` (NaN: something else than a neutral value, or nobody knows), loaded by `load`.
    """

    filler: float
    uniform: bool = False
    never_negative: bool = False
    load: ast.Call | None = None
    mask: str = ""


def number(node: ast.expr) -> float | None:
    """A literal number, also written as float("-inf")."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = number(node.operand)
        return -value if value is not None else None
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "float"
        and node.args
    ):
        text = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        return {"inf": math.inf, "-inf": -math.inf}.get(str(text).strip())
    return None


def computed(op: ast.operator, a: float, b: float) -> float:
    """The filler of a result. Zero times anything counts as zero; an infinity stays what it was.

    A scale that nobody knows is taken to be positive.
    """
    if math.isinf(b) and not math.isinf(a) and isinstance(op, (ast.Add, ast.Mult)):
        a, b = b, a
    if math.isinf(a) and not math.isinf(b) and (math.isnan(b) or not isinstance(op, (ast.Mult, ast.Div))):
        return a
    if isinstance(op, ast.Mult):
        return 0.0 if 0 in (a, b) else a * b
    if isinstance(op, ast.Div):
        return 0.0 if a == 0 else a / b if b else UNKNOWN
    if not isinstance(op, (ast.Add, ast.Sub)):
        return UNKNOWN
    return a + b if isinstance(op, ast.Add) else a - b


def stays(op: ast.operator, a: Lanes, b: Lanes) -> bool:
    return a.never_negative and b.never_negative and isinstance(op, (ast.Add, ast.Mult, ast.Div))


def extreme(name: str, a: Lanes | None, b: Lanes | None) -> Lanes | None:
    """A running maximum keeps what its lanes began with; the larger of a value and 0 is never negative."""
    if a is None or b is None or not (a.uniform or b.uniform or a.mask == b.mask):
        return None
    pick = max if name == "maximum" else min
    masked = a if not a.uniform else b
    unknown = math.isnan(a.filler) or math.isnan(b.filler)
    filler = UNKNOWN if unknown else pick(a.filler, b.filler)
    clamped = name == "maximum" and b.uniform and b.never_negative
    both = a.never_negative and b.never_negative
    return replace(masked, filler=filler, uniform=a.uniform and b.uniform, never_negative=clamped or both)


def mapped(name: str | None, value: Lanes) -> Lanes | None:
    """An element-wise function of the language."""
    if name not in _FLOAT:
        return None
    try:
        filler = _FLOAT[name](value.filler)
    except (ValueError, OverflowError):
        filler = UNKNOWN
    return replace(value, filler=filler, never_negative=name in _NEVER_NEGATIVE)
