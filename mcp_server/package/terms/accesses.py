"""Every load and store of a kernel: its place in the types that the code computes in, and when it is made.

A lane is one combination of the loop variables. Those that are tried are the ends of each loop, and of the
digits into which `//` and `%` take it apart: a sum of multiples of nested digits has its extremes there.
Where a mask cuts such an end off, the last lane that it leaves is tried.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise, product
from math import prod

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.cpp import lines_in_branches
from mcp_server.package.terms.evaluate import FUNCTIONS, Evaluator, UnknownValue, rounded
from mcp_server.package.terms.interval import Bounds, Interval, limits
from mcp_server.package.terms.program import accesses_of, places, read_program
from mcp_server.package.terms.term import (
    Apply,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    Unread,
    is_float,
    itemsize_of,
    parts,
    understood,
)
from mcp_server.package.terms.translate import Translator, dtype_of
from mcp_server.package.terms.triton import Place, Reader, accesses_in, function_of

_OTHER_PATH = (ast.If, ast.While, ast.Try, ast.FunctionDef, ast.Match)

_MOST_LANES = 4096
_MOST_MASKED = 64
_MOST_ENDS = 256  # of one loop variable
_WHOLE = frozenset({"add", "sub", "mul", "neg", "shl"})
_DIVIDES = frozenset({"floordiv", "truncdiv", "div"})
_REMAINDER = frozenset({"mod", "remainder"})


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """A load, a store or an atomic update of a parameter, at a 1-based line of the kernel's source.

    The place is the sum of `index`, terms that each count in elements of so many bytes. `itemsize` is that
    of what is accessed. It is made for all of `ranges` where `test` holds.
    """

    kind: str
    parameter: str
    index: tuple[tuple[Term, int], ...]
    itemsize: int
    ranges: tuple[Range, ...]
    test: Term | None
    line: int


@lru_cache(maxsize=512)
def read_accesses(kernel: Kernel) -> tuple[Access, ...]:
    """The accesses in the order of the text, as far as they are understood.

    What stands in a branch, or behind a `return` in one, is left out: whether it is reached is not known.
    """
    try:
        found = list(_of_cpp(kernel) if kernel.kind == "cpp" else _of_triton(kernel))
    except RecursionError:
        return ()
    return tuple(each for each in found if all(understood(part) for part, _ in each.index))


def _of_cpp(kernel: Kernel) -> Iterator[Access]:
    types = {each.name: dtype_of(each.type) for each in kernel.parameters if "*" in each.type}
    skipped = lines_in_branches(kernel.source)
    for store in read_program(kernel).stores:
        first, *loads = accesses_of(store)
        kinds = [*("load" for _ in loads), "store" if store.mode == "plain" else "update"]
        for kind, (name, (line, index, ranges, test)) in zip(kinds, (*loads, first), strict=True):
            if (dtype := types.get(name)) is not None and line not in skipped:
                size = itemsize_of(dtype)
                yield Access(kind, name, ((index, size),), size, ranges, test, line)


class _SureReader(Reader):
    """Follows names where they have one value: not behind a branch or a loop that assigns them."""

    def __init__(self, kernel: Kernel, function: ast.FunctionDef) -> None:
        super().__init__(kernel, function)
        self.translator = Translator(self.pointers, masks_hold=kernel.kind != "user_triton")
        self.unsure: dict[str, int] = {}  # from which line on
        self.skipped: set[int] = set()
        self.last = end = function.end_lineno or 0
        self.around = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        for branch in ast.walk(function):
            if branch is not function and isinstance(branch, _OTHER_PATH):
                self.skipped.update(range(branch.lineno, (branch.end_lineno or end) + 1))
                returns = [each.lineno for each in ast.walk(branch) if isinstance(each, ast.Return)]
                self.last = min([self.last, *returns])
                begin = min([branch.lineno, *(each.lineno for each in self._loops(branch.lineno))])
                self._from(begin, _stored(branch))
        for loop in self.around:
            # In later turns a value that is updated is another one than in the first, which is read here.
            self._from((loop.end_lineno or end) + 1, _stored(loop))
            self._from(loop.lineno, _stored(loop) & _updated(loop))

    def _from(self, line: int, names: set[str]) -> None:
        self.unsure |= {name: min(line, self.unsure.get(name, line)) for name in names}

    def _loops(self, line: int) -> list[ast.For]:
        return [each for each in self.around if each.lineno < line <= (each.end_lineno or 0)]

    def _is_sure(self, name: str, at: int) -> bool:
        statement = self.statements[min(at, len(self.statements) - 1)]
        line = statement.lineno if isinstance(statement, ast.Call) else statement.line
        return line < self.unsure.get(name, line + 1)

    def look(self, name: str, at: int) -> Term:
        return super().look(name, at) if self._is_sure(name, at) else Unread(name)

    def place(self, node: ast.expr, at: int, line: int) -> Place | None:
        sure = not isinstance(node, ast.Name) or self._is_sure(node.id, at)
        return super().place(node, at, line) if sure else None

    def reached(self, line: int, at: int) -> tuple[Range, ...] | None:
        """The loops around a line; None where it may not be reached."""
        if line > self.last or line in self.skipped:
            return None
        loops = self._loops(line)
        variables = [self.look(node.target.id, at) for node in loops if isinstance(node.target, ast.Name)]
        if len(variables) < len(loops) or not all(map(understood, variables)):
            return None
        return self.ranges(tuple(variables))


def _of_triton(kernel: Kernel) -> Iterator[Access]:
    function = function_of(kernel)
    if function is None:
        return
    reader = _SureReader(kernel, function)
    for kind, node, mask in sorted(accesses_in(function), key=lambda found: found[1].lineno):
        line, at = node.lineno, reader.above(node.lineno)
        loops = reader.reached(line, at)
        place = reader.place(node.args[0], at, line) if loops is not None else None
        if loops is None or place is None:
            continue
        test = reader.term(mask, at, line) if mask is not None else None
        test = None if isinstance(test, Number) and test.value else test
        terms = (*(part for part, _ in place.parts), *([test] if test is not None else []))
        ranges = {each.name: each for each in (*loops, *reader.ranges(terms))}
        yield Access(kind, place.parameter, place.parts, place.itemsize, tuple(ranges.values()), test, line)


def _stored(node: ast.AST) -> set[str]:
    """The names that a branch or a loop assigns."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _updated(loop: ast.For) -> set[str]:
    """The names that a loop computes from their value of the turn before."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign | ast.Assign):
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            found |= _stored(node) & used if isinstance(node, ast.Assign) else _stored(node)
    return found


def terms_of(access: Access) -> tuple[Term, ...]:
    """All terms that decide where and when an access is made."""
    tests = (access.test,) if access.test is not None else ()
    ends = (end for each in access.ranges for end in (each.start, each.stop))
    roots = (*(part for part, _ in access.index), *tests, *ends)
    return tuple(dict.fromkeys(each for root in roots for each in parts(root, inside_indices=True)))


@dataclass(frozen=True)
class Overflow:
    """An operation whose result its type cannot hold: what it should be, and what it becomes."""

    term: Term
    exact: int
    wrapped: int


class Lane(Evaluator):
    """The values of one lane. Notes the first overflow of whole numbers."""

    def __init__(self, place: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        super().__init__(place, sizes)
        self.overflow: Overflow | None = None

    def _value(self, term: Term) -> Scalar:
        value = exact = super()._value(term)
        match term:
            case Apply(op=op, args=args) if op in _WHOLE and not is_float(term.dtype):
                exact = FUNCTIONS[op](*map(self.value, args))
                if not any(isinstance(each, Position | Size) for each in parts(term)):
                    return exact  # Triton computes with constants as Python does
            case Apply(op="cast", args=(inner,)) if not (is_float(inner.dtype) or is_float(term.dtype)):
                exact = self.value(inner)
            case Position(dtype=dtype) | Size(dtype=dtype):
                value = rounded(exact, dtype)
        if exact != value and term.dtype != "bool" and self.overflow is None:
            self.overflow = Overflow(term, int(exact), int(value))
        return value

    def offset(self, access: Access) -> int | None:
        """Bytes from the pointer to what is accessed; None where the lane does not make the access.

        Raises `UnknownValue`.
        """
        if access.test is not None and not self.value(access.test):
            return None
        return sum(int(self.value(part)) * size for part, size in access.index)


def lanes(access: Access, sizes: Mapping[str, int]) -> Iterator[Lane]:
    """The lanes of the extremes, the last ones first; all where they are few. Raises `UnknownValue`."""
    plain = Lane({}, sizes)
    spans = {each.name: plain.span(each) for each in access.ranges}
    if prod(map(len, spans.values())) <= _MOST_LANES:
        yield from first_lanes(access, sizes)
        return
    digits = _digits(access, plain)
    choices = [[span[turn] for turn in _ends(len(span), digits)] for span in spans.values()]
    masked: list[dict[str, int]] = []
    for chosen in islice(product(*choices), _MOST_LANES):
        place = dict(zip(spans, chosen, strict=True))
        yield (lane := Lane(place, sizes))
        if access.test is not None and len(masked) < _MOST_MASKED and not lane.value(access.test):
            masked.append(place)
    for place in masked:
        for name, span in spans.items():
            # The last turn that a mask leaves, if it leaves the first ones.
            left = bisect_left(span, True, key=lambda turn: not _made(access, {**place, name: turn}, sizes))
            if left:
                yield Lane({**place, name: span[left - 1]}, sizes)


def _made(access: Access, place: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    return Lane(place, sizes).offset(access) is not None


def _ends(turns: int, digits: list[int]) -> list[int]:
    """The turns in which each digit is 0 or as large as the others allow, the last one first."""
    found, below = {0, turns - 1}, {0}
    for low, high in pairwise([1, *digits, turns]):
        last = (turns - 1) // low
        found |= {turn * low + rest for turn in (0, last - 1, last) for rest in below}
        if len(below) < _MOST_ENDS:
            below |= {rest + high - low for rest in below}
    return sorted((each for each in found | below if 0 <= each < turns), reverse=True)[:_MOST_ENDS]


def first_lanes(access: Access, sizes: Mapping[str, int]) -> Iterator[Lane]:
    """Neighbouring lanes, from the first one on. Raises `UnknownValue`."""
    return (Lane(place, sizes) for place in places(access.ranges, sizes, _MOST_LANES)[0])


def _digits(access: Access, plain: Lane) -> list[int]:
    """After how many turns a digit of the place, made with `//` and `%`, begins anew."""

    def number(term: Term) -> int:
        try:
            return max(int(plain.value(term)), 1)
        except UnknownValue:
            return 1

    def place_value(term: Term) -> int:
        match term:
            case Apply(op=op, args=(inner, by)) if op in _DIVIDES:
                return place_value(inner) * number(by)
            case Apply(op=op, args=(inner, *_)) if op in _REMAINDER or op == "cast":
                return place_value(inner)
        return 1

    made = [each for each in terms_of(access) if isinstance(each, Apply) and each.op in _DIVIDES | _REMAINDER]
    return sorted({place_value(each.args[0]) * number(each.args[1]) for each in made} - {1})


class Spans:
    """What intervals alone say of an access: enough for most, in no time. Raises `UnknownValue`."""

    def __init__(self, access: Access, sizes: Mapping[str, int]) -> None:
        plain, self.access = Lane({}, sizes), access
        known = {name: Interval(value, value) for name, value in sizes.items()}
        spans = {each.name: plain.span(each) for each in access.ranges}
        self.empty = not all(spans.values())
        known |= {name: Interval(span[0], span[-1]) for name, span in spans.items() if span}
        self.bounds = Bounds(known)

    @property
    def may_overflow(self) -> bool:
        """Whether a term of fewer than 64 bits may not hold its value."""
        for term in terms_of(self.access):
            limit, span = limits(term.dtype), self.bounds.of(term)
            whole = not (is_float(term.dtype) or term.dtype in ("bool", "int64"))
            if whole and (span == limit or span.low < limit.low or span.high > limit.high):
                return True
        return False

    def may_leave(self, first: int, end: int) -> bool:
        """Whether the access may lie outside of the bytes from `first` to below `end`."""
        spans = [(self.bounds.of(part), size) for part, size in self.access.index]
        low = sum(span.low * size for span, size in spans)
        return low < first or sum(span.high * size for span, size in spans) + self.access.itemsize > end
