"""Finds reductions of a user's Triton kernel that its source shows to be wrong.

Masked lanes: `tl.load(p, mask=m, other=0.0)` fills the lanes that `m` masks off. Zeros are neutral in a sum.
In a maximum they are wrong if all values are negative, and `tl.exp` turns them into ones.

Sums in 16 bits: the largest float16 is 65504, and a running 16-bit sum loses its addends to rounding long
before that. The result can be finite and wrong.

Code that is not understood counts as correct.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.parts import free_positions, parts, say
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Position, Range, Scalar, Size, Term

NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf, "argmax": -math.inf, "argmin": math.inf}
_NEVER_NEGATIVE = frozenset({"exp", "exp2", "sqrt", "abs", "sigmoid", "square"})
_NARROW = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class Padding:
    """A reduction whose result masked-out lanes change; with the 1-based lines of load and reduction.

    The masked-out lanes contain `filler` (NaN if unknown), but the reduction needs `needed`.
    """

    load_line: int
    load: str
    filler: float
    line: int
    code: str
    kind: str
    needed: float


@dataclass(frozen=True)
class NarrowSum:
    """A sum in 16 bits: its 1-based line and the code on it."""

    line: int
    code: str


def paddings(kernel: Kernel) -> tuple[Padding, ...]:
    """List the reductions whose result is changed by masked-out lanes, in source order."""
    lines, found = kernel.source.split("\n"), []
    for line, fold in _reductions(kernel):
        body = fold.body
        for test, load in _masked_loads(body) if fold.kind in NEUTRAL else ():
            filler, needed = _filler(body, say(test)), NEUTRAL[fold.kind]
            harmless = "max" in fold.kind and filler == 0 and _never_negative(body)
            if filler is not None and filler != needed and not harmless:
                codes = lines[load.line - 1].strip(), lines[line - 1].strip()
                found.append(Padding(load.line, codes[0], filler, line, codes[1], fold.kind, needed))
                break
    return tuple(found)


def narrow_sums(kernel: Kernel) -> tuple[NarrowSum, ...]:
    """List the sums of a kernel that are kept in 16 bits, in source order."""
    lines = kernel.source.split("\n")
    sums = (line for line, fold in _reductions(kernel) if fold.kind == "sum" and fold.dtype in _NARROW)
    return tuple(NarrowSum(line, lines[line - 1].strip()) for line in dict.fromkeys(sums))


def _reductions(kernel: Kernel) -> Iterator[tuple[int, Fold]]:
    """Yield reductions over lanes, including those in loops, with the line of their first statement."""
    program = read_program(kernel)
    made = [(each.line, each.value) for each in program.definitions]
    made += [(each.line, each.value) for each in program.stores]
    seen: set[Term] = set()
    for line, value in sorted(made, key=lambda each: each[0]):
        for each in parts(value, inside_indices=True):
            if isinstance(each, Fold) and each not in seen:
                seen.add(each)
                if _over_lanes(each.ranges):
                    yield line, each


def _masked_loads(body: Term) -> Iterator[tuple[Term, Element]]:
    """Yield the masks of loads with a filler that are outside other reductions over lanes."""
    for each in parts(body):
        match each:
            case Apply(op="where", args=(test, Element() as load, Number())):
                yield test, load


class _MaskedLane(Evaluator):
    """Evaluates a masked-off lane. Values shared by all lanes are unknown: numbers from `first` on."""

    def __init__(self, mask: str, first: float) -> None:
        super().__init__({}, {})
        self.mask, self.shared = mask, itertools.count(first, 3.0)

    def _value(self, term: Term) -> Scalar:
        match term:
            case Apply(op="where", args=(test, _, other)) if say(test) == self.mask:
                return self.value(other)
            case Fold(body=body, ranges=ranges) if not _over_lanes(ranges):
                return self.value(body)  # the body of a loop is the same in each iteration
            case Size() | Fold():
                return next(self.shared)
            case Position() | Element() if not any(map(_is_lane, free_positions(term))):
                return next(self.shared)
            case Position() | Element() | Apply(op="where"):
                raise UnknownValue(say(term))
        return super()._value(term)


def _filler(body: Term, mask: str) -> float | None:
    """Return the value of a masked-off lane; NaN if unknown; None if the code is not understood.

    A value is known if it does not depend on the unknown numbers, which are taken to be positive.
    """
    try:
        first, second = (float(_MaskedLane(mask, number).value(body)) for number in (2.0, 5.0))
    except UnknownValue:
        return None
    return first if first == second else math.nan


def _over_lanes(ranges: Sequence[Range]) -> bool:
    return any(_is_lane(each.name) for each in ranges)


def _is_lane(name: str) -> bool:
    return name.startswith("tl.arange")


def _never_negative(term: Term) -> bool:
    match term:
        case Number(value=value):
            return value >= 0
        case Apply(op="mul", args=(first, second)) if first is second:
            return True
        case Apply(op="add" | "mul" | "div", args=args):
            return all(map(_never_negative, args))
        case Apply(op="maximum", args=args):
            return any(map(_never_negative, args))
        case Apply(op="cast", args=(inner,)) | Fold(body=inner):
            return _never_negative(inner)
        case Apply(op="where", args=(_, first, second)):
            return _never_negative(first) and _never_negative(second)
        case Apply(op=op):
            return op in _NEVER_NEGATIVE
    return False
