"""Links of the texts for people: README, documentation, contributing, security, changelog."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_guides import PAGES, ROOT

TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
TEXTS = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md")), *PAGES]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]+)?\)")


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
