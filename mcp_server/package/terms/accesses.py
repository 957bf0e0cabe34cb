"""Relates accesses and checks: the elements of a check, the checks and lanes of an access.

A package compiled without index assertions (`assert_indirect_indexing=False`) has no checks, and a user's
kernel has none either: `index_checks` derives them from accesses at a loaded index.

A lane is one combination of the loop variables. Its address is computed in the types of the code. If there
are too many lanes, those are tried where each loop variable, or each digit that `//` and `%` make of it, is
smallest or largest: a sum of multiples of digits has its extremes there. If such a lane is masked off, the
last unmasked iteration of each loop is tried instead.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product
from math import gcd, prod

from mcp_server.package.terms.evaluate import FUNCTIONS, Evaluator, Read, UnknownValue, rounded
from mcp_server.package.terms.interval import Bounds, Interval, limits
from mcp_server.package.terms.parts import elements, free_positions, parts, uncast, understood
from mcp_server.package.terms.program import Access, Check, Program, Source, read_program
from mcp_server.package.terms.sizes import reached
from mcp_server.package.terms.term import (
    QUOTIENTS,
    REMAINDERS,
    Apply,
    Element,
    Number,
    Position,
    Range,
    Scalar,
    Size,
    Term,
    is_float,
)

_MOST = 1 << 17
_MOST_ACCESSES = 16  # accesses of one tensor that are kept
_NEAR = 40  # lines after a check in which its index is used
_MOST_LANES = 4096
_MOST_MASKED = 64
_MOST_ENDS = 256  # iterations of one loop variable that are tried
_WHOLE = frozenset({"add", "sub", "mul", "neg", "shl"})


def read_accesses(kernel: Source) -> tuple[Access, ...]:
    """List the accesses of a kernel in source order, if they are understood."""
    return tuple(each for each in read_program(kernel).accesses if each.is_understood)


def terms_of(access: Access) -> tuple[Term, ...]:
    """List all terms that decide where and when an access happens."""
    return tuple(
        dict.fromkeys(each for root in access.decided_by for each in parts(root, inside_indices=True))
    )


@dataclass(frozen=True)
class Overflow:
    """An operation whose result does not fit its type: the exact value, and the wrapped value."""

    term: Term
    exact: int
    wrapped: int


class Lane(Evaluator):
    """Evaluates terms in one lane, and notes the first integer overflow."""

    def __init__(self, place: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        super().__init__(place, sizes)
        self.overflow: Overflow | None = None

    def _value(self, term: Term) -> Scalar:
        value = exact = super()._value(term)
        match term:
            case Apply(op=op, args=args) if op in _WHOLE and not is_float(term.dtype):
                exact = FUNCTIONS[op](*map(self.value, args))
                if not any(isinstance(each, Position | Size) for each in parts(term)):
                    return exact  # Triton computes exactly with constants, as Python does
            case Apply(op="cast", args=(inner,)) if not (is_float(inner.dtype) or is_float(term.dtype)):
                exact = self.value(inner)
            case Position(dtype=dtype) | Size(dtype=dtype):
                value = rounded(exact, dtype)
        if exact != value and term.dtype != "bool" and self.overflow is None:
            self.overflow = Overflow(term, int(exact), int(value))
        return value

    def offset(self, access: Access) -> int | None:
        """The bytes from the pointer to the accessed element. None if the lane makes no access.

        Raise `UnknownValue` if this is unknown.
        """
        if access.test is not None and not self.value(access.test):
            return None
        return sum(int(self.value(part)) * size for part, size in access.place.parts)


def lanes(access: Access, sizes: Mapping[str, int]) -> Iterator[Lane]:
    """Yield all lanes. May raise `UnknownValue`.

    If there are too many, yield only those at the ends of the loops, the last iterations first, then those at
    the edge of a mask.
    """
    plain = Lane({}, sizes)
    spans = {each.name: plain.span(each) for each in access.ranges}
    if prod(map(len, spans.values())) <= _MOST_LANES:
        yield from (Lane(place, sizes) for place in places(access.ranges, sizes, _MOST_LANES)[0])
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
            # The last unmasked iteration, if the first iterations are unmasked.
            left = bisect_left(span, True, key=lambda turn: not _made(access, {**place, name: turn}, sizes))
            if left:
                yield Lane({**place, name: span[left - 1]}, sizes)


def _made(access: Access, place: Mapping[str, int], sizes: Mapping[str, int]) -> bool:
    return Lane(place, sizes).offset(access) is not None


def _ends(turns: int, digits: list[int]) -> list[int]:
    """List the iterations in which each digit is 0 or as large as possible, the last first."""
    found, below = {0, turns - 1}, {0}
    for low, high in pairwise([1, *digits, turns]):
        last = (turns - 1) // low
        found |= {turn * low + rest for turn in (0, last - 1, last) for rest in below}
        if len(below) < _MOST_ENDS:
            below |= {rest + high - low for rest in below}
    return sorted((each for each in found | below if 0 <= each < turns), reverse=True)[:_MOST_ENDS]


def _digits(access: Access, plain: Lane) -> list[int]:
    """List the periods, in iterations, of the digits that `//` and `%` make of loop variables."""

    def number(term: Term) -> int:
        try:
            return max(int(plain.value(term)), 1)
        except UnknownValue:
            return 1

    def place_value(term: Term) -> int:
        match term:
            case Apply(op=op, args=(inner, by)) if op in QUOTIENTS:
                return place_value(inner) * number(by)
            case Apply(op=op, args=(inner, *_)) if op in REMAINDERS or op == "cast":
                return place_value(inner)
        return 1

    divisions = QUOTIENTS | REMAINDERS
    made = [each for each in terms_of(access) if isinstance(each, Apply) and each.op in divisions]
    return sorted({place_value(each.args[0]) * number(each.args[1]) for each in made} - {1})


class Spans:
    """Checks an access with intervals, which is fast and usually decides. May raise `UnknownValue`."""

    def __init__(self, access: Access, sizes: Mapping[str, int]) -> None:
        plain, self.access = Lane({}, sizes), access
        known = {name: Interval(value, value) for name, value in sizes.items()}
        spans = {each.name: plain.span(each) for each in access.ranges}
        self.empty = not all(spans.values())
        known |= {name: Interval(span[0], span[-1]) for name, span in spans.items() if span}
        self.bounds = Bounds(known)

    @property
    def may_overflow(self) -> bool:
        """Whether a term of fewer than 64 bits may overflow."""
        for term in terms_of(self.access):
            limit, span = limits(term.dtype), self.bounds.of(term)
            whole = not (is_float(term.dtype) or term.dtype in ("bool", "int64"))
            if whole and (span == limit or span.low < limit.low or span.high > limit.high):
                return True
        return False

    def may_leave(self, first: int, end: int) -> bool:
        """Whether the access may lie outside the bytes from `first` to below `end`."""
        spans = [(self.bounds.of(part), size) for part, size in self.access.place.parts]
        low = sum(span.low * size for span, size in spans)
        return low < first or sum(span.high * size for span, size in spans) + self.access.place.itemsize > end


def used(term: Term, ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The loop variables on which a term depends."""
    return tuple(each for each in ranges if each.name in free_positions(term))


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
    """The last place at which an index is `offset`. None if there is none. May raise `UnknownValue`.

    An index is nearly always a sum of multiples of the variables, so its strides are tried first.
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


def indexed_by(program: Program, check: Check, tensors: Collection[str]) -> list[tuple[int, str]]:
    """List line and tensor of each access after an index check that uses the checked value as an index."""
    value = uncast(check.value)  # the check may use a converted copy
    position = value.name if isinstance(value, Position) else None
    found = (
        (access.line, access.parameter)
        for access in program.accesses
        if check.line < access.line <= check.line + _NEAR
        and access.parameter in tensors
        and any(
            each is value or (isinstance(each, Position) and each.name == position)
            for part, _ in access.place.parts
            for each in parts(part)
        )
    )
    return list(dict.fromkeys(found))


def index_checks(
    program: Program, parameter: str, shape: Sequence[int], stride: Sequence[int]
) -> tuple[Check, ...]:
    """Derive a check for each access to `parameter` at a loaded index: the index must lie in its dimension.

    The tensor has this `shape` and `stride`, in elements. If the index does not belong to one dimension, the
    check is for the whole offset and the extent of the tensor.
    """
    found: dict[tuple[Term, tuple[str, ...]], Check] = {}
    for access in program.accesses:
        place = access.place.index
        if access.parameter != parameter or not elements(place):
            continue
        value, size = _index_and_size(place, shape, stride)
        if understood(value) and len(found) < _MOST_ACCESSES:
            names = tuple(each.name for each in access.ranges)
            ends = (Number(0, "int64"), Number(size, "int64"))
            found.setdefault((value, names), Check(access.line, value, *ends, access.ranges, access.test))
    return tuple(found.values())


def slice_read(check: Check, parameter: str, sizes: Mapping[str, int]) -> range | None:
    """The flat elements of a tensor that a check reads, as a slice. None if they form no slice.

    Raise `UnknownValue` if the code or the sizes do not determine them.
    """
    terms = parts(check.value, inside_indices=True)
    loads = [each for each in terms if isinstance(each, Element) and each.parameter == parameter]
    if len(loads) != 1 or elements(loads[0].index):
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


def _index_and_size(place: Term, shape: Sequence[int], stride: Sequence[int]) -> tuple[Term, int]:
    """The index that an offset contains, and the size of its dimension.

    If the offset contains none or several, return the offset and the number of elements that it may reach.
    Unlike `axes.summands`, do not split `2 * (a + b)`: the sum is the index of one dimension.
    """
    indices = [each for each in _summands(place) if elements(each)]
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
    """Split a product into its constant factor and the rest."""
    match term:
        case Apply(op="cast", args=(inner,)) if inner.dtype.startswith("int") and term.dtype == "int64":
            return _scaled(inner)
        case Apply(op="mul", args=(Number(value=value), other) | (other, Number(value=value))):
            factor, inner = _scaled(other)
            return int(value) * factor, inner
    return 1, term
