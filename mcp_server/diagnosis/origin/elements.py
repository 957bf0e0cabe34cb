"""Finds the elements of inputs and constants from which a value was computed, even by an operator.

Operators outside the generated code have no expression. For some of them it is known which elements a result
depends on, and launch probes saved these. A sum that overflowed its type is computed again in double
precision, which gives its size, and the largest elements with which it would not overflow.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from mcp_server.diagnosis.origin import OffendingElement, Overflow
from mcp_server.diagnosis.origin.condition import finite, is_input
from mcp_server.diagnosis.origin.expression import Closing, Expression, Leaf, shown, tensor_of
from mcp_server.diagnosis.origin.values import Tensor
from mcp_server.diagnosis.origin.walk import (
    Computed,
    Given,
    Place,
    Produced,
    Source,
    Walker,
    leaves,
    operator_name,
    value_of,
)
from mcp_server.package.launches import Argument
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.interval import limits
from mcp_server.package.terms.parts import elements, parts, uncast
from mcp_server.package.terms.term import Apply, Element, Fold

# POINTWISE operators look up each element. The numbers say which tensor has the values and which the
# boundaries. A result of RUNNING depends on all elements up to its place, one of PRODUCTS on a row and a
# column.
POINTWISE = {"bucketize": (0, 1), "searchsorted": (1, 0)}
RUNNING = frozenset({"cumsum", "cumprod", "logcumsumexp"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
MOST_SUMMED = 4096
_MOST_ADDENDS = 1 << 14
_MOST_SHOWN = 64
_MOST_WEIGHTS = 1 << 18


def offending(expression: Expression) -> Iterator[OffendingElement]:
    """Yield the elements of inputs that an expression reads, and of constants if nothing else is read."""
    inputs = {compiled.name: compiled.index for compiled in expression.walker.view.package.inputs}
    leaves = [each for leaf in expression.leaves.values() for each in _given(leaf, expression.walker)]
    inside = any(":" in each.parameter for each in elements(expression.term))  # inside a reduction
    known = not inside and all(isinstance(leaf.source, Given) for leaf in expression.leaves.values())
    kinds: tuple[Literal["input", "constant"], ...] = ("input", "constant") if known else ("input",)
    for kind in kinds:
        for leaf in leaves:
            if isinstance(leaf.source, Given) and leaf.source.kind == kind:
                yield OffendingElement(
                    kind=kind,
                    label=tensor_of(leaf, expression.walker),
                    index=list(leaf.source.index or ()),
                    value=shown(leaf.value),
                    input_index=inputs.get(leaf.source.name),
                )


def _given(leaf: Leaf, walker: Walker) -> Iterator[Leaf]:
    """Yield the leaf. If an operator made it, yield the elements that it depends on, if they are known.

    The largest elements of a sum come first.
    """
    if not isinstance(leaf.source, Produced):
        yield leaf
        return
    if not finite(leaf.value):
        yield from addends(walker, leaf.source)
    launch, at, operator = leaf.source.launch, leaf.index, operator_name(leaf.source.launch)
    first = POINTWISE.get(operator, (0,))[0]
    argument = next((each for each in launch.tensors[first:] if each.role != "written"), None)
    read = walker.values.tensor(launch.index, argument, "before") if argument is not None else None
    made = walker.values.tensor(launch.index, leaf.source.argument, "after")
    if argument is None or read is None or made is None or at is None or read.shape != made.shape:
        return
    places = [at] if operator in POINTWISE else []
    if operator in RUNNING and len(at) == 1:
        places = [(place,) for place in range(min(at[0] + 1, MOST_SUMMED))]
    known = [(place, read.value(place)) for place in places]
    for place, value in sorted(known, key=lambda pair: -abs(pair[1] or 0)):
        source = walker.back(Place(launch, argument, read.offset(place))).source
        if isinstance(source, Computed):
            for inner in Closing(walker).close(source).leaves.values():
                yield from _given(inner, walker)
        else:
            yield Leaf(source, value, place)


def selecting(walker: Walker, at: Computed) -> list[OffendingElement]:
    """The input elements that choose which element of a table a term reads."""
    chosen = enumerate(each for table in elements(at.term) for each in elements(table.index))
    sources = {str(n): (walker.back(replace(at, term=each)).source, each) for n, each in chosen}
    leaves = {n: Leaf(source, value_of(each, at.evaluator)) for n, (source, each) in sources.items()}
    found = offending(Expression(at.term, leaves, (), walker))
    return [each.model_copy(update={"kind": "selector"}) for each in found if each.kind == "input"]


@dataclass(frozen=True)
class _Matrix:
    """An operand of a product, as the launch read it."""

    argument: Argument
    tensor: Tensor

    def value(self, index: tuple[int, ...]) -> float:
        found = self.tensor.value(index[-len(self.tensor.shape) :])
        if found is None:
            raise UnknownValue(self.argument.target or "")
        return float(found)


@dataclass(frozen=True)
class Product:
    """One element of a matrix product. `at` is its index, which ends with row and column."""

    made: Produced
    at: tuple[int, ...]
    left: _Matrix
    right: _Matrix
    bias: float

    @property
    def inner(self) -> int:
        return min(self.left.tensor.shape[-1], _MOST_ADDENDS)

    def factors(self) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
        """The added products, the largest first, with the indices of their factors."""
        *batch, row, column = self.at
        places = [((*batch, row, k), (*batch, k, column)) for k in range(self.inner)]
        found = [(self.left.value(a) * self.right.value(b), a, b) for a, b in places]
        return sorted(found, key=lambda each: -abs(each[0]))

    def heaviest_column(self) -> float | None:
        """The largest sum of magnitudes in a column of the second factor."""
        *batch, rows, columns = self.right.tensor.shape
        if rows * columns > _MOST_WEIGHTS or batch:
            return None
        every = (sum(abs(self.right.value((k, j))) for k in range(rows)) for j in range(columns))
        return max(every, default=None)


def product_at(walker: Walker, made: Produced) -> Product | None:
    """The matrix product that made an element, if its operands were saved."""
    result = walker.values.tensor(made.launch.index, made.argument, "after")
    at = result.index(made.offset) if result is not None else None
    if operator_name(made.launch) not in PRODUCTS or at is None or len(at) < 2:
        return None
    read = [each for each in made.launch.tensors if each.role != "written"]
    seen = [walker.values.tensor(made.launch.index, each, "before") for each in read]
    known = [_Matrix(a, tensor) for a, tensor in zip(read, seen, strict=True) if tensor is not None]
    if len(known) != len(read) or len(known) not in (2, 3):
        return None
    *added, left, right = known
    if any(len(each.tensor.shape) != len(at) for each in (left, right)):
        return None
    try:
        shape = added[0].tensor.shape if added else ()
        index = tuple(0 if n == 1 else i for n, i in zip(shape, at[len(at) - len(shape) :], strict=True))
        return Product(made, at, left, right, added[0].value(index) if added else 0.0)
    except UnknownValue:
        return None


def addends(walker: Walker, made: Produced) -> Iterator[Leaf]:
    """Yield the elements multiplied for one element of a matrix product, the largest products first."""
    product = product_at(walker, made)
    if product is None:
        return
    try:
        largest = product.factors()[:_MOST_SHOWN]
    except UnknownValue:
        return
    sides = (
        (product.left, [left for _, left, _ in largest]),
        (product.right, [right for *_, right in largest]),
    )
    for matrix, indices in sides:
        for index in indices:
            place = Place(made.launch, matrix.argument, matrix.tensor.offset(index))
            source = walker.back(place).source
            known = source.index if isinstance(source, Given) and source.index is not None else index
            yield Leaf(source, matrix.value(index), known)


def zeros_behind(walker: Walker, start: Computed | Place) -> list[Leaf]:
    """Input elements and constants that are 0 and make a value 0. Empty if they are unknown.

    A product is 0 by one factor, a constant before an input; a sum of zeros by all of its parts.
    """
    at = walker.back(start).source
    if isinstance(at, Given):
        return [Leaf(at, walker.value_at(at.place), at.index)]
    if isinstance(at, Produced):
        product = product_at(walker, at)
        factors = product.factors() if product is not None and not product.bias else []
        _, rows, columns = zip(*factors, strict=True) if factors else ((), (), ())
        for matrix, indices in ((product.right, columns), (product.left, rows)) if product else ():
            if indices and not any(map(matrix.value, indices)):
                place = Place(at.launch, matrix.argument, matrix.tensor.offset(indices[0]))
                return zeros_behind(walker, place)
        return []
    term, known = uncast(at.term), at.evaluator
    if isinstance(term, Fold):
        loops = ({**known.positions, **each} for each in islice(known.places(term.ranges), _MOST_SHOWN))
        points = [Evaluator(each, known.sizes, known.read) for each in loops]
        zero = points and all(value_of(term.body, each) == 0 for each in points)
        return zeros_behind(walker, Computed(at.launch, term.body, points[0])) if zero else []
    args = term.args[: 1 if term.op == "div" else None] if isinstance(term, Apply) else ()
    made = [
        zeros_behind(walker, replace(at, term=each)) if elements(each) else []
        for each in args
        if value_of(each, known) == 0
    ]
    if isinstance(term, Apply) and term.op == "mul":
        return min(filter(None, made), key=lambda part: any(map(is_input, part)), default=[])
    return [leaf for part in made for leaf in part] if len(made) == len(args) and all(made) else []


_SHORT = ("float16", "bfloat16", "float32")  # types for which a sum may be too large
_MOST_ELEMENTS = 1 << 14
_MOST_ROWS = 64


def overflow_of(walker: Walker, source: Source) -> Overflow | None:
    """The sum or number that is too large for its type, if it made the value `source` infinite."""
    try:
        if isinstance(source, Produced):
            return _of_product(walker, source)
        return _of_conversion(walker, source) if isinstance(source, Computed) else None
    except (UnknownValue, OverflowError):
        return None


def _of_product(walker: Walker, made: Produced) -> Overflow | None:
    product = product_at(walker, made)
    result = walker.values.tensor(made.launch.index, made.argument, "after")
    if product is None or result is None or result.dtype not in _SHORT:
        return None
    found = product.factors()
    total = math.fsum(value for value, _, _ in found) + product.bias
    text = _too_large(f"{operator_name(made.launch)} adds up {len(found)} products to", total, result.dtype)
    weight = product.heaviest_column()
    if not text or not weight:
        return Overflow(text=text) if text else None
    left = walker.back(Place(made.launch, product.left.argument, product.left.tensor.offset((0, 0)))).source
    bound = (limits(result.dtype).high - abs(product.bias)) / weight
    rows = dict.fromkeys(index[0] for index in result.indices() if not finite(result.value(index)))
    few = len(result.shape) == 2 and len(rows) <= _MOST_ROWS
    return _kept(Overflow(text=text), [left], bound, list(rows) if few else [], walker)


def _of_conversion(walker: Walker, computed: Computed) -> Overflow | None:
    """The conversion of a finite number or sum to a type that is too narrow, or None."""
    for each in parts(computed.term):
        if not isinstance(each, Apply) or each.op != "cast" or each.dtype not in _SHORT:
            continue
        value = value_of(each.args[0], computed.evaluator)
        if not isinstance(value, float) or not math.isfinite(value):
            continue
        summed = uncast(each.args[0])
        if not isinstance(summed, Fold) or summed.kind not in ("sum", "mean"):
            exponent = summed.args[0] if isinstance(summed, Apply) and summed.op == "exp" else None
            of = value_of(exponent, computed.evaluator) if exponent is not None else None
            what = f"exp({shown(of)}) is" if isinstance(of, float) else "a result is"
            text = _too_large(what, value, each.dtype)
            if text:
                return Overflow(text=text)
            continue
        read = list(islice(leaves(summed, computed.evaluator), _MOST_ELEMENTS))
        text = _too_large(f"a {summed.kind} of {len(read)} elements is", value, each.dtype)
        if text and isinstance(uncast(summed.body), Element):
            sources = [walker.back(Computed(computed.launch, element, at)).source for element, at in read]
            bound = limits(each.dtype).high / (len(read) if summed.kind == "sum" else 1)
            rows = [source.index[0] for source in sources[:1] if isinstance(source, Given) and source.index]
            return _kept(Overflow(text=text), sources, bound, rows, walker)
        if text:
            return Overflow(text=text)
    return None


def _kept(
    found: Overflow, sources: Sequence[Source], bound: float, rows: list[int], walker: Walker
) -> Overflow:
    """Add to `found` the bound of the elements and the faulty rows, if one input has them all."""
    names = {each.name for each in sources if isinstance(each, Given) and each.kind == "input"}
    inputs = {compiled.name: compiled.index for compiled in walker.view.package.inputs}
    given = all(isinstance(each, Given) for each in sources)
    if not given or len(names) != 1 or not names <= inputs.keys() or not 0 < bound < math.inf or not rows:
        return found
    (name,) = names
    step = 10.0 ** (math.floor(math.log10(bound)) - 1)
    update = {"input_index": inputs[name], "bound": math.floor(bound / step) * step, "rows": rows}
    return found.model_copy(update=update)


def _too_large(what: str, total: float, dtype: str) -> str:
    """A sentence that the number is too large for its type. Empty if it is not."""
    largest = limits(dtype).high
    if not largest < abs(total) < math.inf:
        return ""
    return f"{what} {shown(total)}, too large for {dtype}, whose largest value is {shown(largest)}"
