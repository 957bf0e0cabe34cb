"""Terms: the trees that say what a kernel computes for one element of a tensor.

Terms are compared by identity: a kernel's values are shared, and a tree written out may be large. `key` tells
whether two terms are the same but for their constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

Scalar = bool | int | float

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
"""Narrowest first."""
_WORDS = 40_000


@dataclass(frozen=True, eq=False, slots=True)
class Number:
    """A constant that stands in the code."""

    value: Scalar
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Position:
    """A loop variable, or an index of the iteration space of a Triton kernel."""

    name: str
    dtype: str = "int64"


@dataclass(frozen=True, eq=False, slots=True)
class Size:
    """A scalar argument of the kernel."""

    name: str
    dtype: str = "int64"


@dataclass(frozen=True, eq=False, slots=True)
class Element:
    """What a kernel loads: `index` counts elements from the pointer that it got. `line` is 1-based."""

    parameter: str
    index: Term
    dtype: str
    line: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Apply:
    """An operator on values. `dtype` is that of the result; `cast` only changes the type."""

    op: str
    args: tuple[Term, ...]
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Range:
    """A loop variable and the values that it takes: from `start` to below `stop`."""

    name: str
    start: Term
    stop: Term


@dataclass(frozen=True, eq=False, slots=True)
class Fold:
    """A reduction: `kind` (sum, prod, max, min, any, argmax, argmin, mean) of `body` over `ranges`."""

    kind: str
    ranges: tuple[Range, ...]
    body: Term
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class Unread:
    """Code that was not understood: nothing may be concluded from a term that holds one."""

    text: str
    dtype: str = "float32"


Term = Number | Position | Size | Element | Apply | Fold | Unread


def promoted(*dtypes: str) -> str:
    """The type that C++ and Triton compute in: the widest of these, float32 for a mix of the short floats."""
    if {"float16", "bfloat16"} <= set(dtypes):
        dtypes = (*dtypes, "float32")
    return max((dtype for dtype in dtypes if dtype in DTYPES), key=DTYPES.index, default="float32")


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def parts(term: Term, *, inside_indices: bool = False) -> Iterator[Term]:
    """A term and everything in it, each once, outermost first; the index of an element only if asked for."""
    seen = {term}
    queue = [term]
    for each in queue:  # grows in the loop
        yield each
        inner: tuple[Term, ...] = ()
        match each:
            case Apply(args=args):
                inner = args
            case Fold(body=body, ranges=ranges):
                inner = (body, *(end for r in ranges for end in (r.start, r.stop)))
            case Element(index=index) if inside_indices:
                inner = (index,)
        for part in inner:
            if part not in seen:
                seen.add(part)
                queue.append(part)


def elements(term: Term) -> tuple[Element, ...]:
    """The elements that a term is computed from (not those that only say where)."""
    return tuple(each for each in parts(term) if isinstance(each, Element))


def understood(term: Term) -> bool:
    """Whether all of the code behind a term was read."""
    return not any(isinstance(each, Unread) for each in parts(term, inside_indices=True))


def rebuilt(term: Term, change: Callable[[Term], Term | None]) -> Term:
    """The term with each part replaced for which `change` returns another; shared parts stay shared."""
    done: dict[Term, Term] = {}

    def visit(each: Term) -> Term:
        if each not in done:
            done[each] = change(each) or inner(each)
        return done[each]

    def inner(each: Term) -> Term:
        match each:
            case Apply(args=args):
                new = tuple(map(visit, args))
                return each if new == args else replace(each, args=new)
            case Element(index=index):
                moved = visit(index)
                return each if moved is index else replace(each, index=moved)
            case Fold(body=body):
                changed = visit(body)
                return each if changed is body else replace(each, body=changed)
        return each

    return visit(term)


def key(term: Term, most: int = _WORDS) -> tuple[str, tuple[Scalar, ...]]:
    """The shape of a term, its constants and names of tensors left out, and those constants in order.

    Of a large term only the first `most` words count.
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
