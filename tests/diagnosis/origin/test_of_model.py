"""Whether an expression is at fault or what it got, from terms; and siblings of one bound."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mcp_server.diagnosis.origin.condition import Allowed
from mcp_server.diagnosis.origin.of_model import Sibling, difference, of_bound, why_of_model
from mcp_server.package.terms.program import Check
from mcp_server.package.terms.term import Number, key
from mcp_server.package.terms.translate import chosen, operator
from tests.package.terms.made import element, read

BIN = "static_cast<int64_t>(std::floor(x * 32.0f)) + 1L"
GAP = "c10::div_floor_integer(at::vec::minimum(std::abs(x), 96L), 2L)"
STEPS = "c10::div_floor_integer(x + 1L, 2L) - 1L"


@pytest.mark.parametrize(
    ("text", "dtype", "value", "made_here", "why"),
    [
        (BIN, "float32", 33, "", "one past the end, where a range"),
        (BIN, "float32", 161, "", ""),
        (GAP, "int64", 35, "", "up to 48 by its own limits"),
        ("at::vec::minimum(x, 20L) * 1L", "int64", -7, "", ""),
        (STEPS, "int64", 33, "buf5", "one past the end of buf5"),
        (STEPS, "int64", 40, "buf5", ""),
        (STEPS, "int64", 33, "", ""),
    ],
)
def test_an_expression_is_accused_of_what_is_its_own(
    text: str, dtype: str, value: int, made_here: str, why: str
) -> None:
    """Its own limits, an end that is not closed, a size of the model's; a value far beyond is the input's."""
    found = why_of_model(read(text, dtype), value, Allowed(0, 32), made_here)
    assert why in found and bool(found) == bool(why)


def test_the_wrap_of_a_negative_index_is_no_expression() -> None:
    """An element of an input as it is: the model computes nothing, whoever made the tensor."""
    x = element("int64")
    wrapped = chosen(operator("lt", (x, Number(0, "int64"))), operator("add", (x, Number(33, "int64"))), x)
    assert why_of_model(wrapped, 33, Allowed(0, 32), "buf5") == ""


def test_siblings_are_those_of_one_bound() -> None:
    """A constant that some sibling has is told from those whose table has as many rows."""

    def check(unit: int, rows: int) -> Check:
        term = read(GAP.replace(", 2L)", f", {unit}L)"))
        return Check(1, term, None, Number(rows, "int64"), ())

    def sibling(unit: int, rows: int) -> Sibling:
        made = check(unit, rows)
        return Sibling(cast(Any, None), made.value, key(made.value)[1], made)

    here, others = check(2, 33), [sibling(3, 33), sibling(3, 33), sibling(2, 49), sibling(6, 17)]
    assert difference(here.value, others, ()).text == ""
    found = difference(here.value, of_bound(others, here), (), "with 33 rows")
    assert found.text == "// 2 where the 2 other layers with 33 rows have 3"
    assert (found.old, found.new) == (2, 3)
