"""Expressions whose value goes bad: at which operation, and for which operands."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.origin.condition import (
    Question,
    applied_text,
    condition,
    culprit_at,
    culprit_of,
    good_ranges,
)
from mcp_server.diagnosis.origin.lines import guarded_line, guarded_lines
from mcp_server.diagnosis.origin.of_model import outside_of, why_of_model
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.diagnosis.origin.walk import Computed, Walker
from mcp_server.package.terms.evaluate import Evaluator
from mcp_server.package.terms.interval import Interval
from mcp_server.package.terms.term import Element, Fold, Number, Position, Range, Scalar, Term
from mcp_server.package.terms.translate import cast, chosen, operator
from mcp_server.package.view import view_package
from tests.package.terms.made import element, read, value
from tests.support.origins import build
from tests.zoo.names import few, thorough

X, N = Position("x"), Number(0, "int64")
ROW = Element("row", X, "float32")
FOUR = (Range("x", N, Number(4, "int64")),)


def evaluator(*row: float) -> Evaluator:
    return Evaluator({}, {}, lambda _element, offset: row[offset])


def test_the_point_of_a_reduction_at_which_a_quotient_is_not_a_number() -> None:
    """The sum is NaN for its third term; the operation has the values of that point."""
    total = Fold("sum", FOUR, operator("div", (ROW, ROW)), "float32")
    made = culprit_at(operator("mul", (total, Number(2.0, "float32"))), evaluator(1.0, 2.0, -0.0, 3.0))
    assert made is not None and applied_text(*made) == "0 / 0"
    assert made[1].positions == {"x": 2}
    outer = evaluator(1.0, 2.0, 0.0, 3.0)
    assert culprit_of(total, outer) is None, "a condition cannot vary what differs from point to point"
    assert culprit_at(total, evaluator(1.0, 2.0, 4.0, 3.0)) is None


def found_in(term: Term, *row: float) -> str:
    """The operation outside of its domain in a term of some launch."""
    view = view_package(build("buckets"))
    launch = next(each for each in view.wrapper.launches if each.kernel in view.wrapper.kernels)
    found = outside_of(Walker(view, ProbedValues()), Computed(launch, term, evaluator(*row)))
    return applied_text(found.applied, found.evaluator) if found is not None else ""


@thorough
@pytest.mark.slow
def test_an_infinity_is_followed_to_its_maker() -> None:
    """0 * rsqrt(0) is NaN for the root; a mask and an overflow are nobody's domain."""
    first = Element("row", N, "float32")
    root = operator("rsqrt", (first,))
    assert found_in(operator("mul", (first, root)), 0.0) == "rsqrt(0)"
    mask = Number(-math.inf, "float32")
    assert found_in(operator("sub", (mask, mask)), 0.0) == ""
    grown = operator("exp", (first,))
    assert found_in(operator("div", (grown, grown)), 1000.0) == ""


@pytest.mark.parametrize(
    ("line", "op", "guarded"),
    [
        ("mean = total / count", "div", "mean = total / torch.where(count == 0, 1, count)"),
        (
            "return (a + b) / n.sum(1)",
            "div",
            "return (a + b) / torch.where((divisor := n.sum(1)) == 0, 1, divisor)",
        ),
        ("angle = torch.acos(u * v)", "acos", "angle = torch.acos((u * v).clamp(-1, 1))"),
        ("r = (x * x).sum(-1).sqrt()", "sqrt", "r = (x * x).sum(-1).clamp_min(0).sqrt()"),
        ("y = torch.log(p)", "log", "y = torch.log(p.clamp_min(torch.finfo(p.dtype).tiny))"),
        ("y = a / b / c", "div", ""),
        ("y = total.mean(1)", "div", ""),
        ("y = torch.where(", "div", ""),
    ],
)
def test_a_line_of_the_model_is_guarded_where_it_is_clear_which_operation(
    line: str, op: str, guarded: str
) -> None:
    """One such operation in a whole line; else nothing is said."""
    assert guarded_line(line, op) == guarded


def test_every_line_of_a_kernel_is_guarded_or_none() -> None:
    """One guard in a kernel stands for all its divisions: a fix of one line alone was not what ran."""
    mean, spread = "mean = s / n", "var = (x ** 2).sum(-1) / n"
    both = guarded_lines([mean, "y = relu(x)", spread, mean], "div")
    assert both is not None and both[0].splitlines() == [mean, spread]
    assert both[1].count("torch.where(n == 0, 1, n)") == 2
    assert guarded_lines([mean, "var = (a / b) / n"], "div") is None
    assert guarded_lines(["y = relu(x)"], "div") is None
    # One that is clamped where it stands needs no other guard, unless the clamp lets zero through.
    clamped = "y = x / n.clamp(min=1)[:, None]"
    assert guarded_lines([mean, clamped], "div") == (mean, "mean = s / torch.where(n == 0, 1, n)")
    assert guarded_lines([clamped], "div") is None
    assert guarded_lines([mean, "y = x / n.clamp(min=0)"], "div") != guarded_lines([mean], "div")
    assert guarded_lines(["y = x.clamp_min(1e-6).log()", "z = w.log()"], "log") == guarded_lines(
        ["z = w.log()"], "log"
    )


