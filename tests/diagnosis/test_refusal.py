"""Calls of a package alone that something inside refused, in words that name no category."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import log_text
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude
from mcp_server.model import ScriptWorkload
from mcp_server.tools.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import failing, package_case

# What the worker prints when a check that the model itself makes fails in a kernel (torch 2.13).
RAISED = """Traceback (most recent call last):
  File "run.py", line 35, in operate
    result = call(lambda: loader.run(flat), index, report)
RuntimeError: {text}
"""
CHECK = '{{ (throw std::runtime_error("{text}"), 0);'


def refused(zoo: ZooPackage, text: str) -> DiagnosisState:
    """A call that ended with this text, which the package's first C++ kernel holds."""
    case = failing(package_case(zoo("ranker")), RAISED.format(text=text))
    assert case.package is not None
    kernel = case.package.kernel_text.replace("{", CHECK.format(text=text), 1)
    vars(case.package)["kernel_text"] = kernel
    return case


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("one_hot: Class values must be smaller than num_classes.", "index_out_of_bounds"),
        ("weights must be finite", "nan_or_inf"),
    ],
)
def test_a_check_of_the_model_names_its_launch_and_claims_nothing(
    zoo: ZooPackage, tmp_path: Path, text: str, category: str
) -> None:
    """The launch whose kernel holds the text is named, its category is a suspicion; no script is blamed."""
    case = refused(zoo, text)
    found = conclude(
        [*log_text.detect_from_log(case), *log_text.detect_refusal(case)],
        case,
        Context(tmp_path, Path("python")),
    )
    assert (found.outcome, found.category) == ("inconclusive", category)
    assert found.guilty is not None and found.guilty.launch_index is not None
    assert "dump_kernel_io" in found.summary and found.summary.startswith("Inconclusive: Launch")


def test_a_statement_of_a_program_may_have_raised_it(zoo: ZooPackage) -> None:
    """With a program at hand, what the log says is left to the log."""
    case = refused(zoo, "one_hot: Class values must be smaller than num_classes.")
    case.workload = ScriptWorkload(script=Path("a.py"))
    assert list(log_text.detect_refusal(case)) == []


def test_other_errors_are_left_to_others(zoo: ZooPackage) -> None:
    """An error with a family of its own is none of these."""
    assert list(log_text.detect_refusal(failing(package_case(zoo("ranker"))))) == []
