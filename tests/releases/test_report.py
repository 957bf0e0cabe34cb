"""The table of releases in docs/releases.md."""

from __future__ import annotations

from pathlib import Path

from tests.releases.report import MARKED, PAGE, Tried, failures, keep, kept, section, table


def test_the_readme_says_what_was_kept() -> None:
    """`python -m tests.releases --table` would change nothing."""
    found = MARKED.search(PAGE.read_text())
    assert found is not None and found[0] == section()


def test_areas_are_tried_one_at_a_time(tmp_path: Path) -> None:
    """A later run replaces its own areas alone; what fails is counted and told."""
    file = tmp_path / "releases.json"
    keep(Tried("2.9.0", "3.10.1", {"steps": {"a": "", "b": ""}}), file)
    keep(Tried("2.9.1", "3.10.1", {"texts": {"c": "", "d": "read as none"}}), file)
    keep(Tried("2.10.0", "3.10.1", {}), file)
    old, new = kept(file)
    assert (old.torch, old.cell("steps"), old.cell("texts")) == ("2.9.1", "2 of 2", "1 of 2")
    assert (new.torch, new.cell("steps")) == ("2.10.0", "not run")
    assert failures([old, new]) == ["2.9, texts: d: read as none"]
    assert table([old, new]).splitlines()[0].endswith("| 2.9.1 | 2.10.0 |")