FINITE = Interval(-3.4028234663852886e38, 3.4028234663852886e38)


def question(term: Term, dtype: str, allowed: Interval) -> Question:
    return Question(term, "x", dtype, {}, allowed, lambda x: value(term, x))


FAR = "std::log(c10::convert<float>(x) / 16.0f) / 2.0794415f * 16.0f"
CLAMPED = (
    "static_cast<int64_t>(std::floor(std::sqrt((c10::convert<float>(min_propagate_nan(max_propagate_nan("
    "x, 1), 500)) - 1.0f) / 499.0f) * 64.0f))"
)
CONDITIONS: dict[str, tuple[str, Scalar, Interval, str, str]] = {
    "clamped": (CLAMPED, 731, Interval(0, 63), "int64", "is 64 for x >= 500 and 63 for 499"),
    "parted by a choice": (
        f"x < 16 ? x : 16 + static_cast<int64_t>({FAR})",
        *(200, Interval(0, 31), "int64", "is 32 or more for x >= 128 and 31 for 127"),
    ),
    "log": ("std::log(x)", -1.0, FINITE, "float32", "is not finite for x <= 0"),
    "exp": ("std::exp(x)", 100.0, FINITE, "float32", "is inf for x >= 88.72284"),
    "wraps far outside": ("x * 4 + 4", 5, Interval(0, 19), "int64", "is 20 or more for x >= 4 and 16 for 3"),
    "not monotone": (
        "static_cast<int64_t>(std::sin(c10::convert<float>(x)) * 10.0f)",
        *(2, Interval(0, 5), "int64", ""),
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_condition_of_a_bad_value(name: str) -> None:
    """Where the expression leaves its range, with the last good value; nothing is guessed."""
    text, bad, allowed, dtype, told = CONDITIONS[name]
    found = condition([question(read(text, dtype), dtype, allowed)], "x", bad)
    assert (found.text if found else "") == (f"the expression {told}" if told else "")
    if name == "log":
        assert found is not None and found.good == torch.finfo(torch.float32).tiny, "no denormal number"


def test_every_point_of_a_loop_counts() -> None:
    """A window of four rows: the last row decides, also where the first is the faulty one."""
    points = [question(read(f"x * 4 + {1 + row}"), "int64", Interval(0, 19)) for row in range(4)]
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


@settings(max_examples=few(20))
@given(whole_terms(), st.integers(-5, 5), st.integers(6, 60), st.integers(-300, 300))
def test_ranges_and_conditions_are_true(term: Term, low: int, high: int, bad: int) -> None:
    """Of the values around zero, those in the ranges are good and no other; a condition has bad ones."""
    ranges = good_ranges(question(term, "int64", Interval(low, high)))
    is_bad = not low <= value(term, bad) <= high
    found = condition([question(term, "int64", Interval(low, high))], "x", bad) if is_bad else None
    for x in range(-300, 300, 3):
        good = low <= value(term, x) <= high
        assert ranges is None or good == any(start <= x <= end for start, end in ranges), x
        if found is not None and found.good is not None:
            inside = (found.low is None or x >= found.low) and (found.high is None or x <= found.high)
            assert not inside or not good, x
    assert found is None or (found.good is not None and low <= value(term, int(found.good)) <= high)


BIN = "static_cast<int64_t>(std::floor(x * 32.0f)) + 1L"
GAP = "c10::div_floor_integer(at::vec::minimum(std::abs(x), 96L), 2L)"
STEPS = "c10::div_floor_integer(x + 1L, 2L) - 1L"


@pytest.mark.parametrize(
    ("text", "dtype", "value", "made_here", "why"),
    [
        (BIN, "float32", 33, "", "one past the end, where a range"),
        (BIN, "float32", 161, "", ""),
        (GAP, "int64", 35, "", "up to 48 by its own limits"),
        (STEPS, "int64", 33, "buf5", "one past the end of buf5"),
        (STEPS, "int64", 40, "buf5", ""),
        (STEPS, "int64", 33, "", ""),
    ],
)
def test_an_expression_is_accused_of_what_is_its_own(
    text: str, dtype: str, value: int, made_here: str, why: str
) -> None:
    """Its own limits, an end that is not closed, a size of the model's; a value far beyond is the input's."""
    found = why_of_model(read(text, dtype), value, Interval(0, 32), made_here)
    assert why in found and bool(found) == bool(why)
