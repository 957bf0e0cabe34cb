"""Where operations are defined, and intervals: they hold every value, and a direction is the truth."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.terms.evaluate import DOMAINS, FUNCTIONS, outside
from mcp_server.package.terms.interval import Bounds, Interval, from_ordinal, limits, ordinal
from mcp_server.package.terms.term import Element, Number, Term
from mcp_server.package.terms.translate import operator
from tests.package.terms.made import read, terms, value

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(terms(), FLOATS, FLOATS, st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_every_value_lies_in_the_interval(term: Term, a: float, b: float, shares: list[float]) -> None:
    """Whatever value an element has in its interval, the term has one in the interval that was computed."""
    low, high = sorted((a, b))
    bounds = Bounds({"x": Interval(low, high)})
    span = bounds.of(term)
    for share in shares:
        x = min(max(from_ordinal(ordinal(low + share * (high - low), "float32"), "float32"), low), high)
        assert span.holds(value(term, x)), (x, value(term, x), span)


@given(terms(), FLOATS, FLOATS, FLOATS, FLOATS)
def test_a_direction_is_kept(term: Term, a: float, b: float, c: float, d: float) -> None:
    """A term that is said to rise (fall) never falls (rises) within the interval."""
    low, first, second, high = sorted((a, b, c, d))
    way = Bounds({"x": Interval(low, high)}).direction(term, "x")
    if way is None:
        return
    left, right = float(value(term, first)), float(value(term, second))
    if math.isnan(left) or math.isnan(right):
        assert way == 0 and math.isnan(left) and math.isnan(right)
    else:
        assert left == right or (way != 0 and (left < right) == (way > 0))


ENDS = st.tuples(st.integers(-3, 3), st.integers(-3, 3)).map(lambda ends: tuple(sorted(ends)))


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge", "eq", "ne"])
@given(first=ENDS, second=ENDS)
def test_a_comparison_is_decided_exactly_where_all_values_agree(
    op: str, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Two intervals of whole numbers: the result is one value if every pair gives it, else both."""
    a, b = (Element(name, Number(0, "int64"), "int64") for name in "ab")
    span = Bounds({"a": Interval(*first), "b": Interval(*second)}).of(operator(op, (a, b)))
    pairs = product(range(first[0], first[1] + 1), range(second[0], second[1] + 1))
    results = {int(FUNCTIONS[op](*pair)) for pair in pairs}
    assert (span.low, span.high) == (min(results), max(results))


INT64 = limits("int64")
ROOT = (
    "static_cast<int64_t>(std::floor(std::sqrt((c10::convert<float>(min_propagate_nan(max_propagate_nan("
    "x, 1), 500)) - 1.0f) / 499.0f) * 64.0f))"
)
BUCKET = "static_cast<int64_t>(std::floor(x * 32.0f)) + 1L"


@pytest.mark.parametrize(
    ("text", "dtype", "within", "direction", "span"),
    [
        pytest.param(ROOT, "int64", INT64, 1, (0, 64), id="a clamp bounds the root"),
        # Floats beyond a whole type are all its least value: only the span across the limit has no direction.
        pytest.param(BUCKET, "float32", Interval(1e18, 3e38), 0, None, id="beyond"),
        pytest.param(BUCKET, "float32", Interval(1.0, 3e38), None, None, id="across"),
        pytest.param("x * 4", "int64", INT64, None, None, id="wraps"),
        pytest.param("x * 4", "int64", Interval(-100, 100), 1, (-400, 400), id="fits"),
    ],
)
def test_where_expressions_rise(
    text: str, dtype: str, within: Interval, direction: int | None, span: tuple[int, int] | None
) -> None:
    """Of buckets and products: nothing is claimed where a type overflows."""
    bounds = Bounds({"x": within})
    assert bounds.direction(read(text, dtype), "x") == direction
    found = bounds.of(read(text, dtype))
    assert span is None or (found.low, found.high) == span


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_ranks_of_floats_come_back(x: float) -> None:
    """Every float32 has a rank, and the next rank is the next float."""
    rank = ordinal(x, "float32")
    assert from_ordinal(rank, "float32") == x
    assert x == limits("float32").high or from_ordinal(rank + 1, "float32") > x


VALUES = (-2.0, -1.0000001, -1.0, -0.5, 0.0, 1e-30, 0.5, 1.0, 1.0000001, 2.0)
TWO = ("div", "floordiv", "remainder", "mod", "pow")
NAMES = {"floordiv": "floor_divide", "remainder": "fmod", "mod": "remainder"}


@pytest.mark.parametrize("op", DOMAINS)
def test_a_result_is_finite_exactly_where_the_operand_lies_in_the_domain(op: str) -> None:
    """Ends and values next to them, for each operation of the table; a NaN was made elsewhere."""
    function = getattr(torch, NAMES.get(op, op))
    domain = DOMAINS[op]
    for tried in VALUES:
        values = [tried] if op not in TWO else [0.25, 0.25]
        values[domain.operand] = tried
        result = float(function(*(torch.tensor(each, dtype=torch.float64) for each in values)))
        assert math.isfinite(result) == (outside(op, values) is None), (op, values, result)
    assert outside("sqrt", [math.nan]) is None and outside("exp", [1000.0]) is None
    assert outside("pow", [-2.0, 3.0]) is None and outside("pow", [-2.0, 0.5]) is DOMAINS["pow"]
