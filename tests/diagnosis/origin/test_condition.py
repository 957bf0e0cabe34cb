"""When an expression goes wrong: found from the expression, and true of every value that can be tried."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.origin.condition import Allowed, Question, condition, good_ranges
from mcp_server.package.terms.term import Number, Scalar, Term
from mcp_server.package.terms.translate import cast, chosen, operator
from tests.package.terms.made import element, read, value

FINITE = Allowed(-3.4028234663852886e38, 3.4028234663852886e38)


def question(term: Term, dtype: str, allowed: Allowed) -> Question:
    return Question(term, "x", dtype, {}, allowed, lambda x: value(term, x))


def described(text: str, bad: Scalar, allowed: Allowed, dtype: str = "int64") -> str:
    """The condition of a C++ expression in `x`, as it is reported."""
    found = condition([question(read(text, dtype), dtype, allowed)], "x", bad)
    return found.text if found else ""


def test_the_bucket_of_a_clamped_distance() -> None:
    """All distances from 500 on fall into a bucket that the table lacks."""
    text = (
        "static_cast<int64_t>(std::floor(std::sqrt((c10::convert<float>(min_propagate_nan(max_propagate_nan("
        "x, 1), 500)) - 1.0f) / 499.0f) * 64.0f))"
    )
    assert described(text, 731, Allowed(0, 63)) == "the expression is 64 for x >= 500 and 63 for 499"


def test_a_choice_parts_the_domain() -> None:
    """Buckets that are exact below 16 and logarithmic above: each part is looked at by itself."""
    far = "std::log(c10::convert<float>(x) / 16.0f) / 2.0794415f * 16.0f"
    text = f"x < 16 ? x : 16 + static_cast<int64_t>({far})"
    assert described(text, 200, Allowed(0, 31)) == "the expression is 32 or more for x >= 128 and 31 for 127"


def test_where_a_function_ends() -> None:
    """A logarithm is finite above zero, an exponential below the largest float32."""
    assert described("std::log(x)", -1.0, FINITE, "float32") == "the expression is not finite for x <= 0"
    assert described("std::exp(x)", 100.0, FINITE, "float32") == "the expression is inf for x >= 88.72284"


def test_no_denormal_number_is_called_good() -> None:
    """The logarithm is finite from the smallest denormal on, which a processor may take for zero."""
    found = condition([question(read("std::log(x)"), "float32", FINITE)], "x", -1.0)
    assert found is not None
    assert found.good == torch.finfo(torch.float32).tiny


def test_an_overflow_of_the_type_ends_nothing_silently() -> None:
    """A product is good in the middle only; the wrap of int64 far outside does not come back as good."""
    assert described("x * 4 + 4", 5, Allowed(0, 19)) == "the expression is 20 or more for x >= 4 and 16 for 3"


def test_a_term_that_is_not_monotone_is_not_guessed_at() -> None:
    """A sine has no condition."""
    assert described("static_cast<int64_t>(std::sin(c10::convert<float>(x)) * 10.0f)", 2, Allowed(0, 5)) == ""


def test_every_point_of_a_loop_counts() -> None:
    """A window of four rows: the last row decides, also where the first is the faulty one."""
    points = [question(read(f"x * 4 + {1 + row}"), "int64", Allowed(0, 19)) for row in range(4)]
    found = condition(points, "x", 5)
    assert found is not None
    assert (found.low, found.good) == (4, 3)
    assert found.text == "the expression is 20 or more for x >= 4 and 16 for 3"


@st.composite
def whole_terms(draw: st.DrawFn, depth: int = 3) -> Term:
    """A term over a whole number as index computations are."""
    if depth == 0:
        return element("int64")
    inner = draw(whole_terms(depth - 1))
    number = Number(draw(st.integers(1, 9)), "int64")
    kind = draw(st.sampled_from(("add", "sub", "mul", "floordiv", "clamp", "root", "where")))
    if kind == "clamp":
        return operator("minimum", (operator("maximum", (inner, number)), Number(90, "int64")))
    if kind == "root":
        root = operator("sqrt", (cast(operator("abs", (inner,)), "float32"),))
        return cast(root, "int64")
    if kind == "where":
        return chosen(operator("lt", (inner, number)), inner, operator("add", (inner, number)))
    return operator(kind, (inner, number))


@settings(max_examples=60)
@given(whole_terms(), st.integers(-5, 5), st.integers(6, 60))
def test_ranges_are_those_of_trying_every_value(term: Term, low: int, high: int) -> None:
    """Of a thousand values around zero, those in the ranges are good and no other."""
    found = good_ranges(question(term, "int64", Allowed(low, high)))
    if found is None:
        return
    for x in range(-500, 500):
        good = low <= value(term, x) <= high
        assert good == any(start <= x <= end for start, end in found), x


@settings(max_examples=60)
@given(whole_terms(), st.integers(6, 60), st.integers(-300, 300))
def test_what_is_told_is_true(term: Term, high: int, bad: int) -> None:
    """The condition of a bad value holds for every value that can be tried."""
    if 0 <= value(term, bad) <= high:
        return
    found = condition([question(term, "int64", Allowed(0, high))], "x", bad)
    if found is None:
        return
    assert found.good is not None and 0 <= value(term, found.good) <= high
    for x in range(-400, 400):
        inside = (found.low is None or x >= found.low) and (found.high is None or x <= found.high)
        assert not inside or not 0 <= value(term, x) <= high, x
