"""The fewest launches of a half-precision model that have to run in a wider precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server.tools.compare_with_eager import compare_with_eager
from mcp_server.tools.divergence import PrecisionSearch
from tests.served import served
from tests.worker.support import context_in
from tests.wrong_launches.support import call_of, kernels_with
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

Wrong = Callable[[str], Path]


def searched(directory: Path, package: Path) -> PrecisionSearch:
    program = package.with_name(f"{package.stem}.exported.pt2")
    context, call = context_in(directory), call_of(package)
    found = served(compare_with_eager, context, call, program, precision=True)
    assert found.precision is not None and found.summary.endswith(found.precision.summary)
    return found.precision


@thorough
def test_an_overflow_and_what_takes_it_are_all_that_is_needed(wrong: Wrong, tmp_path: Path) -> None:
    """The scores are beyond float16 and the softmax takes them: both, and none of the other five launches."""
    package = wrong("scores")
    found = searched(tmp_path, package)
    product, softmax = kernels_with(package, "cpu_mm_out")[0], kernels_with(package, "softmax")[0]
    assert [each.launch for each in found.launches] == [product, softmax], found.summary
    assert found.possible and found.complete and "each of them is needed" in found.summary
    assert any("@" in place.code for place in found.launches[0].locations)


@thorough
def test_a_model_that_is_right_in_half_precision_needs_nothing(wrong: Wrong, tmp_path: Path) -> None:
    """One call shows it."""
    found = searched(tmp_path, wrong("narrow"))
    assert found.possible and found.launches == [] and found.calls == 1
    assert "No launch has to" in found.summary


@thorough
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("clean", "no launch stores half precision"),
        ("half", "computes something else"),
    ],
)
def test_where_precision_is_not_the_question_nothing_is_searched(
    wrong: Wrong, tmp_path: Path, name: str, why: str
) -> None:
    """A float32 model, and one with wrong kernels, which come first."""
    found = searched(tmp_path, wrong(name))
    assert found.possible is None and why in found.summary and found.calls == 0
