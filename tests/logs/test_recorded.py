"""What was printed and recorded: by releases of torch about one fault, and by our own tools on an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.logs.facts import ErrorFact
from mcp_server.logs.log import read_log_file
from mcp_server.model import Verdict
from tests.recorded import RECORDINGS
from tests.releases.texts import EXPECTED

LOGS = sorted((RECORDINGS / "releases").glob("*.txt"))


def root(log: Path) -> ErrorFact:
    found = read_log_file(log).root
    assert found is not None
    return found


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_fault_has_one_family_in_every_release(log: Path) -> None:
    """Wording and place of a text differ between releases, what it is read as does not."""
    assert root(log).family.id in EXPECTED[log.name.partition(".")[0]][0].split()


@pytest.mark.parametrize("release", ["2.8", "2.9", "2.12", "2.14"])
def test_an_operators_exception_is_read_where_its_error_is_not_checked(release: str) -> None:
    """Up to 2.12 the exception is a line of the log; the call goes on, and what comes of it follows."""
    found = root(RECORDINGS / "releases" / f"operator_raises.torch-{release}.txt")
    assert (found.candidates[0], found.fields["at_function"]) == ("custom_op", "refuse")
    assert "no value below one is allowed" in found.text
    assert found.fields.get("node") == ("0" if release == "2.14" else None)


def test_the_oldest_text_names_the_model_that_is_missing() -> None:
    """torch 2.8 has no quotes around the name, and no space behind it."""
    assert root(RECORDINGS / "releases" / "no_such_model.torch-2.8.txt").fields["model"] == "nope"


# What our own tools said on an H200, kept as they printed it (`tests/recordings/gpu_tools`).

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
