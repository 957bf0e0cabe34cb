"""An index assertion, traced: kernel, launch, bound, origin of the index, model line, guard."""

from __future__ import annotations

import pytest

from mcp_server.package.assertion import Candidate, explain, propose, read_assertion
from mcp_server.package.view import PackageView, view_package
from tests.conftest import ZooPackage
from tests.package.summaries import view_of
from tests.zoo.names import thorough

DEVICE = (
    "/cache/ab/cabc.py:33: unknown: block: [0,0,0], thread: [1,0,0] Assertion "
    "`index out of bounds: 0 <= tmp4 < ks0` failed."
)
HOST = (
    "index out of bounds: 0 <= tmp2 < 32L\n"
    "Exception raised from cpp_fused_embedding_0 at /cache/x/cxyz.kernel.cpp:23 (most recent call first):"
)


def test_the_device_form() -> None:
    """Generated file, line and condition are read from a device assertion."""
    found = read_assertion(DEVICE)
    assert found is not None
    assert (found.condition, found.file, found.line, found.kernel) == (
        "0 <= tmp4 < ks0",
        "/cache/ab/cabc.py",
        33,
        None,
    )


def test_the_host_form() -> None:
    """The C++ form names the kernel; the suffix of its literals does not count."""
    found = read_assertion(HOST)
    assert found is not None
    assert (found.condition, found.line, found.kernel) == ("0 <= tmp2 < 32", 23, "cpp_fused_embedding_0")


@pytest.mark.parametrize(
    "text", ["", "an illegal memory access was encountered", "Expected u0 <= 5 but received 9"]
)
def test_other_errors_are_none(text: str) -> None:
    """An error without an index assertion gives None."""
    assert read_assertion(text) is None


def cuda() -> tuple[Candidate, ...]:
    assertion = read_assertion(DEVICE)
    assert assertion is not None
    return view_of("jagged").tracer.trace(assertion)


def test_a_cuda_assertion_leads_to_both_inputs() -> None:
    """The bound is the size of one input, the index the other input as given, and negatives wrap."""
    (found,) = cuda()
    assert found.bound is not None
    (size,) = found.bound.sizes
    assert (size.input_index, size.dim, size.lower, size.upper) == (0, 0, 2, 512)
    assert [(s.direct, s.label) for s in found.sources] == [(True, "input 1 (args[1])")]
    assert found.wraps
    assert found.lowest == "-(s59)"
    assert found.location.startswith("wrapper.cpp:")


def test_a_line_that_fits_nothing_does_not_hide_the_candidates() -> None:
    """A line number of another build narrows nothing: the candidates stay."""
    assertion = read_assertion(DEVICE.replace(":33:", ":99:"))
    assert assertion is not None
    assert len(view_of("jagged").tracer.trace(assertion)) == 1


def test_an_assertion_of_another_package() -> None:
    """A check that no kernel holds has no candidates."""
    assertion = read_assertion("index out of bounds: 0 <= tmp77 < ks9")
    assert assertion is not None
    assert view_of("jagged").tracer.trace(assertion) == ()


def traced(zoo: ZooPackage, name: str, text: str) -> tuple[PackageView, tuple[Candidate, ...]]:
    view = view_package(zoo(name))
    assertion = read_assertion(text)
    assert assertion is not None
    return view, view.tracer.trace(assertion)


@pytest.mark.slow
def test_an_embedding_index(zoo: ZooPackage) -> None:
    """A number as bound is that of the table's rows; the guard names the input and the range."""
    _, (found,) = traced(zoo, "ranker", HOST)
    assert found.indexed == ("constant table.weight of shape [32, 16]",)
    assert not any("shorter" in fact for fact in explain(found))
    assert propose(found).after == "assert 0 <= int(args[0].min()) and int(args[0].max()) <= 31"
    assert [m.code for m in found.provenance.locations] == ["rows = self.table(ids)"]


@pytest.mark.slow
def test_a_shorter_tensor(zoo: ZooPackage) -> None:
    """With a run-time bound, a shorter tensor fails the same index, and the facts say so."""
    _, (found,) = traced(zoo, "jagged", "index out of bounds: 0 <= tmp7 < ks1")
    assert any("shorter input 0" in fact for fact in explain(found))
    assert any("compiled for 2 to 512" in fact for fact in explain(found))


@thorough
@pytest.mark.slow
def test_a_computed_index(zoo: ZooPackage) -> None:
    """An index that another launch computed names that launch, the input behind it, and the model's line."""
    _, (found,) = traced(zoo, "select", "index out of bounds: 0 <= tmp5 < 9")
    (source,) = found.sources
    assert not source.direct
    assert source.producers == (1,)
    assert source.inputs == ("input 0 (args[0])",)
    assert "clamp(0, 8)" in (propose(found).after or "")


@pytest.mark.slow
def test_equal_checks_are_all_shown(zoo: ZooPackage) -> None:
    """A kernel that holds the same check twice gives two candidates; a line picks one of them."""
    view, both = traced(zoo, "scatter", "0 <= tmp10 < 12L")
    assert len(both) == 2
    assertion = read_assertion("0 <= tmp10 < 12L", line=int(both[1].location.partition(":")[2]))
    assert assertion is not None
    assert [c.location for c in view.tracer.trace(assertion)] == [both[1].location]
