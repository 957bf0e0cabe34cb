"""A hook of mkdocs: puts the guides, which are at the root of the repository, below `guides/` of the site.

Links between pages are written for the repository. Here each becomes a link of the site, or a link to the
file in the repository; one that leads to no file ends the build.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
# Guides name each other without a link: see tests/test_guides.py.
NAMED = re.compile(r"(?<!\[)`((?:[a-z]+-)+[a-z]+\.md)`")
GUIDES = sorted([*ROOT.glob("*-*.md"), ROOT / "SKILL.md", *ROOT.glob("reference/*.md")])


def on_files(files: Files, config: Any) -> Files:
    """Add the guides and reference pages."""
    for path in GUIDES:
        text = path.read_text(encoding="utf-8")
        if text.startswith("---\n"):  # the frontmatter of a skill is no page's
            text = text.split("---\n", 2)[2]
        files.append(File.generated(config, f"guides/{path.relative_to(ROOT).as_posix()}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn the repository's links into the site's."""
    if page.file.src_uri.startswith("guides/"):
        markdown = NAMED.sub(lambda found: f"[{found[1]}]({_up(page.file.src_uri)}{found[1]})", markdown)
    return LINK.sub(lambda found: _link(found[1], found[2] or "", page.file.src_uri, config), markdown)


def _up(page: str) -> str:
    return "../" if page.startswith("guides/reference/") else ""


def _link(link: str, anchor: str, page: str, config: Any) -> str:
    source = _source(page)
    target = Path(os.path.normpath(source.parent / link))
    if not target.exists():
        raise PluginError(f"{page}: {link} leads to no file")
    inside = target.relative_to(ROOT).as_posix()
    if target in GUIDES:
        inside = f"guides/{inside}"
    elif inside.startswith("docs/"):
        inside = inside.removeprefix("docs/")
    else:
        return f"{config.repo_url}/blob/main/{inside}{anchor}"
    return os.path.relpath(inside, PurePosixPath(page).parent) + anchor


def _source(page: str) -> Path:
    """The file in the repository that a page of the site is made of."""
    return ROOT / page.removeprefix("guides/") if page.startswith("guides/") else ROOT / "docs" / page
