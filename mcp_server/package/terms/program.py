"""A kernel as a program: its stores and index checks, as terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.evaluate import Evaluator, Read, UnknownValue
from mcp_server.package.terms.term import Element, Position, Range, Term, parts

_MOST = 1 << 17


@dataclass(frozen=True, eq=False, slots=True)
class Store:
    """`parameter[index] = value` for all of `ranges`; `mode` is plain or add, `line` 1-based."""

    parameter: str
    index: Term
    value: Term
    ranges: tuple[Range, ...]
    line: int
    mode: str = "plain"


@dataclass(frozen=True, eq=False, slots=True)
class Check:
    """An index check: `lower <= value < upper`, made for every combination of `ranges` where `test` holds."""

    line: int
    value: Term
    lower: Term | None
    upper: Term | None
    ranges: tuple[Range, ...]
    test: Term | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel does, in the order of its source."""

    stores: tuple[Store, ...]
    checks: tuple[Check, ...]

    def stores_to(self, parameter: str, before: int | None = None) -> tuple[Store, ...]:
        """The stores to a tensor, the last one first; only those above a line if given."""
        found = [s for s in self.stores if s.parameter == parameter and (before is None or s.line < before)]
        return tuple(reversed(found))

    def check_at(self, line: int) -> Check | None:
        """The check on a 1-based line of the kernel's source."""
        return next((check for check in self.checks if check.line == line), None)


def used(term: Term, ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The loop variables that a term depends on."""
    names = {each.name for each in parts(term, inside_indices=True) if isinstance(each, Position)}
    return tuple(each for each in ranges if each.name in names)


def places(
    ranges: Sequence[Range], sizes: Mapping[str, int], most: int = _MOST
) -> tuple[list[dict[str, int]], bool]:
    """The combinations of loop variables, and whether these are all of them."""
    evaluator = Evaluator({}, sizes, lambda _element, _offset: None)
    total = prod(len(evaluator.span(each)) for each in ranges)
    found = islice(evaluator.places(ranges, max(total, 1)), most)
    return list(found), total <= most


def position_of(
    index: Term, offset: int, ranges: Sequence[Range], sizes: Mapping[str, int], read: Read
) -> dict[str, int] | None:
    """The loop variables for which an index is `offset`; None when there are none. Raises `UnknownValue`.

    An index is nearly always a sum of multiples of the variables: its strides are tried first.
    """
    relevant = used(index, ranges)

    def at(place: Mapping[str, int]) -> int:
        return int(Evaluator(place, sizes, read).value(index))

    if not any(isinstance(each, Element) for each in parts(index)):
        evaluator = Evaluator({}, sizes, read)
        spans = {each.name: evaluator.span(each) for each in relevant}
        if not all(spans.values()):
            return None
        base = {name: span.start for name, span in spans.items()}
        first = at(base)
        strides = {name: at({**base, name: s[1]}) - first for name, s in spans.items() if len(s) > 1}
        rest, found = offset - first, dict(base)
        for name in sorted(strides, key=lambda name: -abs(strides[name])):
            if strides[name]:
                steps = min(max(rest // strides[name], 0), len(spans[name]) - 1)
                found[name] = spans[name][steps]
                rest -= steps * strides[name]
        if at(found) == offset:
            return found
    every, complete = places(relevant, sizes)
    for place in every:
        if at(place) == offset:
            return place
    if not complete:
        raise UnknownValue("too many elements")
    return None


@lru_cache(maxsize=512)
def read_program(kernel: Kernel) -> Program:
    """The program of a kernel; an empty one when its source is not in the package."""
    from mcp_server.package.terms.cpp import read_cpp_program
    from mcp_server.package.terms.triton import read_triton_program

    if not kernel.source:
        return Program((), ())
    return Program(*(read_cpp_program(kernel) if kernel.kind == "cpp" else read_triton_program(kernel)))
