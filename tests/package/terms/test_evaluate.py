"""Reading expressions of generated code, and evaluating them as torch and numpy do."""

import ast
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.terms.evaluate import DOMAINS, UnknownValue, applied, fold, outside, rounded
from mcp_server.package.terms.interval import Bounds, Interval, from_ordinal, limits, ordinal
from mcp_server.package.terms.parts import say
from mcp_server.package.terms.sizes import in_words
from mcp_server.package.terms.syntax import NotRead, read_cpp, read_python
from mcp_server.package.terms.term import Scalar, Term
from mcp_server.package.terms.translate import Translator
from tests.package.terms.made import element, read, terms, value


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        ("floor_divide_integral(x, decltype(x)::set(decltype(x)(1), x, static_cast<int64_t>(8L)))", 7, 1),
        ("x + 2*x - 8L*x", 3, -15),
        ("x < 0 ? x + 20L : x", -3, 17),
        ("decltype(x)(x * x)", 5, 25),
        ("static_cast<int64_t>(x) % 4", 7, 3),
        ("c10::div_floor_integer(static_cast<int64_t>(x), static_cast<int64_t>(4L))", -7, -2),
        ("max_propagate_nan(x, static_cast<int64_t>(1))", 0, 1),
        ("at::vec::VectorizedN<int64_t,2>::blendv(x, at::vec::VectorizedN<int64_t,2>(7), x > 2)", 3, 7),
        ("!(x == 3) || (x >= 3 && x != 4)", 3, True),
        ("x ? 1 : x + 1 ? 2 : 3", 0, 2),
        ("(x << 2) | 1", 3, 13),
        ("-x * 2", 4, -8),
        ("std::numeric_limits<int64_t>::max() - x", 0, 2**63 - 1),
    ],
)
def test_cpp(text: str, x: int, expected: Scalar) -> None:
    """Casts, templates, conditionals and precedence mean the same as in C++."""
    assert value(read(text), x) == expected


@pytest.mark.parametrize("text", ["", "x +", "(x", "x y", "foo(", '"text"', "x = 1", "[&] { return x; }"])
def test_other_text_is_refused(text: str) -> None:
    """Text that is not an expression, and Python that Triton kernels do not use, is rejected."""
    with pytest.raises(NotRead):
        read_cpp(text)
    with pytest.raises(NotRead):
        read_python(ast.parse("[x for x in y]", mode="eval").body)


def test_a_floor_division_that_is_written_out_is_one() -> None:
    """The form of torch 2.8 to 2.12 is recognized, for both signs. With another divisor, it stays."""
    known = {"x": element("int64")}
    text = "((x < 0) != (D < 0) ? (x % D != 0 ? x / D - 1 : x / D) : x / D)".replace("D", "2L")
    term = Translator(known.__getitem__).term(read_cpp(text))
    assert say(term, lambda _element: "x") == "x // 2"
    assert [value(term, x) for x in (-3, -2, 0, 3)] == [-2, -1, 0, 1]
    other = Translator(known.__getitem__).term(read_cpp(text.replace("% 2L", "% 3L")))
    assert "where" in say(other, lambda _element: "x")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x >= (0 < 1 ? 0 : -20)", "x >= 0"),
        ("!(!(x >= 1) || !(x <= 4))", "x >= 1 and x <= 4"),
        ("!(x < 3 || x > 5)", "not (x < 3 or x > 5)"),
        ("(x > 2) == 0", "not x > 2"),
        ("(x > 2) != 0", "x > 2"),
    ],
)
def test_a_condition_is_worded_without_what_decides_nothing(text: str, words: str) -> None:
    """Choices between constants, double negations and comparisons of a truth value with 0 are dropped."""
    assert say(read(text), lambda _element: "x") == words


def test_a_size_is_worded_as_a_model_has_it() -> None:
    """Code that is not understood stays the same."""
    text = "c10::div_floor_integer(static_cast<int64_t>(s71), static_cast<int64_t>(2L))"
    assert in_words(text) == "s71 // 2" and in_words(f"-({text})") == "-(s71 // 2)"
    assert in_words("s71 +") == "s71 +"


UNARY = [
    *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "sinh"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid"),
    *("floor", "ceil", "trunc", "round", "sign", "abs", "neg"),
]


