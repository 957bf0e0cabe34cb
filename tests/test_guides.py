"""The guides: format, length, links, and that they agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcp_server.evidence.families import find_family
from mcp_server.flags import FLAGS, table_markdown
from mcp_server.operations.table import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
SKILL = ROOT / "SKILL.md"
SUB_GUIDES = (
    "triton-index-out-of-bounds.md",
    "cuda-illegal-memory-access.md",
    "nan-and-wrong-output.md",
    "dynamic-shapes-and-custom-ops.md",
)
GUIDES = [SKILL, *(ROOT / name for name in SUB_GUIDES)]

FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
# A first cell in backticks, single or double, then the family in backticks.
ROUTE = re.compile(r"^\| (?P<ticks>`+) ?(?P<text>.+?) ?(?P=ticks) \| `(?P<family>\w+)` \|")
TOOL = re.compile(
    r"`((?:explain|inspect|dump|locate|trace|compare|wait|stop)_\w+|diagnose|check_devices|compile_with\w+|run_det\w+)`"
)
INSTALLS = re.compile(
    r"\b(?:pip3?|uv|npx?|npm|conda|apt(?:-get)?|brew) (?:install|add|run)\b|\b(?:uvx|curl|wget|sudo)\b"
    r"|\| *(?:ba)?sh\b|git\+https|@latest"
)


def frontmatter() -> dict[str, str]:
    """The fields of SKILL.md, which are all one line of text, quoted or not."""
    text = SKILL.read_text(encoding="utf-8")
    assert text.startswith("---\n")
    lines = text.split("---\n", 2)[1].splitlines()
    return {name: value.strip().strip('"') for name, value in (line.split(":", 1) for line in lines)}


def routes() -> list[tuple[str, str]]:
    """(error text, family) of each row of the routing table."""
    lines = SKILL.read_text(encoding="utf-8").splitlines()
    return [(found["text"], found["family"]) for found in map(ROUTE.match, lines) if found]


def test_the_frontmatter_follows_the_specification() -> None:
    """Name, description and licence are what installers and agents accept."""
    fields = frontmatter()
    assert set(fields) <= FIELDS
    assert fields["name"] == "aoti-debug"
    assert fields["license"] == "Apache-2.0"
    description = fields["description"]
    assert 250 <= len(description) <= 500
    assert not set("<>") & set(description)
    assert "Not for" in description


def test_the_description_is_quoted() -> None:
    """A colon in an unquoted description makes installers skip the skill."""
    assert re.search(r'^description: "[^"]+"$', SKILL.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_a_guide_has_a_readable_length(guide: Path) -> None:
    """150 to 300 lines, and small enough to be read whole: about 5,000 tokens at 4 characters each."""
    text = guide.read_text(encoding="utf-8")
    assert 150 <= len(text.splitlines()) <= 300
    assert len(text) <= 20_000


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide: Path) -> None:
    """Every linked or named guide is a file of the skill, one level deep."""
    text = guide.read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#]+)\)", text)) | set(re.findall(r"`([\w-]+\.md)`", text))
    assert linked
    assert [name for name in linked if "/" in name or not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_guides_install_nothing(guide: Path) -> None:
    """No install command and no download: scanners refuse such guides, and agents would run them."""
    assert INSTALLS.findall(guide.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_guides_say_that_logs_are_data(guide: Path) -> None:
    """An agent that reads a log is told not to follow it."""
    assert re.search(r"data[.:*]*\*?\*? .*run", guide.read_text(encoding="utf-8"), re.IGNORECASE)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_tables_have_equal_rows(guide: Path) -> None:
    """Each row of a table has as many cells as its head."""
    width = 0
    for line in guide.read_text(encoding="utf-8").splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and cells) or cells == width, line
        width = cells


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_named_tools_exist(guide: Path) -> None:
    """Words that look like a tool's name are tools."""
    named = set(TOOL.findall(guide.read_text(encoding="utf-8")))
    assert "diagnose" in named
    assert named - {operation.name for operation in OPERATIONS} == set()


def test_the_flag_table_is_the_code_s() -> None:
    """The guide's table is made from the rows that decide what is refused."""
    assert table_markdown(flag for flag in FLAGS if flag.in_guide) in SKILL.read_text(encoding="utf-8")


def test_there_are_enough_routes() -> None:
    """The routing table covers the kinds of failure."""
    assert len(routes()) >= 25


@pytest.mark.parametrize(("text", "family"), routes())
def test_a_routed_text_is_recognised_as_its_family(text: str, family: str) -> None:
    """What the guide calls a family, the log reader calls the same."""
    found = find_family(text)
    assert found is not None and found[0].id == family


def test_routes_lead_to_the_family_s_guide() -> None:
    """A row whose family has an index guide names that guide."""
    for line in SKILL.read_text(encoding="utf-8").splitlines():
        found = ROUTE.match(line)
        family = find_family(found["text"]) if found else None
        if family is not None and (ROOT / family[0].guide).is_file() and family[0].guide != "SKILL.md":
            assert family[0].guide in line
