"""Terms in the words of the model: `floor(sqrt((clamp(x, 1, 500) - 1) / 499) * 64)`.

What code generation adds is left out: casts that keep the value, the wrap of negative indices, an unrolled
reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Scalar,
    Size,
    Term,
    Unread,
    is_float,
    key,
)

_LEVELS: tuple[dict[str, str], ...] = (
    {"or": "or"},
    {"and": "and"},
    {},  # not
    {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="},
    {"bitor": "|"},
    {"bitxor": "^"},
    {"bitand": "&"},
    {"shl": "<<", "shr": ">>"},
    {"add": "+", "sub": "-"},
    {"mul": "*", "div": "/", "truncdiv": "/", "floordiv": "//", "mod": "%", "remainder": "%"},
)
"""Infix operators, those that bind least first."""
_INFIX = {op: (sign, binding) for binding, signs in enumerate(_LEVELS, 1) for op, sign in signs.items()}
_UNROLLED = {"maximum": "max", "minimum": "min", "add": "sum", "mul": "prod"}
_WHOLE = frozenset({"floor", "ceil", "trunc", "round"})
_LONGEST = 600  # letters of a text
_MOST = 4000  # parts written out
_ALIKE = 100  # words by which two operands are compared
_NICE: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "log1p": (math.log1p, math.expm1),
    "log": (math.log, math.exp),
    "sqrt": (math.sqrt, lambda value: value * value),
    "log2": (math.log2, lambda value: 2.0**value),
    "exp": (math.exp, math.log),
}
"""Functions of a model that a compiler folds into constants, each with its inverse."""

NameOf = Callable[[Element], str]


class _Writer:
    def __init__(self, name_of: NameOf, atens: Collection[str]) -> None:
        self.name_of = name_of
        self.operators = {each.rpartition(".")[2].rstrip("_0123456789") for each in atens}
        self.left = _MOST
        self.unrolled: dict[Apply, list[Term]] = {}

    def text(self, term: Term, outer: int = 0) -> str:
        """The term, in parentheses if it binds less than `outer`."""
        self.left -= 1
        if self.left < 0:  # a shared part is written out wherever it stands
            return "..."
        match term:
            case Number(value=value, dtype=dtype):
                return number(value, dtype, self.operators)
            case Position(name=name) | Size(name=name):
                return name
            case Element():
                return self.name_of(term)
            case Fold(kind=kind, body=body):
                return f"{kind}({self.text(body)})"
            case Unread(text=text):
                return f"<{text}>"
            case Apply():
                return self._applied(term, outer)

    def _applied(self, term: Apply, outer: int) -> str:
        op, args = term.op, term.args
        if op == "cast":
            return self._cast(term, outer)
        if (index := _unwrapped(term)) is not None:
            return self.text(index, outer)
        if (ends := _clamped(term)) is not None:
            return f"clamp({', '.join(map(self.text, ends))})"
        if term not in self.unrolled:
            self.unrolled[term] = _unrolled(term)
        if operands := self.unrolled[term]:
            return f"{_UNROLLED[op]}({self.text(operands[0])} and {len(operands) - 1} more)"
        match term:
            case Apply(
                "div", (Number(1), Apply("add", (Number(1), Apply("exp", (Apply("neg", (inner,)),)))))
            ):
                return f"sigmoid({self.text(inner)})"
        if op in _INFIX:
            sign, binding = _INFIX[op]
            text = f"{self.text(args[0], binding - 1)} {sign} {self.text(args[1], binding)}"
            return f"({text})" if outer >= binding else text
        if op == "neg":
            return f"-{self.text(args[0], 11)}"
        if op == "not":
            return f"not {self.text(args[0], 3)}"
        if op in ("maximum", "minimum"):
            op = op[:3]
        return f"{op}({', '.join(map(self.text, args))})"

    def _cast(self, term: Apply, outer: int) -> str:
        """A cast from float to whole numbers cuts off; others keep the value for all that matters here."""
        inner = term.args[0]
        cuts = is_float(inner.dtype) and not is_float(term.dtype)
        if not cuts or (isinstance(inner, Apply) and inner.op in _WHOLE):
            return self.text(inner, outer)
        return f"int({self.text(inner)})"


def say(term: Term, name_of: NameOf, atens: Collection[str] = ()) -> str:
    """The term as text. `atens` are the operators of the launch: they tell `log1p(64)` from `log(65)`."""
    text = _Writer(name_of, atens).text(term)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _unwrapped(term: Apply) -> Term | None:
    """The index itself of `where(i < 0, i + size, i)`; None for another term."""
    match term:
        case Apply("where", (Apply("lt", (tested, Number(0))), Apply("add", moved), same)):
            return same if tested is same and same in moved else None
    return None


def _clamped(term: Apply) -> tuple[Term, Term, Term] | None:
    """Value and ends of a minimum of a maximum (or the other way round)."""
    other = {"maximum": "minimum", "minimum": "maximum"}.get(term.op)
    if other is None:
        return None
    for inner, end in (term.args, term.args[::-1]):
        if not (isinstance(end, Number) and isinstance(inner, Apply) and inner.op == other):
            continue
        for value, first in (inner.args, inner.args[::-1]):
            if isinstance(first, Number) and not isinstance(value, Number):
                return (value, first, end) if term.op == "minimum" else (value, end, first)
    return None


def _unrolled(term: Apply) -> list[Term]:
    """The operands of a reduction that was written out: at least four terms of one shape; else empty."""
    if term.op not in _UNROLLED:
        return []
    found: list[Term] = []
    queue: list[Term] = [term]
    while queue:
        each = queue.pop(0)
        if isinstance(each, Apply) and each.op == term.op and len(found) + len(queue) < 256:
            queue = [*each.args, *queue]
        else:
            found.append(each)
    return found if len(found) > 3 and len({key(each, _ALIKE)[0] for each in found}) == 1 else []


def number(value: Scalar, dtype: str = "float64", operators: Collection[str] = ()) -> str:
    """A constant as the model may have it: `log1p(64)` for 4.174387454986572."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    short = f"{value:.7g}" if dtype != "float64" else f"{value:.12g}"
    return short if len(short) < 7 else _origin(value, operators) or short


def _origin(value: float, operators: Collection[str]) -> str:
    """The function of a small whole number that gives a constant; of one that the launch names any number."""
    for name in sorted(_NICE, key=lambda name: name not in operators):
        function, inverse = _NICE[name]
        try:
            inner = inverse(value)
        except (OverflowError, ValueError):
            continue
        if not 1.5 < inner <= 1 << 20:
            continue
        near = round(inner)
        usual = near % 8 == 0 and name in ("log", "sqrt") and near <= 1 << 16
        if (name in operators or usual) and math.isclose(function(near), value, rel_tol=3e-7):
            return f"{name}({near})"
    return ""
