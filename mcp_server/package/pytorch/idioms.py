"""Recognises what a compiler decomposed: torch functions, and reductions that are written out.

Rules match the terms of a kernel or, if these are spread over several statements, their text. Each text rule
matches whole lines, including names. Names that a rule removes must not be used anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from mcp_server.package.terms.linear import linear
from mcp_server.package.terms.parts import UNROLLED, key, parts, rebuilt, unrolled
from mcp_server.package.terms.syntax import read_cpp
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Position, Range, Size, Term, is_float
from mcp_server.package.terms.translate import Translator
from mcp_server.package.terms.whole import Whole

_TO_LAST = r"\[(?::, )+None\]"
_NUMBER = r"[\d.]+(?:e-?\d+)?"
_TARGET = r"(?P<out>return |\w+ = )"
_RULES = [
    (
        # softmax
        r"(?P<a>\w+) = (?P<x>.+)\.amax\(-1\)\n"
        rf"(?P<b>\w+) = \((?P=x) - (?P=a){_TO_LAST}\)\.exp\(\)\n"
        r"(?P<c>\w+) = (?P=b)\.sum\(-1\)\n"
        rf"{_TARGET}(?P=b) / (?P=c){_TO_LAST}$",
        r"\g<out>\g<x>.softmax(-1)",
    ),
    (
        # log softmax
        r"(?P<a>\w+) = (?P<x>.+)\.amax\(-1\)\n"
        rf"(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n"
        r"(?P<c>\w+) = (?P=b)\.exp\(\)\.sum\(-1\)\n"
        rf"{_TARGET}(?P=b) - (?P=c)\.log\(\){_TO_LAST}$",
        r"\g<out>\g<x>.log_softmax(-1)",
    ),
    (
        # layer norm
        r"(?P<a>\w+) = (?P<x>.+)\.mean\(-1\)\n"
        rf"(?P<b>\w+) = (?P=x) - (?P=a){_TO_LAST}\n"
        rf"{_TARGET}\(\((?P=b) \* \(\((?P=b) \* (?P=b)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)\) \+ (?P<bias>\w+)$",
        r"\g<out>F.layer_norm(\g<x>, \g<w>.shape, \g<w>, \g<bias>, \g<eps>)",
    ),
    (
        # RMS norm
        rf"(?P<a>){_TARGET}\((?P<x>\w+) \* \(\((?P=x) \* (?P=x)\)\.mean\(-1\) \+ (?P<eps>{_NUMBER})\)"
        rf"\.rsqrt\(\){_TO_LAST}\) \* (?P<w>\w+)$",
        r"\g<out>F.rms_norm(\g<x>, \g<w>.shape, \g<w>, \g<eps>)",
    ),
]
_COMPILED = [(re.compile(f"^{pattern}", re.M), written) for pattern, written in _RULES]


def put_together(lines: Sequence[str]) -> list[str]:
    """Replace known sequences in the statements of a function."""
    text = "\n".join(lines)
    for pattern, written in _COMPILED:
        for found in list(pattern.finditer(text)):
            names = [name for key in "abc" if (name := found.groupdict().get(key))]
            outside = text[: found.start()] + text[found.end() :]
            if found[0] in text and not any(re.search(rf"\b{name}\b", outside) for name in names):
                text = text.replace(found[0], found.expand(written), 1)
    return text.split("\n") if text else []


_X = Translator(lambda name: Size(name, "float32"))
IDIOMS = [
    (written, _X.term(read_cpp(taken_apart)))
    for written, taken_apart in (
        ("{x}.sigmoid()", "1 / (1 + exp(-x))"),
        ("F.silu({x})", "x / (1 + exp(-x))"),
        ("F.silu({x})", "x * sigmoid(x)"),
        ("F.gelu({x})", "(x * 0.5) * (erf(x * 0.7071067811865476) + 1)"),
    )
]
"""Functions of torch, and what a compiler makes of them."""


def known_function(term: Apply, identity: Callable[[Term], int]) -> tuple[str, Term] | None:
    """Return the known function that a term computes, and its argument; None if there is none."""
    for written, pattern in IDIOMS:
        found: list[Term] = []
        if _fits(pattern, term, found, identity):
            return written, found[0]
    return None


def _fits(pattern: Term, term: Term, found: list[Term], identity: Callable[[Term], int]) -> bool:
    """Whether a term matches the pattern, with one operand for all `x`. Operands are added to `found`."""
    match pattern, term:
        case Size(), _:
            found.append(term)
            return identity(found[0]) == identity(term)
        case Number(value=value), Number():
            return abs(float(term.value) - float(value)) < 1e-6
        case Apply(op=op, args=args), Apply(args=given) if op == term.op:
            orders = [given, given[::-1]] if op in ("add", "mul") else [given]
            for order in orders:
                start = len(found)
                if all(_fits(one, two, found, identity) for one, two in zip(args, order, strict=True)):
                    return True
                del found[start:]
    return False


def rolled(term: Apply) -> Fold | None:
    """Return the reduction that is written out over elements at equal distances; None for other terms."""
    operands = unrolled(term)
    if not operands or len({key(each) for each in operands}) > 1:
        return None
    first = operands[0]
    lists = [[part for part in parts(each) if isinstance(part, Element)] for each in operands]
    if not lists[0] or any(len(each) != len(lists[0]) for each in lists):
        return None
    moved = {}
    for column in zip(*lists, strict=True):
        step = _step(column)
        if step is None:
            return None
        if not step:
            continue
        lane = Apply("mul", (Number(step, "int64"), Position("lane")), "int64")
        moved[column[0]] = replace(column[0], index=Apply("add", (column[0].index, lane), "int64"))
    if not moved:
        return None
    ranges = (Range("lane", Number(0, "int64"), Number(len(operands), "int64")),)
    body = rebuilt(first, lambda each: moved.get(each) if isinstance(each, Element) else None)
    return Fold(UNROLLED[term.op], ranges, body, term.dtype)


def _step(elements: Sequence[Element]) -> int | None:
    """Return the constant distance between the indices of elements of one tensor; None if it varies."""
    places = [linear(each.index, lambda _: True) or Whole() for each in elements]
    steps = {(after - before).number for before, after in pairwise(places)}
    step = steps.pop() if len({each.parameter for each in elements}) == len(steps) == 1 else None
    return step if step is not None and step >= 0 else None


def summands(term: Term, factor: int = 1) -> Iterator[tuple[int, Term]]:
    """Return the summands of an index, each with its constant factor."""
    match term:
        case Apply("add", (left, right)):
            yield from summands(left, factor)
            yield from summands(right, factor)
        case Apply("mul", (Number(value=value), other) | (other, Number(value=value))):
            yield from summands(other, factor * int(value))
        case Apply("cast", (inner,)) if not is_float(inner.dtype) and not is_float(term.dtype):
            yield from summands(inner, factor)
        case _:
            yield factor, term
