"""What the hosting service reads: workflows, forms, updates, hooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_guides import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"^[\w./-]+@(v\d+|release/v\d+)$")


def steps(path: Path) -> list[dict[str, Any]]:
    """Every step of every job of a workflow."""
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_starts_with_few_rights(path: Path) -> None:
    """Reading is all that a job may do unless it asks for more."""
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(path: Path) -> None:
    """Targets of the Makefile, scripts and tools are files of this repository; actions name a version."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(path):
        if "uses" in step:
            assert PINNED.match(step["uses"]), step["uses"]
        command = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", command)) <= targets
        for name in re.findall(r"(?<![\w/])(?:\.ci/run|tools/\w+\.py)", command):
            assert (ROOT / name).is_file()


def test_a_downloaded_program_is_compared() -> None:
    """The publisher of the registry is run only after its digest was compared."""
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    fetched, compared = release.index("gh release download"), release.index("sha256sum --check")
    assert fetched < compared < release.index("./mcp-publisher publish")


def test_the_issue_form_asks_for_the_bundle() -> None:
    """A report needs the bundle and the state of the machine."""
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "problem.yml").read_text())
    needed = {part["id"] for part in form["body"] if part.get("validations", {}).get("required")}
    assert {"bundle", "doctor", "happened"} <= needed


def test_hooks_run_what_is_there() -> None:
    """`pre-commit` runs `make lint` and the checks of generated files."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == ["make lint", "make generated"]
    makefile = (ROOT / "Makefile").read_text()
    checked = makefile.partition("\ngenerated:")[2].partition("\n\n")[0]
    assert set(re.findall(r"tools/(\w+)\.py --check", checked)) == {"manifests", "flag_table", "pages"}
