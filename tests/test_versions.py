"""The supported torch releases: one range, in the code, the requirements and the table of what was tried."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mcp_server.versions import FIRST, LAST, is_supported, text
from tests.conftest import ROOT
from tests.releases.report import MARKED, PAGE, Area, Tried, failures, keep, kept, section, table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_package_requires_the_supported_releases() -> None:
    """`pip install 'aoti-debug[torch]'` takes no torch that the tools do not support."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, (major, minor) = text(FIRST), LAST
    assert project["optional-dependencies"]["torch"] == [f"torch>={first},<{major}.{minor + 1}"]


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.8.0", True),
        ("2.15.0a0+git1234", True),
        ("2.13.0+cpu", True),
        ("2.7.1", False),
        ("2.16.0", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_which_versions_are_supported(version: str, supported: bool) -> None:
    """Both ends belong to the range; local and pre-release parts do not matter."""
    assert is_supported(version) is supported


def test_the_readme_says_what_was_kept() -> None:
    """`python -m tests.releases --table` would change nothing."""
    found = MARKED.search(PAGE.read_text())
    assert found is not None and found[0] == section()


def test_areas_are_tried_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run replaces its own areas alone; what fails is counted and told."""
    file = tmp_path / "results.json"
    file.write_text("{}")
    monkeypatch.setattr("benchmarks.RESULTS", file)
    keep(Tried("2.9.0", "3.10.1", {"steps": Area.of({"a": "", "b": ""})}))
    keep(Tried("2.9.1", "3.10.1", {"texts": Area.of({"c": "", "d": "read as none"})}))
    keep(Tried("2.10.0", "3.10.1", {}))
    old, new = kept()
    assert (old.torch, old.cell("steps"), old.cell("texts")) == ("2.9.1", "2 of 2", "1 of 2")
    assert (new.torch, new.cell("steps")) == ("2.10.0", "not run")
    assert failures([old, new]) == ["2.9, texts: d: read as none"]
    assert table([old, new]).splitlines()[0].endswith("| 2.9.1 | 2.10.0 |")
