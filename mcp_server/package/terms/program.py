"""A kernel as a program: its loops, its loads and stores, and its index checks, as terms.

A package that was compiled without index assertions (`assert_indirect_indexing=False`) has no checks, and
neither has a kernel of the user's: `index_checks` makes them from accesses at a loaded place.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from math import gcd, prod
from typing import Literal, Protocol

from mcp_server.package.terms.evaluate import Evaluator, Read, UnknownValue
from mcp_server.package.terms.sizes import reached
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    is_address,
    itemsize_of,
    parts,
    uncast,
    understood,
)
from mcp_server.package.terms.translate import cast, operator

_MOST = 1 << 17
_MOST_ACCESSES = 16  # of one tensor
_NEAR = 40  # lines below a check in which its index is used

AccessKind = Literal["load", "store", "update"]


class Parameter(Protocol):
    """A parameter of a kernel with its type: `const float*` in C++."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


class Source(Hashable, Protocol):
    """The source of one kernel: C++ if `kind` is `cpp`, else Triton with the launcher's decorator.

    `kind` is `triton` for Inductor's own kernels, whose masks only cut off what lies beyond the iteration
    space. `grid` are the numbers of blocks as C++ expressions of the parameters.
    """

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def grid(self) -> Sequence[str]: ...


@dataclass(frozen=True, eq=False)
class Place:
    """An address: `parts` behind a parameter, each an index and the bytes that it counts in.

    An address is 64 bits wide, and each index as wide as its own type. `itemsize` is that of what it points
    to. `parameter` is empty for an address that is itself computed; `others` are parameters that may be meant
    as well.
    """

    parameter: str
    itemsize: int
    parts: tuple[tuple[Term, int], ...] = ()
    others: tuple[str, ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Whether a loaded element decides the address."""
        return any(_is_loaded(part) for part, _ in self.parts)

    @cached_property
    def index(self) -> Term:
        """The index from the parameter's first element; `Unread` if a part counts in another unit."""
        if any(size != self.itemsize for _, size in self.parts) or not self.parameter or self.others:
            return Unread("address", "int64", tuple(part for part, _ in self.parts))
        if not self.parts:
            return Number(0, "int64")
        total = self.parts[0][0]
        for part, _ in self.parts[1:]:
            total = operator("add", (cast(total, "int64"), cast(part, "int64")))  # as wide as an address
        return total


def place_of(pointer: Term) -> Place:
    """Where an address points, through sums, choices and casts."""
    match pointer:
        case Size(name=name, dtype=dtype) if is_address(dtype):
            return Place(name, itemsize_of(dtype))
        case Apply(op="add" | "sub" as op, args=(left, right), dtype=dtype) if is_address(dtype):
            at, offset = (left, right) if is_address(left.dtype) else (right, left)
            base = place_of(at)
            moved = offset if op == "add" else operator("neg", (offset,))
            return replace(base, parts=(*base.parts, (moved, base.itemsize)))
        case Apply(op="cast", args=(inner,), dtype=dtype) if is_address(inner.dtype):
            return replace(place_of(inner), itemsize=itemsize_of(dtype))
        case Apply(op="cast", args=(inner,), dtype=dtype) if is_address(dtype):
            return Place("", itemsize_of(dtype), ((inner, 1),))
    # A choice of several addresses, or the result of a function of an address.
    inside = list(parts(pointer))
    bases = [each for each in inside if isinstance(each, Size) and is_address(each.dtype)]
    if not bases:
        return Place("", 1, ((pointer, 1),))
    names = tuple(dict.fromkeys(each.name for each in bases))
    size = itemsize_of(bases[0].dtype)
    rest = tuple(each for each in inside if not is_address(each.dtype) and each is not pointer)
    return Place(names[0], size, ((Unread("address", "int64", rest), size),), names[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Access:
    """A load, a store or an update (a store that adds, an atomic operation), at a 1-based line of the source.

    It is made for all of `ranges` where `test` holds. `masked`: it has a mask of its own. `code` is the call,
    or in C++ the line. What is not a load is a `Store`.
    """

    kind: AccessKind
    place: Place
    ranges: tuple[Range, ...]
    test: Term | None
    line: int
    masked: bool = False
    code: str = ""
    value: Term | None = None

    @property
    def parameter(self) -> str:
        return self.place.parameter

    @property
    def index(self) -> Term:
        return self.place.index

    @property
    def decided_by(self) -> tuple[Term, ...]:
        """The terms that decide where and when the access is made."""
        tests = (self.test,) if self.test is not None else ()
        ends = (end for each in self.ranges for end in (each.start, each.stop))
        return (*(part for part, _ in self.place.parts), *tests, *ends)

    @property
    def is_understood(self) -> bool:
        """Whether the place, loops and test of the access were all understood, and what it stores."""
        terms = (*self.decided_by, *([self.value] if self.value is not None else []))
        return bool(self.parameter) and not self.place.others and all(map(understood, terms))


@dataclass(frozen=True, eq=False, kw_only=True)
class Store(Access):
    """`parameter[index] = value` for all of `ranges` where `test` holds. `mode` is plain or add."""

    value: Term
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


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """What a variable is defined as on a 1-based line."""

    name: str
    line: int
    value: Term


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel does, in the order of its source.

    `unread` are the lines of statements that were not understood. What they may write is `Unread` where it is
    used later.
    """

    accesses: tuple[Access, ...] = ()
    checks: tuple[Check, ...] = ()
    definitions: tuple[Definition, ...] = ()
    unread: tuple[int, ...] = ()

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(each for each in self.accesses if isinstance(each, Store))

    @property
    def is_understood(self) -> bool:
        """Whether every statement, store and check was read."""
        checks = [end for c in self.checks for end in (c.value, c.lower, c.upper, c.test) if end is not None]
        stores = all(each.is_understood for each in self.stores)
        return not self.unread and bool(self.stores) and stores and all(map(understood, checks))

    def stores_to(self, parameter: str, before: int | None = None) -> tuple[Store, ...]:
        """The stores to a tensor, the last one first; only those above a line if given."""
        mine = [each for each in self.stores if parameter in (each.parameter, *each.place.others)]
        return tuple(each for each in reversed(mine) if before is None or each.line < before)

    def check_at(self, line: int) -> Check | None:
        """The check on a 1-based line of the kernel's source."""
        return next((check for check in self.checks if check.line == line), None)

    def defining_line(self, check: Check) -> int | None:
        """The line on which a checked value is computed, before it is copied and converted."""
        value = uncast(check.value)
        same = (each.line for each in self.definitions if uncast(each.value) is value)
        return next((line for line in same if line < check.line), None)


def used(term: Term, ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The loop variables that a term depends on."""
    names = {each.name for each in parts(term, inside_indices=True) if isinstance(each, Position)}
    return tuple(each for each in ranges if each.name in names)


def places(
    ranges: Sequence[Range], sizes: Mapping[str, int], most: int = _MOST
) -> tuple[list[dict[str, int]], bool]:
    """At most `most` combinations of the loop variables, and whether these are all."""
    evaluator = Evaluator({}, sizes)
    total = prod(len(evaluator.span(each)) for each in ranges)
    found = islice(evaluator.places(ranges, max(total, 1)), most)
    return list(found), total <= most


def position_of(
    index: Term, offset: int, ranges: Sequence[Range], sizes: Mapping[str, int], read: Read
) -> dict[str, int] | None:
    """The last values of the loop variables at which an index is `offset`, or None. Raises `UnknownValue`.

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
    if not complete:
        raise UnknownValue("too many elements")
    return next((place for place in reversed(every) if at(place) == offset), None)


@lru_cache(maxsize=512)
def read_program(kernel: Source) -> Program:
    """The program of a kernel; an empty one when its source is not known."""
    from mcp_server.package.terms.cpp import read_cpp_program
    from mcp_server.package.terms.triton import read_triton_program

    if not kernel.source:
        return Program()
    return read_cpp_program(kernel) if kernel.kind == "cpp" else read_triton_program(kernel)


def indexed_by(program: Program, check: Check, tensors: Collection[str]) -> list[tuple[int, str]]:
    """Line and tensor of each access below an index check whose place the checked value decides."""
    value = check.value
    decisive = {value}
    while isinstance(value, Apply) and value.op == "cast":  # the check may be on a converted copy
        (value,) = value.args
        decisive.add(value)
    position = value.name if isinstance(value, Position) else None
    found = (
        (access.line, access.parameter)
        for access in program.accesses
        if check.line < access.line <= check.line + _NEAR
        and access.parameter in tensors
        and any(
            each in decisive or (isinstance(each, Position) and each.name == position)
            for part, _ in access.place.parts
            for each in parts(part)
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
    for access in program.accesses:
        place = access.place.index
        if access.parameter != parameter or not _is_loaded(place):
            continue
        value, size = _index_and_size(place, shape, stride)
        if understood(value) and len(found) < _MOST_ACCESSES:
            names = tuple(each.name for each in access.ranges)
            ends = (Number(0, "int64"), Number(size, "int64"))
            found.setdefault((value, names), Check(access.line, value, *ends, access.ranges, access.test))
    return tuple(found.values())


def slice_read(check: Check, parameter: str, sizes: Mapping[str, int]) -> range | None:
    """The slice of flat elements of a tensor that a check reads; None if they do not form a slice.

    Raises `UnknownValue` if the code or the sizes do not tell.
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


def _is_loaded(place: Term) -> bool:
    return any(isinstance(each, Element) for each in parts(place))


def _index_and_size(place: Term, shape: Sequence[int], stride: Sequence[int]) -> tuple[Term, int]:
    """The loaded index in a place and the size of its dimension; else the place and the whole extent."""
    indices = [each for each in _summands(place) if _is_loaded(each)]
    if len(indices) == 1:
        factor, index = _scaled(indices[0])
        sizes = [size for size, step in zip(shape, stride, strict=True) if step == factor and size > 1]
        if sizes:
            return index, sizes[0]
    return place, reached(shape, stride)[1]


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