@pytest.mark.parametrize("op", UNARY)
def test_functions_are_those_of_torch(op: str) -> None:
    """Each function equals torch's in float32, even where it is undefined or infinite."""
    function = getattr(torch, op)
    values = [0.0, 1.0, 0.5, 2.0, 37.5, 88.0, 100.0, 1e-3, 3e38, math.inf]
    values += [-each for each in values]
    for x in [*values, *torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist()]:
        expected = function(torch.tensor(x, dtype=torch.float32)).item()
        found = float(applied(op, [float(np.float32(x))], "float32"))
        if math.isnan(expected):
            assert math.isnan(found) or (op in ("sin", "cos") and math.isinf(x)), x
        else:
            assert math.isclose(found, expected, rel_tol=2e-6, abs_tol=1e-7), (x, found, expected)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-100, 100).filter(bool))
def test_whole_numbers_divide_as_in_cpp(a: int, b: int) -> None:
    """Sums wrap like int64, division truncates, and floor division rounds down."""
    tensor = torch.tensor(a)
    assert applied("add", [a, 2**62], "int64") == (tensor + 2**62).item()
    if a > -(2**63):
        assert applied("div", [a, b], "int64") == torch.div(tensor, b, rounding_mode="trunc").item()
        assert applied("floordiv", [a, b], "int64") == torch.div(tensor, b, rounding_mode="floor").item()
        assert applied("mod", [a, b], "int64") == torch.remainder(tensor, b).item()


@given(st.floats(width=32), st.sampled_from(["float16", "bfloat16", "float32", "int64"]))
def test_numbers_are_rounded_as_torch_rounds(x: float, dtype: str) -> None:
    """Short floats are rounded to nearest, ties to even. What int64 cannot hold is its minimum (x86)."""
    expected = torch.tensor(x, dtype=torch.float32).to(getattr(torch, dtype)).item()
    if dtype == "int64" and not (math.isfinite(x) and abs(x) < 2**63):
        expected = -(2**63)
    found = rounded(x, dtype)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


def test_what_is_not_known_is_said() -> None:
    """Unknown functions give no value. A NaN wins a maximum in any position."""
    values: list[Scalar] = [1.0, math.nan, 3.0]
    assert math.isnan(float(fold("max", values, "float32")))
    assert math.isnan(float(applied("maximum", [math.nan, 2.0], "float32")))
    with pytest.raises(UnknownValue):
        value(read("calc_erfinv(x)", "float32"), 0.5)


# Domains of operations, and intervals.

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(terms(), FLOATS, FLOATS, st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_every_value_lies_in_the_interval(term: Term, a: float, b: float, shares: list[float]) -> None:
    """For any element within its interval, the term is within the computed interval."""
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
        # Floats beyond an integer type all become its minimum: only a span across the limit has no direction.
        pytest.param(BUCKET, "float32", Interval(1e18, 3e38), 0, None, id="beyond"),
        pytest.param(BUCKET, "float32", Interval(1.0, 3e38), None, None, id="across"),
        pytest.param("x * 4", "int64", INT64, None, None, id="wraps"),
        pytest.param("x * 4", "int64", Interval(-100, 100), 1, (-400, 400), id="fits"),
    ],
)
def test_where_expressions_rise(
    text: str, dtype: str, within: Interval, direction: int | None, span: tuple[int, int] | None
) -> None:
    """Buckets and products rise; if a type overflows, nothing is claimed."""
    bounds = Bounds({"x": within})
    assert bounds.direction(read(text, dtype), "x") == direction
    found = bounds.of(read(text, dtype))
    assert span is None or (found.low, found.high) == span


VALUES = (-2.0, -1.0000001, -1.0, -0.5, 0.0, 1e-30, 0.5, 1.0, 1.0000001, 2.0)
TWO = ("div", "floordiv", "remainder", "mod", "pow")
TORCH_NAMES = {"floordiv": "floor_divide", "remainder": "fmod", "mod": "remainder"}


@pytest.mark.parametrize("op", DOMAINS)
def test_a_result_is_finite_exactly_where_the_operand_lies_in_the_domain(op: str) -> None:
    """Tested at the ends of each operation's domain and next to them. A NaN operand is no defect."""
    function = getattr(torch, TORCH_NAMES.get(op, op))
    domain = DOMAINS[op]
    for tried in VALUES:
        values = [tried] if op not in TWO else [0.25, 0.25]
        values[domain.operand] = tried
        result = float(function(*(torch.tensor(each, dtype=torch.float64) for each in values)))
        assert math.isfinite(result) == (outside(op, values) is None), (op, values, result)
    assert outside("sqrt", [math.nan]) is None and outside("exp", [1000.0]) is None
    assert outside("pow", [-2.0, 3.0]) is None and outside("pow", [-2.0, 0.5]) is DOMAINS["pow"]
    assert outside("pow", [0.0, 0.0]) is None and outside("pow", [0.0, -0.5]) is DOMAINS["pow"]
