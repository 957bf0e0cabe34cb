"""The file of cases: what it may say, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.errors import ProblemError
from tests.sweep.support import plan


def test_defaults_and_relative_paths(tmp_path: Path) -> None:
    """Defaults fill every case, and paths start at the file's directory."""
    (case,) = plan(tmp_path, "defaults: {budget_s: 9}\ncases: [{package: a.pt2, gpus: 0}]")
    assert (case.name, case.gpus, case.arguments["budget_s"]) == ("a", 0, 9)
    assert case.arguments["package"] == str(tmp_path / "a.pt2")


def test_a_pattern_makes_a_case_of_each_file(tmp_path: Path) -> None:
    """Named after the files, below the given name if there is one."""
    for name in ("b", "a"):
        (tmp_path / f"{name}.pt").touch()
    cases = plan(tmp_path, "cases: [{name: m, package: m.pt2, inputs: '*.pt'}]")
    assert [case.name for case in cases] == ["m-a", "m-b"]
    assert [Path(case.arguments["inputs"]).name for case in cases] == ["a.pt", "b.pt"]


def test_specs_of_tensors_are_no_path(tmp_path: Path) -> None:
    """Inputs may be made up instead of read."""
    (case,) = plan(tmp_path, "cases: [{package: a.pt2, inputs: [{shape: [2], dtype: float32}]}]")
    assert case.arguments["inputs"] == [{"shape": [2], "dtype": "float32"}]


@pytest.mark.parametrize(
    "text, said",
    [
        ("cases: []", "no cases"),
        ("- a", "not a mapping"),
        ("cases: [{package: a.pt2, bugdet_s: 1}]", "case 0: bugdet_s"),
        ("cases: [{package: a.pt2, budget_s: -1}]", "case 0: budget_s"),
        ("cases: [{package: a.pt2, gpus: many}]", "gpus is no number"),
        ("cases: [{package: a.pt2}, {package: b/a.pt2}]", "two cases have one name"),
        ("cases: [{package: '*.pt2', inputs: '*.pt'}]", "more than one pattern"),
        ("cases: [{package: '*.pt2'}]", "no file matches"),
        ("cases: [{name: ../x, package: a.pt2}]", "no name for a file"),
        ("cases: [{package: a.pt2", "cannot be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """A wrong file is told by the number of the case and what is allowed."""
    with pytest.raises(ProblemError) as refused:
        plan(tmp_path, text)
    assert said in str(refused.value) and (refused.value.allowed or "no file" in said)


def test_a_changed_file_is_another_case(tmp_path: Path) -> None:
    """The digest follows the content, so that an old verdict is not taken for a new package."""
    (tmp_path / "a.pt2").write_text("1")
    (before,) = plan(tmp_path, "cases: [{package: a.pt2}]")
    first = before.digest
    (tmp_path / "a.pt2").write_text("22")
    assert before.digest != first
