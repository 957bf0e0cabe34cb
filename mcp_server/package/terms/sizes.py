"""Size expressions of wrappers and kernels as terms, words and exact numbers. Index checks of kernels.

Sizes have the form that `cexpr` (torch/_inductor/codegen/cpp_utils.py, 2.8-2.15) prints: sums, products,
rational factors (`(1.0/2.0)*n`), floor division, modulus, min and max.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mcp_server.package.terms.evaluate import FUNCTIONS, UnknownValue
from mcp_server.package.terms.parts import say, understood
from mcp_server.package.terms.syntax import NotRead, read_cpp
from mcp_server.package.terms.term import Apply, Number, Size, Term
from mcp_server.package.terms.translate import Translator

_LARGEST = 1 << 256
_EXACT = frozenset({"add", "sub", "mul", "div", "mod", "floordiv", "minimum", "maximum"})


def size_term(text: str) -> Term | None:
    """Parse a C++ expression over sizes into a term. None for other text."""
    try:
        return Translator(Size).term(read_cpp(text))
    except (NotRead, RecursionError, IndexError):
        return None


def in_words(text: str) -> str:
    """Write a C++ expression over sizes as a model would: `s71 // 2`. Unchanged if it is not understood."""
    term = size_term(text)
    return say(term) if term is not None and understood(term) else text


def evaluate(text: str, values: Mapping[str, int]) -> Fraction | None:
    """Evaluate a shape expression exactly. None for unknown names, other syntax or division by zero."""
    term = size_term(text)
    try:
        return _value(term, values) if term is not None else None
    except (UnknownValue, ArithmeticError, ValueError, RecursionError):
        return None


def evaluate_whole(text: str, values: Mapping[str, int]) -> int | None:
    """Evaluate a shape expression. None if its value is not an integer, or unknown."""
    value = evaluate(text, values)
    return int(value) if value is not None and value.denominator == 1 else None


def reached(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The elements [first, past the end) that a tensor reaches from its pointer; (0, 0) if empty."""
    if 0 in sizes:
        return 0, 0
    steps = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + 1


def index_at(
    offset: int, sizes: Sequence[int], strides: Sequence[int], *, beyond: bool = False
) -> tuple[int, ...] | None:
    """The index at an offset from a tensor's pointer. None if no element is there.

    With `beyond`, the index in the dimension of the largest stride may exceed its size, and None is returned
    if a dimension of more than one element has no positive stride.
    """
    if beyond and any(step <= 0 and size > 1 for size, step in zip(sizes, strides, strict=True)):
        return None
    found, rest = [0] * len(sizes), offset
    for axis in sorted(range(len(sizes)), key=lambda axis: -strides[axis]):
        if strides[axis] > 0 and sizes[axis] > 1:
            most = rest // strides[axis]
            found[axis] = most if beyond else min(most, sizes[axis] - 1)
            rest -= found[axis] * strides[axis]
    inside = beyond or (offset >= 0 and 0 not in sizes)
    return tuple(found) if rest == 0 and inside else None


def _value(term: Term, values: Mapping[str, int]) -> Fraction:
    match term:
        case Number(value=number):
            result = Fraction(number)
        case Size(name=name) if name in values:
            result = Fraction(values[name])
        case Apply(op="cast", args=(inner,)):
            result = _value(inner, values)
        case Apply(op="neg", args=(inner,)):
            result = -_value(inner, values)
        case Apply(op=op, args=(left, right)) if (op := op.replace("remainder", "mod")) in _EXACT:
            result = Fraction(FUNCTIONS[op](_value(left, values), _value(right, values)))
        case _:
            raise UnknownValue(say(term))
    if abs(result) > _LARGEST:
        raise UnknownValue(say(term))
    return result


# The bounds checks that Inductor generates around computed indices, and the conditions that they print.
_ASSERT = re.compile(
    r'(?:tl\.device_assert|AOTI_TORCH_CHECK|TORCH_CHECK)\(.*"index out of bounds: (?P<text>[^"]*)"'
)
_CONDITION = re.compile(r"(?:(?P<lower>-?[^<]+?) <= )?(?P<variable>\w+)(?: < (?P<upper>.+))?$")
_BROADCAST = re.compile(r"tl\.broadcast_to\((\w+), \[[^\]]*\]\)")


@dataclass(frozen=True, slots=True)
class IndexAssert:
    """One generated bounds check: 1-based line in the kernel's source, and the condition as printed."""

    line: int
    text: str
    variable: str
    lower: str | None
    upper: str | None


def read_condition(text: str) -> tuple[str | None, str, str | None] | None:
    """Split `0 <= tmp6 < ks0` into (lower bound, variable, upper bound). None for other text."""
    match = _CONDITION.fullmatch(text.strip())
    if not match or (match["lower"] is None and match["upper"] is None):
        return None
    return match["lower"], match["variable"], match["upper"]


def without_broadcast(text: str) -> str:
    """Remove `tl.broadcast_to(tmp4, [XBLOCK])` around the variable of a condition (Triton, torch 2.11)."""
    return _BROADCAST.sub(r"\1", text)


def find_asserts(source: str) -> tuple[IndexAssert, ...]:
    """List the index asserts of a kernel, in order."""
    found = []
    for number, line in enumerate(source.split("\n"), 1):
        match = _ASSERT.search(line)
        text = without_broadcast(match["text"]) if match else ""
        condition = read_condition(text)
        if condition:
            lower, variable, upper = condition
            found.append(IndexAssert(number, text, variable, lower, upper))
    return tuple(found)
