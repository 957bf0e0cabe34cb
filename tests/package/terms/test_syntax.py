"""Expressions of generated code are read, and other text is refused."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.terms.syntax import NotRead, read_cpp, read_python
from mcp_server.package.terms.term import Scalar
from tests.package.terms.made import read, value


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
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
    """What is no expression is not guessed at."""
    with pytest.raises(NotRead):
        read_cpp(text)


@given(st.text(alphabet="x01 +-*/%<>=!&|?:(){}[].,abc::<>", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text brings the reader to another end."""
    try:
        read_cpp(text)
    except NotRead:
        return


@pytest.mark.parametrize("text", ["lambda: 0", "[x for x in y]", "a if b else (yield)"])
def test_other_python_is_refused(text: str) -> None:
    """Python that no Triton kernel holds is not guessed at."""
    with pytest.raises(NotRead):
        read_python(ast.parse(text, mode="eval").body)
