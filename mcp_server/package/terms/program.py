"""A kernel as a program: its stores and index checks, as terms.

A package that was compiled without index assertions (`assert_indirect_indexing=False`) has no checks, and
neither has a kernel of the user's: `index_checks` makes them from accesses at a loaded place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import gcd, prod

from mcp_server.package.kernel_code import IndexAssert
from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.evaluate import Evaluator, Read, UnknownValue
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Term,
    Unread,
    parts,
    understood,
)

_MOST = 1 << 17
_MOST_ACCESSES = 16  # of one tensor
_NEAR = 40  # lines below a check in which its index is used


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


Value = tuple[Term, tuple[Range, ...]]
"""The value of a variable, and the loops that it depends on."""


def _unknown(name: str, _line: int) -> Value:
    return Unread(name), ()


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel does, in the order of its source.

    `value_at` gives the value of a variable just before a 1-based line.
    """

    stores: tuple[Store, ...]
    checks: tuple[Check, ...]
    loads: tuple[Element, ...] = ()
    value_at: Callable[[str, int], Value] = _unknown

    @property
    def accesses(self) -> list[tuple[int, str, Term]]:
        """Line, tensor and place of each store and load, in the order of the lines."""
        every: list[Store | Element] = [*self.stores, *self.loads]
        found = [(each.line, each.parameter, each.index) for each in every]
        return sorted(found, key=lambda access: access[0])

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
    evaluator = Evaluator({}, sizes)
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
    return read_cpp_program(kernel) if kernel.kind == "cpp" else read_triton_program(kernel)


def indexed_by(kernel: Kernel, check: IndexAssert, tensors: Collection[str]) -> list[tuple[int, str]]:
    """Line and tensor of each access below an index check whose place the checked value decides."""
    program = read_program(kernel)
    value, _ = program.value_at(check.variable, check.line)
    decisive = {value}
    while isinstance(value, Apply) and value.op == "cast":  # the check may be on a converted copy
        (value,) = value.args
        decisive.add(value)
    position = value.name if isinstance(value, Position) else None
    found = (
        (line, parameter)
        for line, parameter, place in program.accesses
        if check.line < line <= check.line + _NEAR
        and parameter in tensors
        and any(
            each in decisive or (isinstance(each, Position) and each.name == position)
            for each in parts(place)
        )
    )
    return list(dict.fromkeys(found))


def index_checks(
    program: Program, parameter: str, shape: Sequence[int], stride: Sequence[int]
) -> tuple[Check, ...]:
    """For each access to `parameter` at a loaded index: that the index lies within its dimension.

    `shape` and `stride` are those of the tensor, in elements. Where the index does not belong to one
    dimension, the whole offset is checked against all that the tensor reaches.
    """
    found: dict[tuple[Term, tuple[str, ...]], Check] = {}
    for name, (line, place, ranges, test) in (
        each for store in program.stores for each in accesses_of(store)
    ):
        if name != parameter or not _is_loaded(place):
            continue
        value, size = _index_and_size(place, shape, stride)
        if understood(value) and len(found) < _MOST_ACCESSES:
            names = tuple(each.name for each in ranges)
            ends = (Number(0, "int64"), Number(size, "int64"))
            found.setdefault((value, names), Check(line, value, *ends, ranges, test))
    return tuple(found.values())


def slice_read(check: Check, parameter: str, sizes: Mapping[str, int]) -> range | None:
    """The flat elements of a tensor that a check is made of, and no others; None where they are no slice.

    Raises `UnknownValue` where the code or the sizes do not tell.
    """
    terms = parts(check.value, inside_indices=True)
    loads = [each for each in terms if isinstance(each, Element) and each.parameter == parameter]
    if len(loads) != 1 or _is_loaded(loads[0].index):
        raise UnknownValue(parameter)
    evaluator = Evaluator({}, sizes)
    spans = {each.name: evaluator.span(each) for each in used(loads[0].index, check.ranges)}
    if not all(spans.values()):
        raise UnknownValue("a loop without a turn")
    base = {name: span[0] for name, span in spans.items()}

    def at(place: Mapping[str, int]) -> int:
        return int(Evaluator(place, sizes).value(loads[0].index))

    first, last = at(base), at({name: span[-1] for name, span in spans.items()})
    long = {name: span for name, span in spans.items() if len(span) > 1}
    steps = {name: at({**base, name: span[1]}) - first for name, span in long.items()}
    if last != first + sum(steps[name] * (len(span) - 1) for name, span in long.items()):
        raise UnknownValue("no sum of multiples of the loops")
    stride = gcd(*steps.values()) or 1
    read = prod(len(long[name]) for name, step in steps.items() if step)
    whole = last >= first and read == (last - first) // stride + 1
    return range(first, last + 1, stride) if whole else None


_Access = tuple[int, Term, tuple[Range, ...], Term | None]
"""The line, the place in elements, the loops around it, and the test under which it is made."""


def accesses_of(store: Store) -> Iterator[tuple[str, _Access]]:
    """A store, and the loads behind its value and its index, by tensor."""
    yield store.parameter, (store.line, store.index, store.ranges, None)
    for term in (store.value, store.index):
        yield from _loads(term, store.ranges, None, set())


def _loads(
    term: Term, ranges: tuple[Range, ...], test: Term | None, seen: set[Term]
) -> Iterator[tuple[str, _Access]]:
    """The loads behind a term, those of their indices included; each by the first way to it."""
    if term in seen:
        return
    seen.add(term)
    match term:
        case Element(parameter=name, index=index, line=line):
            yield name, (line, index, ranges, test)
            yield from _loads(index, ranges, test, seen)
        case Apply(op="where", args=(choice, first, second)):
            yield from _loads(choice, ranges, test, seen)
            for branch, holds in ((first, choice), (second, Apply("not", (choice,), "bool"))):
                both = holds if test is None else Apply("and", (test, holds), "bool")
                yield from _loads(branch, ranges, both, seen)
        case Apply(args=args):
            for each in args:
                yield from _loads(each, ranges, test, seen)
        case Fold(body=body, ranges=inner):
            yield from _loads(body, (*ranges, *inner), test, seen)


def _is_loaded(place: Term) -> bool:
    return any(isinstance(each, Element) for each in parts(place))


def _index_and_size(place: Term, shape: Sequence[int], stride: Sequence[int]) -> tuple[Term, int]:
    """The loaded index in a place and the size of its dimension; else the place and all that is reached."""
    indices = [each for each in _summands(place) if _is_loaded(each)]
    if len(indices) == 1:
        factor, index = _scaled(indices[0])
        sizes = [size for size, step in zip(shape, stride, strict=True) if step == factor and size > 1]
        if sizes:
            return index, sizes[0]
    reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1
    return place, reach if prod(shape) else 0


def _summands(term: Term) -> list[Term]:
    match term:
        case Apply(op="add", args=args):
            return [each for argument in args for each in _summands(argument)]
    return [term]


def _scaled(term: Term) -> tuple[int, Term]:
    """The factor of a product and the rest of it."""
    match term:
        case Apply(op="cast", args=(inner,)) if inner.dtype.startswith("int") and term.dtype == "int64":
            return _scaled(inner)
        case Apply(op="mul", args=(Number(value=value), other) | (other, Number(value=value))):
            factor, inner = _scaled(other)
            return int(value) * factor, inner
    return 1, term
