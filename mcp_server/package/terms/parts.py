"""Lists the parts of terms, rebuilds terms, and writes them as text.

`key` compares two terms except for their constants. `say` writes a term as the model would:
`floor(sqrt((clamp(x, 1, 500) - 1) / 499) * 64)`. It omits what code generation adds: casts that keep the
value, the wrap of negative indices, an unrolled reduction.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from operator import attrgetter, eq, ge, gt, le, lt, ne
from typing import Any

from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    Unread,
    is_float,
)

_WORDS = 40_000


def children(term: Term) -> tuple[Term, ...]:
    """The direct parts of a term: operands, an index, or the body of a reduction and its bounds."""
    match term:
        case Apply(args=args) | Unread(args=args):
            return args
        case Fold(body=body, ranges=ranges):
            return (body, *(end for r in ranges for end in (r.start, r.stop)))
        case Element(index=index):
            return (index,)
    return ()


def parts(term: Term, *, inside_indices: bool = False) -> Iterator[Term]:
    """Yield a term and its subterms, each once, outermost first. `inside_indices` adds terms in indices."""
    seen = {term}
    queue = [term]
    for each in queue:  # `queue` grows during the loop
        yield each
        inner = children(each) if inside_indices or not isinstance(each, Element) else ()
        queue += dict.fromkeys(part for part in inner if part not in seen)
        seen.update(inner)


def free_positions(*terms: Term, known: dict[Term, dict[str, None]] | None = None) -> list[str]:
    """List the loop variables and lanes on which terms depend, except those over which they reduce.

    `known` caches the results for subterms between calls.
    """
    done = known if known is not None else {}

    def visit(each: Term) -> dict[str, None]:
        if each not in done:
            inner = children(each)
            found = {each.name: None} if isinstance(each, Position) else {}
            if isinstance(each, Fold):
                over = {r.name for r in each.ranges}
                found = {name: None for name in visit(each.body) if name not in over}
                inner = inner[1:]
            done[each] = found | {name: None for part in inner for name in visit(part)}
        return done[each]

    return list({name: None for term in terms for name in visit(term)})


def elements(term: Term) -> tuple[Element, ...]:
    """List the elements from which a term is computed, except those used only as indices."""
    return tuple(each for each in parts(term) if isinstance(each, Element))


def understood(term: Term) -> bool:
    """Whether all of the code behind a term was read."""
    return not any(isinstance(each, Unread) for each in parts(term, inside_indices=True))


def rebuilt(term: Term, change: Callable[[Term], Term | None]) -> Term:
    """Replace every subterm for which `change` returns another term. Shared subterms stay shared."""
    done: dict[Term, Term] = {}

    def visit(each: Term) -> Term:
        if each not in done:
            done[each] = change(each) or inner(each)
        return done[each]

    def inner(each: Term) -> Term:
        old = () if isinstance(each, Unread) else children(each)
        new = tuple(map(visit, old))
        if new == old:
            return each
        match each:
            case Apply():
                return replace(each, args=new)
            case Element():
                return replace(each, index=new[0])
            case Fold(ranges=ranges):
                ends = zip(ranges, new[1::2], new[2::2], strict=True)
                spans = tuple(Range(r.name, start, stop) for r, start, stop in ends)
                return replace(each, body=new[0], ranges=spans)
        return each

    return visit(term)


def key(term: Term, most: int = _WORDS) -> tuple[str, tuple[Scalar, ...]]:
    """A term's structure without constants and tensor names, and its constants in order.

    Only the first `most` words of a large term count.
    """
    constants: list[Scalar] = []
    words: list[str] = []

    def visit(each: Term) -> None:
        if len(words) > most:
            return
        match each:
            case Number(value=value):
                constants.append(value)
                words.append("#")
            case Element(dtype=dtype):
                words.append(f"element {dtype}")
            case Position() | Size():
                words.append(type(each).__name__)
            case Apply(op=op, args=args):
                words.append(f"{op} {len(args)}")
                for argument in args:
                    visit(argument)
            case Fold(kind=kind, body=body, ranges=ranges):
                words.append(f"{kind} over {len(ranges)}")
                visit(body)
            case Unread(text=text):
                words.append(text)

    visit(term)
    return " ".join(words), tuple(constants)


_LEVELS: tuple[dict[str, str], ...] = (
    {"or": "or"},
    {"and": "and"},
    {},  # the operator `not`
    {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="},
    {"bitor": "|"},
    {"bitxor": "^"},
    {"bitand": "&"},
    {"shl": "<<", "shr": ">>"},
    {"add": "+", "sub": "-"},
    {"mul": "*", "div": "/", "truncdiv": "/", "floordiv": "//", "mod": "%", "remainder": "%"},
)
"""Infix operators, from weakest to strongest binding."""
SIGNS = {op: (sign, binding) for binding, signs in enumerate(_LEVELS, 1) for op, sign in signs.items()}
UNROLLED = {"maximum": "max", "minimum": "min", "add": "sum", "mul": "prod"}
_WHOLE = frozenset({"floor", "ceil", "trunc", "round"})
_WIDE = {"float32", "float64"}  # casts between these only change the rounding of a reduction
_LONGEST = 600  # longest text, in characters
_MOST = 4000  # largest number of parts that are written
_ALIKE = 100  # words by which two operands are compared
_NICE: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "log1p": (math.log1p, math.expm1),
    "log": (math.log, math.exp),
    "sqrt": (math.sqrt, lambda value: value * value),
    "log2": (math.log2, lambda value: 2.0**value),
    "exp": (math.exp, math.log),
}
"""Functions that a compiler may evaluate when it folds constants, each with its inverse."""

NameOf = Callable[[Element], str]


class _Writer:
    def __init__(self, name_of: NameOf, atens: Collection[str]) -> None:
        self.name_of = name_of
        self.operators = {each.rpartition(".")[2].rstrip("_0123456789") for each in atens}
        self.left = _MOST
        self.unrolled: dict[Apply, list[Term]] = {}

    def text(self, term: Term, outer: int = 0) -> str:
        """Write the term, in parentheses if it binds more weakly than `outer`."""
        self.left -= 1
        if self.left < 0:  # a shared subterm is written at each use, so the text may become huge
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
        plain = _plainer(term)
        if plain is not term:
            return self.text(plain, outer)
        op, args = term.op, term.args
        if op == "cast":
            # Write only casts from float to integer: others only round.
            inner = args[0]
            cuts = is_float(inner.dtype) and not is_float(term.dtype)
            if not cuts or (isinstance(inner, Apply) and inner.op in _WHOLE):
                return self.text(inner, outer)
            return f"int({self.text(inner)})"
        if (index := unwrapped(term)) is not term:
            return self.text(index, outer)
        if (ends := _clamped(term)) is not None:
            return f"clamp({', '.join(map(self.text, ends))})"
        if term not in self.unrolled:
            self.unrolled[term] = unrolled(term)
        if operands := self.unrolled[term]:
            return f"{UNROLLED[op]}({self.text(operands[0])} and {len(operands) - 1} more)"
        match args:
            case (Number(1), Apply("add", (Number(1), Apply("exp", (Apply("neg", (inner,)),))))) if (
                op == "div"
            ):
                return f"sigmoid({self.text(inner)})"
        if op == "remainder" and any(isinstance(each, Element) for each in parts(args[0])):
            return f"fmod({', '.join(map(self.text, args))})"  # unlike Python's `%` for negative data
        if op in SIGNS:
            sign, binding = SIGNS[op]
            text = f"{self.text(args[0], binding - 1)} {sign} {self.text(args[1], binding)}"
            return f"({text})" if outer >= binding else text
        if op == "neg":
            return f"-{self.text(args[0], 11)}"
        if op == "not":
            return f"not {self.text(args[0], 3)}"
        if op in ("maximum", "minimum"):
            op = op[:3]
        return f"{op}({', '.join(map(self.text, args))})"


def say(term: Term, name_of: NameOf = attrgetter("parameter"), atens: Collection[str] = ()) -> str:
    """Write the term as text.

    `atens` are the launch's operators: a constant is written `log1p(64)` if `log1p` is among them, `log(65)`
    if only `log` is.
    """
    text = _Writer(name_of, atens).text(term)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def uncast(term: Term) -> Term:
    """A term without the casts around it."""
    while isinstance(term, Apply) and term.op == "cast":
        (term,) = term.args
    return term


def unwrapped(term: Term) -> Term:
    """The index `i` of `where(i < 0, i + size, i)`; any other term unchanged."""
    match term:
        case Apply("where", (Apply("lt", (tested, Number(0))), Apply("add", moved), same)):
            return same if tested is same and same in moved else term
    return term


def wrapped_by(term: Term) -> Term | None:
    """The size in `where(i < 0, i + size, i)`. None for any other term."""
    match term:
        case Apply("where", (_, Apply("add", moved), same)) if unwrapped(term) is same:
            return next((each for each in moved if each is not same), None)
    return None


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "lt": lt,
    "le": le,
    "gt": gt,
    "ge": ge,
    "eq": eq,
    "ne": ne,
}


def _plainer(term: Apply) -> Term:
    """Simplify constant choices, negations, and comparisons of truth values with 0."""
    match term:
        case Apply("where", (Apply(op, (first, second)), yes, no)) if op in _COMPARED:
            one, other = uncast(first), uncast(second)
            if isinstance(one, Number) and isinstance(other, Number):
                return yes if _COMPARED[op](one.value, other.value) else no
        case Apply("ne", (inner, Number(0))) if inner.dtype == "bool":
            return inner
        case Apply("eq", (inner, Number(0))) if inner.dtype == "bool":
            return Apply("not", (inner,), "bool")
        case Apply("not", (Apply() as inner,)):
            inner = _truth(inner)
            if isinstance(inner, Apply) and inner.op == "not":
                return inner.args[0]
            if isinstance(inner, Apply) and inner.op in ("or", "bitor") and inner.dtype == "bool":
                sides = [_truth(each) for each in inner.args]
                if all(isinstance(each, Apply) and each.op == "not" for each in sides):
                    return Apply("and", tuple(children(each)[0] for each in sides), "bool")
    return term


def _truth(term: Term) -> Term:
    """`_plainer` of a term, without casts of truth values."""
    term = uncast(term) if uncast(term).dtype == "bool" else term
    return _plainer(term) if isinstance(term, Apply) else term


def _clamped(term: Apply) -> tuple[Term, Term, Term] | None:
    """Value and bounds of a minimum of a maximum (or the reverse). None for other terms."""
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


def unrolled(term: Apply) -> list[Term]:
    """The operands of an unrolled reduction: at least four terms of one shape; else empty."""
    found = operands(term)
    return found if len({key(each, _ALIKE)[0] for each in found}) == 1 else []


def operands(term: Apply) -> list[Term]:
    """The operands of nested operators of one kind. Empty if fewer than four."""
    if term.op not in UNROLLED:
        return []
    found: list[Term] = []
    queue: list[Term] = [term]
    while queue:
        each = queue.pop(0)
        inner = each
        while isinstance(inner, Apply) and inner.op == "cast" and {inner.dtype, inner.args[0].dtype} <= _WIDE:
            (inner,) = inner.args
        if isinstance(inner, Apply) and inner.op == term.op and len(found) + len(queue) < 256:
            queue = [*inner.args, *queue]
        else:
            found.append(each)
    return found if len(found) > 3 else []


def number(value: Scalar, dtype: str = "float64", operators: Collection[str] = ()) -> str:
    """Write a constant as the model may contain it: `log1p(64)` for 4.174387454986572."""
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    short = f"{value:.7g}" if dtype != "float64" else f"{value:.12g}"
    if len(short) < 7:
        return short
    # Try functions of a small integer. If no operator has the name, try only `log` and `sqrt`.
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
    return short
