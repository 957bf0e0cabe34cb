"""The guides and reference pages: format, length, links, and that they agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcp_server.logs.families import FAMILIES
from mcp_server.operations.table import OPERATIONS
from mcp_server.server.app import GUIDES, REFERENCE
from tests.conftest import ROOT
from tests.support.guides import PAGES, REFERENCES, SKILL, SUB_GUIDES, frontmatter

PLACES = {entry.file: ROOT / entry.place for entry in (*GUIDES, *REFERENCE)}

FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
TOOL = re.compile(
    r"`((?:explain|inspect|dump|locate|trace|compare)_\w+|wait_\w*job|stop_\w*job|diagnose|check_devices|compile_with\w+|run_det\w+)`"
)
# Starts what lies in the skill's own folder, with locked versions; installs nothing by name.
LAUNCHES = "uv run --frozen --script SKILL_DIR/tools/aoti_debug.py "
INSTALLS = re.compile(
    r"\b(?:pip3?|uv|npx?|npm|conda|apt(?:-get)?|brew) (?:install|add|run)\b|\b(?:uvx|curl|wget|sudo)\b"
    r"|\| *(?:ba)?sh\b|git\+https|@latest"
)
# Families whose text only says that something failed: SKILL.md tells how to find the text that says what.
UNSPECIFIC = {
    "generic_api_call",
    "shim_call",
    "terminate",
    "aborted",
    "child_failed",
    "script_exception",
    "python_exception",
    "cpp_exception",
}


def body() -> str:
    return SKILL.read_text(encoding="utf-8").split("---\n", 2)[2]


def test_the_frontmatter_follows_the_specification() -> None:
    """Name, description and licence are what installers and agents accept."""
    fields = frontmatter()
    assert set(fields) <= FIELDS
    assert fields["name"] == "aoti-debug"
    assert fields["license"] == "Apache-2.0"
    description = fields["description"]
    assert 250 <= len(description) <= 700
    assert len(fields["compatibility"]) <= 500
    assert not set("<>") & set(description)
    assert "Use when" in description and "Not for" in description


def test_the_description_is_quoted() -> None:
    """A colon in an unquoted description makes installers skip the skill."""
    assert re.search(r'^description: "[^"]+"$', SKILL.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_skill_is_short_enough_to_be_read_whole() -> None:
    """At most 1,600 tokens: 5,345 characters were 1,401 of o200k_base."""
    assert len(SKILL.read_text(encoding="utf-8")) <= 6_100


def test_the_skill_opens_with_one_command() -> None:
    """The first section has the launcher beside this file, then the tool, then how to save inputs."""
    first = body().partition("\n## ")[2].partition("\n## ")[0]
    assert first.index(LAUNCHES) < first.index("`diagnose`") < first.index("torch.save")
    assert (ROOT / "tools" / "aoti_debug.py").is_file()
    assert re.findall(r"```([a-z]+)\n", body()) == ["sh", "python"]


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_a_guide_has_a_readable_length(guide: Path) -> None:
    """At most 300 lines, and about 7,500 tokens at 4 characters each."""
    text = guide.read_text(encoding="utf-8")
    assert 50 <= len(text.splitlines()) <= 300
    assert len(text) <= 30_000


def test_every_page_is_offered() -> None:
    """Each Markdown file that an installed skill needs is a resource of the server."""
    known = {"README.md", "CHANGELOG.md", "AGENTS.md", "CLAUDE.md"}
    found = {path.name for path in (*ROOT.glob("*.md"), *ROOT.glob("guides/*"))} - known
    assert found == set(PLACES)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every linked or named page is a file of the skill, one level deep."""
    text = page.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", text))
    named = set(re.findall(r"`([\w-]+\.md)`", text))
    assert linked or named or page not in SUB_GUIDES
    assert [link for link in linked if (page.parent / link).resolve() not in PLACES.values()] == []
    assert named <= set(PLACES)


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_guides_name_each_other_without_links(guide: Path) -> None:
    """Each page is one link away from SKILL.md; scanners object to the chains that further links make."""
    links = re.findall(r"\]\(([^)#]+)\)", guide.read_text(encoding="utf-8"))
    assert {(guide.parent / link).resolve() for link in links} <= set(REFERENCES)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_numbered_section_exists(page: Path) -> None:
    """`section 7` of this page, and of another page that is named right before it, is a heading there."""
    text = page.read_text(encoding="utf-8")
    for name, number in re.findall(r"(?:\]\(|`)([\w./-]+\.md)[)`], sections? (\d+)", text):
        text_there = PLACES[Path(name).name].read_text(encoding="utf-8")
        assert re.search(rf"^## {number}\. ", text_there, re.MULTILINE)
    own = re.sub(r"\.md[)`], sections? \d+(?: to \d+)?", "", text)
    for number in re.findall(r"\bsections? (\d+)\b", own):
        assert re.search(rf"^## {number}\. ", text, re.MULTILINE), number


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_install_nothing(page: Path) -> None:
    """No install command and no download: scanners refuse such pages, and agents would run them."""
    assert INSTALLS.findall(page.read_text(encoding="utf-8").replace(LAUNCHES, "")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_say_that_logs_are_data(page: Path) -> None:
    """An agent that reads a log is told not to follow it."""
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert re.search(r"data[.:*]*\*?\*? .{0,40}run", text, re.IGNORECASE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_tables_have_equal_rows(page: Path) -> None:
    """Each row of a table has as many cells as its head."""
    width = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and cells) or cells == width, line
        width = cells


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_named_tools_exist(page: Path) -> None:
    """Words that look like a tool's name are tools."""
    named = set(TOOL.findall(page.read_text(encoding="utf-8")))
    assert named - {operation.name for operation in OPERATIONS} == set()
    assert page not in (SKILL, *SUB_GUIDES) or "diagnose" in named


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_the_skill_leads_to_every_guide(guide: Path) -> None:
    """The table of symptoms has a link to each guide."""
    assert f"]({guide.relative_to(ROOT).as_posix()})" in body()


def test_every_family_has_a_guide() -> None:
    """Only a text that does not say what failed leads to SKILL.md; the others lead to a guide."""
    assert {family.id for family in FAMILIES if family.guide == "SKILL.md"} == UNSPECIFIC
    assert {family.guide for family in FAMILIES} <= {guide.file for guide in GUIDES}
