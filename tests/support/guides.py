"""The skill's pages."""

from mcp_server.server.app import GUIDES, REFERENCE
from tests.conftest import ROOT

SKILL = ROOT / "SKILL.md"

SUB_GUIDES = [ROOT / guide.place for guide in GUIDES if guide.file != "SKILL.md"]

REFERENCES = [ROOT / page.place for page in REFERENCE]

PAGES = [SKILL, *SUB_GUIDES, *REFERENCES]


def frontmatter() -> dict[str, str]:
    """The fields of SKILL.md: each is one line, quoted or not."""
    text = SKILL.read_text()
    assert text.startswith("---\n")
    lines = text.split("---\n", 2)[1].splitlines()
    return {name: value.strip().strip('"') for name, value in (line.split(":", 1) for line in lines)}
