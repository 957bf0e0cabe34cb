"""What our own tools said on an H200, kept as they printed it (`tests/recordings/gpu_tools`)."""

from __future__ import annotations

import pytest

from mcp_server.logs.log import read_log_file
from mcp_server.model import Verdict
from tests.recorded import RECORDINGS

RECORDED = RECORDINGS / "gpu_tools"

CATEGORIES = {
    "wrong-device": "device_mismatch",
    "wrong-dtype": "input_mismatch",
    "out-of-range": "shape_out_of_range",
    "bad-index": "index_out_of_bounds",
    "bad-start": "index_out_of_bounds",
    "bad-scatter": "index_out_of_bounds",
    "bad-read": "index_out_of_bounds",
    "bad-write": "index_out_of_bounds",
    "bad-shift": "illegal_memory_access",
    "nan": "nan_or_inf",
    "good-logarithm": None,
    "good-lookup": None,
}


@pytest.mark.parametrize("name", sorted(CATEGORIES))
def test_verdicts_of_the_gpu_visit_are_valid_today(name: str) -> None:
    """A verdict written on the GPU machine is one of today's schema, with the category of that fault."""
    verdict = Verdict.model_validate_json((RECORDED / f"diagnose-{name}.json").read_text())
    assert verdict.category == CATEGORIES[name]
    assert (verdict.outcome == "no_fault") == (CATEGORIES[name] is None)


ROOTS = {
    "bad-index": "device_assert_index",
    "bad-start": "device_assert_index",
    "bad-scatter": "aten_assert",
}


@pytest.mark.parametrize("name", sorted(ROOTS))
def test_the_root_of_a_real_device_assertion(name: str) -> None:
    """The assertion is the root of the child's real output, whatever CUDA and cuBLAS say after it."""
    (log,) = RECORDED.glob(f"diagnose-{name}.0?-plain.log")
    root = read_log_file(log).root
    assert root is not None and root.family.id == ROOTS[name]
