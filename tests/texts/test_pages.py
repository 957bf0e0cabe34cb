"""Pages for people: links, what is made from tables, the README's verdict, what the hosting service reads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcp_server.logs.families import FAMILIES
from mcp_server.runtime.context import Context
from mcp_server.tools.explain_error import explain_error
from mcp_server.worker.capture.rewrites import REWRITES
from tests.conftest import ROOT
from tests.support.guides import PAGES


def test_generated_pages_are_current() -> None:
    """The tool would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_construct_is_in_the_guide() -> None:
    """The table has a row for each rewrite, in the order in which they are tried."""
    text = (ROOT / "guides" / "building-and-loading.md").read_text(encoding="utf-8")
    table = text.partition("<!-- table:begin -->")[2].partition("<!-- table:end -->")[0]
    assert re.findall(r"^\| ([\w -]+) \| (?:export|compile) \|", table, re.MULTILINE) == [
        row.name for row in REWRITES
    ]


async def test_an_explained_error_names_its_section(tmp_path: Path) -> None:
    """`explain_error` gives the page and the anchor of the family."""
    context = Context(tmp_path, Path(sys.executable))
    found = await explain_error(context, text="RuntimeError: Constant not found: enc.1.co.bias")
    page, _, anchor = found.page.partition("#")
    assert anchor == found.family and anchor in anchors(ROOT / page)


def test_every_family_has_an_anchor() -> None:
    """`guides/error-texts.md#FAMILY` is there for each family."""
    assert {family.id for family in FAMILIES} <= anchors(ROOT / "guides" / "error-texts.md")


TOP = ("README.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "CHANGELOG.md")
TEXTS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md")), *PAGES]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and mkdocs make them, and those that stand in the text."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return set(re.findall(r'<a id="(\w+)">', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_anchors_exist(text: Path) -> None:
    """Every relative link is a file, and its anchor a heading of that file."""
    for link, anchor in LINK.findall(text.read_text(encoding="utf-8")):
        target = (text.parent / link).resolve() if link else text
        assert target.exists(), link
        assert not anchor or anchor[1:] in anchors(target), link + anchor


def test_every_page_of_the_site_is_reachable() -> None:
    """Each page of the documentation is linked from another text."""
    linked = {
        (text.parent / link).resolve() for text in TEXTS for link, _ in LINK.findall(text.read_text()) if link
    }
    pages = {path for path in (ROOT / "docs").rglob("*.md") if path.name != "index.md"}
    assert pages - linked == set()


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_are_no_placeholders(text: Path) -> None:
    """The owner of the repository is written by tools/manifests.py: one word in all texts."""
    owners = set(re.findall(r"github\.com/([\w-]+)/aoti-debug", text.read_text(encoding="utf-8")))
    assert len(owners) <= 1


def test_the_readme_shows_the_picture() -> None:
    """The README has the picture that tests/cli/test_commands.py compares with the program."""
    assert re.search(r"^!\[.{40,}\]\(docs/demo\.svg\)$", (ROOT / "README.md").read_text(), re.MULTILINE)


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
    assert set(re.findall(r"tools/(\w+)\.py --check", checked)) == {"manifests", "pages"}
