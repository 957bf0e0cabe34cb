"""Shape expressions of generated code."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.statements import evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2L*s44", 14),
        ("(-8L) + s44*s44", 41),
        ("(1.0/2.0)*s44", Fraction(7, 2)),
        ("c10::div_floor_integer(static_cast<int64_t>(s44), static_cast<int64_t>(2L))", 3),
        ("std::max<int64_t>(1L, s44)", 7),
        ("s44 % 4L", 3),
        ("7", 7),
    ],
)
def test_forms_of_the_generator(text: str, value: Fraction) -> None:
    """Sums, products, rationals, floor division, min and max as cexpr prints them."""
    assert evaluate(text, {"s44": 7}) == value


@pytest.mark.parametrize("text", ["s1", "s44 / 0", "__import__('os')", "s44.real", "", "(" * 500, "9" * 3000])
def test_anything_else_is_unknown(text: str) -> None:
    """Unknown names, other calls, attributes and nonsense give None, never an exception."""
    assert evaluate(text, {"s44": 7}) is None


@given(st.text(alphabet="s4(*+-/%,)L0129. ", max_size=60))
def test_no_text_crashes(text: str) -> None:
    """Any text is a number or None."""
    assert evaluate(text, {"s4": 3}) is None or isinstance(evaluate(text, {"s4": 3}), Fraction)
