"""How a change is written, and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.diagnosis.interventions.base import Change, Where
from mcp_server.diagnosis.interventions.input import read_change, spell
from mcp_server.errors import ProblemError

NUMBERS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["nan", "inf", "-inf"]),
)
PLACES = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple)
WHERE = st.builds(
    Where,
    below=st.none() | NUMBERS,
    above=st.none() | NUMBERS,
    equals=st.none() | NUMBERS,
    non_finite=st.booleans(),
    nan=st.booleans(),
).filter(lambda where: where != Where())
ELEMENTS = st.builds(
    Change,
    change=st.just("elements"),
    input=st.just(1),
    value=NUMBERS,
    flat=st.none() | PLACES,
    index=st.none() | PLACES,
    rows=st.none() | PLACES,
    dim=st.none() | st.integers(0, 3),
    where=st.none() | WHERE,
)
OTHERS = st.sampled_from(
    [
        Change("cast", 1, dtype="int64"),
        Change("move", 1, device="cuda:0"),
        Change("contiguous", 1),
        Change("align", 1),
        Change("restride", 1, stride=(8, 1)),
        Change("resize", 1, dim=0, size=8),
        Change("pad", 1, dim=1, size=8, value=0),
        Change("drop_rows", 1, dim=0, rows=(3, 4)),
        Change("elements", 1, low=0, high=9, where=Where(below=0, above=9), stride=2, offset=1),
        Change("elements", 1, low=-1.5),
        Change("permute", order=(1, 0, 2)),
    ]
)


@given(ELEMENTS | OTHERS)
def test_what_is_spelled_is_read_again(change: Change) -> None:
    """Reading the text of any change gives that change."""
    assert read_change(spell(change, "args[1]"), lambda name: {"args[1]": 1}[name]) == change


@pytest.mark.parametrize(
    "text",
    [
        "clamp 0 9",
        "args[1]: clamp - -",
        "args[1]: clamp 9 0",
        "args[1]: squash 3",
        "args[1]: set",
        "args[1]: set 0 where",
        "args[1]: set 0 where < 1 and > 2",
        "args[1]: cast",
        "args[1]: contiguous now",
        "args[1]: set one",
        "args[1]: set 0 every 2 of 3",
        "args[1]: set 'open",
        "order a,b",
        "",
    ],
)
def test_what_is_no_change_is_refused_with_the_forms_that_are(text: str) -> None:
    """The error repeats the text and lists the forms."""
    with pytest.raises(ProblemError) as refused:
        read_change(text, lambda _name: 1)
    assert refused.value.value == text and "clamp LOW HIGH" in refused.value.allowed
