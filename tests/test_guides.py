"""The guides and reference pages: format, length, links, and that they agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcp_server.logs.families import FAMILIES, find_family
from mcp_server.operations.table import OPERATIONS
from mcp_server.server.resources import GUIDES, REFERENCE

ROOT = Path(__file__).resolve().parent.parent
SKILL = ROOT / "SKILL.md"
SUB_GUIDES = [ROOT / guide.file for guide in GUIDES if guide.file != "SKILL.md"]
REFERENCES = [ROOT / page.file for page in REFERENCE]
PAGES = [SKILL, *SUB_GUIDES, *REFERENCES]
ROUTES = ROOT / "reference" / "error-texts.md"

FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
# A first cell in backticks, single or double, then the family in backticks.
ROUTE = re.compile(r"^\| (?P<ticks>`+) ?(?P<text>.+?) ?(?P=ticks) \| `(?P<family>\w+)` \|")
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


def frontmatter() -> dict[str, str]:
    """The fields of SKILL.md, which are all one line of text, quoted or not."""
    text = SKILL.read_text(encoding="utf-8")
    assert text.startswith("---\n")
    lines = text.split("---\n", 2)[1].splitlines()
    return {name: value.strip().strip('"') for name, value in (line.split(":", 1) for line in lines)}


def body() -> str:
    return SKILL.read_text(encoding="utf-8").split("---\n", 2)[2]


def routes() -> list[tuple[str, str]]:
    """(error text, family) of each row of the table of error texts."""
    lines = ROUTES.read_text(encoding="utf-8").splitlines()
    return [(found["text"], found["family"]) for found in map(ROUTE.match, lines) if found]


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
    """1,200 to 1,600 words, and about 5,000 tokens at 4 characters each."""
    assert 1_200 <= len(body().split()) <= 1_600
    assert len(body()) <= 20_000


def test_the_skill_opens_with_how_to_run_it() -> None:
    """The first section names the tools, then the launcher beside this file, then the way by hand."""
    first = body().partition("\n## ")[2].partition("\n## ")[0]
    assert first.index("`diagnose`") < first.index(LAUNCHES) < first.index("By hand")
    assert (ROOT / "tools" / "aoti_debug.py").is_file()


def test_the_skill_has_three_blocks_to_copy() -> None:
    """The launcher, how to save inputs, and the run with all checks on."""
    blocks = re.findall(r"```(sh|python)\n(.*?)```", body(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "python", "sh"]
    assert "torch.save" in blocks[1][1] and "AOTI_RUNTIME_CHECK_INPUTS=1" in blocks[2][1]


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_a_guide_has_a_readable_length(guide: Path) -> None:
    """At most 300 lines, and about 7,500 tokens at 4 characters each."""
    text = guide.read_text(encoding="utf-8")
    assert 50 <= len(text.splitlines()) <= 300
    assert len(text) <= 30_000


def test_every_page_is_offered() -> None:
    """Each Markdown file that an installed skill needs is a resource of the server."""
    known = {
        "README.md",
        "BENCHMARK.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "AGENTS.md",
        "CLAUDE.md",
    }
    found = {path.name for path in ROOT.glob("*.md")} - known
    assert found == {guide.file for guide in GUIDES}
    assert {f"reference/{path.name}" for path in (ROOT / "reference").iterdir()} == {
        p.file for p in REFERENCE
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every linked or named page is a file of the skill, one level deep."""
    text = page.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", text))
    named = set(re.findall(r"`([\w-]+\.md)`", text))
    assert linked or named or page.parent != ROOT
    offered = {(ROOT / entry.file).resolve() for entry in (*GUIDES, *REFERENCE)}
    assert [link for link in linked if (page.parent / link).resolve() not in offered] == []
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_guides_name_each_other_without_links(guide: Path) -> None:
    """Each page is one link away from SKILL.md; scanners object to the chains that further links make."""
    links = re.findall(r"\]\(([^)#]+)\)", guide.read_text(encoding="utf-8"))
    assert all(link.startswith("reference/") for link in links)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_numbered_section_exists(page: Path) -> None:
    """`section 7` of this page, and of another page that is named right before it, is a heading there."""
    text = page.read_text(encoding="utf-8")
    for name, number in re.findall(r"(?:\]\(|`)([\w./-]+\.md)[)`], sections? (\d+)", text):
        assert re.search(rf"^## {number}\. ", (page.parent / name).read_text(encoding="utf-8"), re.MULTILINE)
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
    assert page.parent != ROOT or "diagnose" in named


def test_the_skill_names_every_tool() -> None:
    """The table of tools has a row for each operation."""
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", body(), re.MULTILINE))
    assert rows >= {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("guide", SUB_GUIDES, ids=lambda path: path.name)
def test_the_skill_leads_to_every_guide(guide: Path) -> None:
    """The table of symptoms has a link to each guide."""
    assert f"]({guide.name})" in body()


def test_every_family_has_a_guide() -> None:
    """Only a text that does not say what failed leads to SKILL.md; the others lead to a guide."""
    assert {family.id for family in FAMILIES if family.guide == "SKILL.md"} == UNSPECIFIC
    assert {family.guide for family in FAMILIES} <= {guide.file for guide in GUIDES}


def test_there_are_enough_routes() -> None:
    """The table of error texts covers the kinds of failure."""
    assert len(routes()) >= 45


@pytest.mark.parametrize(("text", "family"), routes())
def test_a_routed_text_is_recognised_as_its_family(text: str, family: str) -> None:
    """What the table calls a family, the log reader calls the same."""
    found = find_family(text)
    assert found is not None and found[0].id == family


def test_routes_lead_to_the_family_s_guide() -> None:
    """The last cell of a row names the guide of its family."""
    for line in ROUTES.read_text(encoding="utf-8").splitlines():
        found = ROUTE.match(line)
        family = find_family(found["text"]) if found else None
        if family is not None:
            assert family[0].guide in line.rpartition(" | ")[2]
