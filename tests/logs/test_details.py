"""Facts on lines that are no errors: versions, generated locations, and what a line adds to an error."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.logs.details import DETAILS, MAX_LOCATIONS, look
from mcp_server.logs.text import read_line
from tests.logs.support import read

ERROR = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x17 and 16x32)"


@pytest.mark.parametrize("pattern", DETAILS, ids=lambda pattern: pattern.pattern[:40])
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_prefilter_announces_every_detail(pattern: re.Pattern[str], data: st.DataObject) -> None:
    """A line in which a pattern is found is one that the prefilter lets this pattern look at."""
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii", exclude_categories=["Cc"])))
    line = read_line(text, 1)
    if pattern.search(line.text):
        assert pattern in look([line])[0].details


def test_lines_of_a_batch_are_looked_at_each_for_itself() -> None:
    """Lines that differ in their numbers share what is looked for; other lines do not."""
    first, second, other = (
        read_line(text, 1) for text in ("a.kernel.cpp:30: error", "a.kernel.cpp:31: error", "nothing")
    )
    found = look([first, other, second])
    assert found[0] == found[2] != found[1] and found[:1] == look([first])


def test_the_first_version_of_each_part_counts() -> None:
    """Versions as reports print them; a later, other one changes nothing."""
    facts = read("PyTorch version: 2.11.0+cu130", "triton==3.6.0", "torch 2.8.0", "CUDA Version: 13.0")
    assert facts.versions == {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}


def test_locations_are_bounded_and_each_is_kept_once() -> None:
    """Lines of generated C++ in the order of the log."""
    lines = [f"/c/ab.wrapper.cpp:{number}" for number in (7, 3, 7, *range(10, 60))]
    places = read(*lines).locations
    assert [place.rpartition(":")[2] for place in places[:3]] == ["7", "3", "10"]
    assert len(places) == MAX_LOCATIONS == len(set(places))


def test_a_detail_belongs_to_the_error_before_it() -> None:
    """A size of the difference is added to an error shortly before it, and never replaces its own fields."""
    root = read("AssertionError: Tensor-likes are not close!", "Mismatched elements: 3 / 8").root
    assert root is not None and (root.fields["mismatched"], root.fields["elements"]) == ("3", "8")
    far = read(ERROR, *["x"] * 60, "Error in op: mm").root
    near = read(ERROR, "Error in op: mm").root
    assert far is not None and near is not None
    assert ("op" in far.fields, near.fields["op"]) == (False, "mm")
