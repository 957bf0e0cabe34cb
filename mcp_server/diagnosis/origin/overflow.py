"""Numbers that leave the range of their type: sums of a matrix product or of a kernel, and conversions.

The number is computed again in double precision from what the launch read, so that it is known how large it
is, and how large the elements of an input may be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from mcp_server.diagnosis.origin import Overflow
from mcp_server.diagnosis.origin.condition import finite
from mcp_server.diagnosis.origin.elements import product_at
from mcp_server.diagnosis.origin.expression import shown
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
from mcp_server.package.terms.evaluate import UnknownValue
from mcp_server.package.terms.term import Apply, Element, Fold, Term, parts

# The largest finite number of each type (torch.finfo(...).max).
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
_MOST_ELEMENTS = 1 << 14
_MOST_ROWS = 64


def overflow_of(walker: Walker, source: Source) -> Overflow | None:
    """The sum or number that is too large for its type, if that is why the value `source` is infinite."""
    try:
        if isinstance(source, Produced):
            return _of_product(walker, source)
        return _of_conversion(walker, source) if isinstance(source, Computed) else None
    except (UnknownValue, OverflowError):
        return None


def _of_product(walker: Walker, made: Produced) -> Overflow | None:
    product = product_at(walker, made)
    result = walker.values.tensor(made.launch.index, made.argument, "after")
    if product is None or result is None or result.dtype not in LARGEST:
        return None
    found = product.factors()
    total = math.fsum(value for value, _, _ in found) + product.bias
    text = _too_large(f"{operator_name(made.launch)} adds up {len(found)} products to", total, result.dtype)
    weight = product.heaviest_column()
    if not text or not weight:
        return Overflow(text=text) if text else None
    left = walker.back(Place(made.launch, product.left.argument, product.left.tensor.offset((0, 0)))).source
    bound = (LARGEST[result.dtype] - abs(product.bias)) / weight
    return _kept(Overflow(text=text), [left], bound, _rows_of_infinities(result), walker)


def _of_conversion(walker: Walker, computed: Computed) -> Overflow | None:
    """A conversion of a finite number to a type that ends below it; the number may be a sum of elements."""
    for each in parts(computed.term):
        if not isinstance(each, Apply) or each.op != "cast" or each.dtype not in LARGEST:
            continue
        value = value_of(each.args[0], computed.evaluator)
        if not isinstance(value, float) or not math.isfinite(value):
            continue
        summed = _uncast(each.args[0])
        if not isinstance(summed, Fold) or summed.kind not in ("sum", "mean"):
            text = _too_large("", value, each.dtype)
            if text:
                return Overflow(text=text)
            continue
        read = list(islice(leaves(summed, computed.evaluator), _MOST_ELEMENTS))
        text = _too_large(f"a {summed.kind} of {len(read)} elements is", value, each.dtype)
        if text and isinstance(_uncast(summed.body), Element):
            sources = [walker.back(Computed(computed.launch, element, at)).source for element, at in read]
            bound = LARGEST[each.dtype] / (len(read) if summed.kind == "sum" else 1)
            rows = [source.index[0] for source in sources[:1] if isinstance(source, Given) and source.index]
            return _kept(Overflow(text=text), sources, bound, rows, walker)
        if text:
            return Overflow(text=text)
    return None


def _kept(
    found: Overflow, sources: Sequence[Source], bound: float, rows: list[int], walker: Walker
) -> Overflow:
    """With how large the elements may be, where all of them are of one input."""
    names = {each.name for each in sources if isinstance(each, Given) and each.kind == "input"}
    inputs = {compiled.name: compiled.index for compiled in walker.view.package.inputs}
    given = all(isinstance(each, Given) for each in sources)
    if not given or len(names) != 1 or not names <= inputs.keys() or not 0 < bound < math.inf or not rows:
        return found
    (name,) = names
    step = 10.0 ** (math.floor(math.log10(bound)) - 1)
    update = {"input_index": inputs[name], "bound": math.floor(bound / step) * step, "rows": rows}
    return found.model_copy(update=update)


def _rows_of_infinities(result: Tensor) -> list[int]:
    """The rows of a matrix that hold a value that is not finite."""
    rows = dict.fromkeys(index[0] for index in result.indices() if not finite(result.value(index)))
    return list(rows) if len(result.shape) == 2 and len(rows) <= _MOST_ROWS else []


def _too_large(what: str, total: float, dtype: str) -> str:
    """That a number lies beyond the end of its type; empty where it does not."""
    if not LARGEST[dtype] < abs(total) < math.inf:
        return ""
    return f"{what} {shown(total)}, too large for {dtype}, which ends at {shown(LARGEST[dtype])}".strip()


def _uncast(term: Term) -> Term:
    while isinstance(term, Apply) and term.op == "cast":
        term = term.args[0]
    return term
