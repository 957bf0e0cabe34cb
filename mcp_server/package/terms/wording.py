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

_INFIX = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "bitor": ("|", 5),
    "bitxor": ("^", 6),
    "bitand": ("&", 7),
    "shl": ("<<", 8),
    "shr": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "div": ("/", 10),
    "truncdiv": ("/", 10),
    "floordiv": ("//", 10),
    "mod": ("%", 10),
    "remainder": ("%", 10),
}
_UNROLLED = {"maximum": "max", "minimum": "min", "add": "sum", "mul": "prod"}
_WHOLE = frozenset({"floor", "ceil", "trunc", "round"})
_LONGEST = 600
_MOST = 4000
_ALIKE = 100
_NICE: tuple[tuple[str, Callable[[float], float]], ...] = (
    ("log1p", math.log1p),
    ("log", math.log),
    ("sqrt", math.sqrt),
    ("log2", math.log2),
    ("exp", math.exp),
)

NameOf = Callable[[Element], str]


class _Writer:
    def __init__(self, name_of: NameOf, atens: Collection[str]) -> None:
        self.name_of = name_of
        self.operators = {each.rpartition(".")[2].rstrip("_0123456789") for each in atens}
        self.left = _MOST
        self._unrolled: dict[int, list[Term] | None] = {}

    def text(self, term: Term, outer: int = 0) -> str:
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
                return self.applied(term, outer)

    def applied(self, term: Apply, outer: int) -> str:
        op, args = term.op, term.args
        if op == "cast":
            return self.cast(term, outer)
        if (plain := unwrapped(term)) is not None:
            return self.text(plain, outer)
        if (ends := clamped(term)) is not None:
            return f"clamp({', '.join(self.text(each) for each in ends)})"
        if id(term) not in self._unrolled:
            self._unrolled[id(term)] = unrolled(term)
        if (same := self._unrolled[id(term)]) is not None:
            return f"{_UNROLLED[op]}({self.text(same[0])} and {len(same) - 1} more)"
        if (inner := sigmoid_of(term)) is not None:
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
        return f"{op}({', '.join(self.text(each) for each in args)})"

    def cast(self, term: Apply, outer: int) -> str:
        """A cast from float to whole numbers cuts off; others keep the value for all that matters here."""
        inner = term.args[0]
        if is_float(term.dtype) or not is_float(inner.dtype):
            return self.text(inner, outer)
        if isinstance(inner, Apply) and inner.op in _WHOLE:
            return self.text(inner, outer)
        return f"int({self.text(inner)})"


def say(term: Term, name_of: NameOf, atens: Collection[str] = ()) -> str:
    """The term as text. `atens` are the operators of the launch: they tell `log1p(64)` from `log(65)`."""
    text = _Writer(name_of, atens).text(term)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def unwrapped(term: Apply) -> Term | None:
    """The index itself of `where(i < 0, i + size, i)`; None for another term."""
    if term.op != "where":
        return None
    test, moved, same = term.args
    if not (isinstance(test, Apply) and test.op == "lt" and isinstance(test.args[1], Number)):
        return None
    if test.args[1].value != 0 or test.args[0] is not same:
        return None
    wraps = isinstance(moved, Apply) and moved.op == "add" and same in moved.args
    return same if wraps else None


def clamped(term: Apply) -> tuple[Term, Term, Term] | None:
    """Value and ends of a minimum of a maximum (or the other way round)."""
    if term.op not in ("maximum", "minimum"):
        return None
    other = {"maximum": "minimum", "minimum": "maximum"}[term.op]
    for inner, end in (term.args, term.args[::-1]):
        if not (isinstance(end, Number) and isinstance(inner, Apply) and inner.op == other):
            continue
        for value, first in (inner.args, inner.args[::-1]):
            if isinstance(first, Number) and not isinstance(value, Number):
                return (value, first, end) if term.op == "minimum" else (value, end, first)
    return None


def sigmoid_of(term: Apply) -> Term | None:
    """`x` of `1 / (1 + exp(-x))`."""
    match term:
        case Apply(
            op="div",
            args=(
                Number(value=1),
                Apply(
                    op="add", args=(Number(value=1), Apply(op="exp", args=(Apply(op="neg", args=(inner,)),)))
                ),
            ),
        ):
            return inner
    return None


def unrolled(term: Apply) -> list[Term] | None:
    """The operands of a reduction that was written out: at least four terms of one shape."""
    if term.op not in _UNROLLED:
        return None
    found: list[Term] = []
    queue: list[Term] = [term]
    while queue:
        each = queue.pop(0)
        if isinstance(each, Apply) and each.op == term.op and len(found) + len(queue) < 256:
            queue = [*each.args, *queue]
        else:
            found.append(each)
    return found if len(found) > 3 and len({key(each, _ALIKE)[0] for each in found}) == 1 else None


def number(value: Scalar, dtype: str = "float64", operators: Collection[str] = ()) -> str:
    """A constant as the model may have it: `log1p(64)` for 4.174387454986572."""
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    short = f"{value:.7g}" if dtype != "float64" else f"{value:.12g}"
    return short if len(short) < 7 else _origin(value, operators) or short


def _origin(value: float, operators: Collection[str]) -> str:
    """The function of a small whole number that gives a constant; of one that the launch names any number."""
    for name, function in sorted(_NICE, key=lambda pair: pair[0] not in operators):
        inner = _inverse(name, value)
        if inner is None or not 1.5 < inner <= 1 << 20:
            continue
        near = round(inner)
        usual = near % 8 == 0 and name in ("log", "sqrt") and near <= 1 << 16
        if (name in operators or usual) and math.isclose(function(near), value, rel_tol=3e-7):
            return f"{name}({near})"
    return ""


def _inverse(name: str, value: float) -> float | None:
    try:
        return _INVERSES[name](value)
    except (OverflowError, ValueError):
        return None


_INVERSES: dict[str, Callable[[float], float]] = {
    "log1p": math.expm1,
    "log": math.exp,
    "sqrt": lambda value: value * value,
    "log2": lambda value: 2.0**value,
    "exp": math.log,
}
