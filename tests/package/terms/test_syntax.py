"""Expressions of generated code are read, and other text is refused."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.terms.parts import say
from mcp_server.package.terms.sizes import in_words
from mcp_server.package.terms.syntax import NotRead, read_cpp, read_python
from mcp_server.package.terms.term import Scalar
from mcp_server.package.terms.translate import Translator
from tests.package.terms.made import element, read, value

NUMBERS = st.integers(0, 20).map(str) | st.just("x")
# In parentheses, since the languages differ in precedence. No division: they differ in rounding.
COMMON = st.recursive(
    NUMBERS,
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*&|^"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | st.tuples(st.sampled_from("-~"), inner).map(lambda p: f"({p[0]}{p[1]})")
    ),
    max_leaves=5,
)
TESTS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


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
    """Casts, templates, choices and precedence mean what they mean in C++."""
    assert value(read(text), x) == expected


@pytest.mark.parametrize("text", ["", "x +", "(x", "x y", "foo(", '"text"', "x = 1", "[&] { return x; }"])
def test_other_text_is_refused(text: str) -> None:
    """What is no expression, or Python that no Triton kernel holds, is not guessed at."""
    with pytest.raises(NotRead):
        read_cpp(text)
    with pytest.raises(NotRead):
        read_python(ast.parse("[x for x in y]", mode="eval").body)


@given(st.text(alphabet="x01 +-*/%<>=!&|?:(){}[].,abc::<>", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text brings the reader to another end."""
    try:
        read_cpp(text)
    except NotRead:
        return


@given(COMMON, TESTS, COMMON, st.integers(-20, 20))
def test_what_both_languages_write_alike_means_what_python_computes(
    left: str, test: str, right: str, x: int
) -> None:
    """Whole numbers under every sign that C++ and Python share: both readers agree with the interpreter."""
    for text in (left, right, f"{left} {test} {right}"):
        tree = ast.parse(text, mode="eval")
        python = Translator(lambda _name: element("int64")).term(read_python(tree.body))
        expected = eval(compile(tree, "expression", "eval"), {"x": x})
        assert value(read(text), x) == value(python, x) == expected


def test_a_floor_division_that_is_written_out_is_one() -> None:
    """As torch 2.8 to 2.12 write it, for numbers of both signs; with another divisor it stays as it is."""
    known = {"x": element("int64")}
    text = "((x < 0) != (D < 0) ? (x % D != 0 ? x / D - 1 : x / D) : x / D)".replace("D", "2L")
    term = Translator(known.__getitem__).term(read_cpp(text))
    assert say(term, lambda _element: "x") == "x // 2"
    assert [value(term, x) for x in (-3, -2, 0, 3)] == [-2, -1, 0, 1]
    other = Translator(known.__getitem__).term(read_cpp(text.replace("% 2L", "% 3L")))
    assert "where" in say(other, lambda _element: "x")


def test_a_size_is_worded_as_a_model_has_it() -> None:
    """Code that is not understood stays as it is."""
    text = "c10::div_floor_integer(static_cast<int64_t>(s71), static_cast<int64_t>(2L))"
    assert in_words(text) == "s71 // 2" and in_words(f"-({text})") == "-(s71 // 2)"
    assert in_words("s71 +") == "s71 +"
