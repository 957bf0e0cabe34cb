"""A hook of mkdocs: adds the README as the start of the site, the guides, the tools, and `llms.txt`.

Links between pages are written for the repository. They become links of the site, or links to files of the
repository; a link to no file ends the build.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")
# Guides name each other without a link: see tests/test_guides.py.
NAMED = re.compile(r"(?<!\[)`((?:[a-z]+-)+[a-z]+\.md)`")
SKILL, INDEX_GUIDE = ROOT / "SKILL.md", ROOT / "triton-index-out-of-bounds.md"
PAGES = {
    "index.md": ROOT / "README.md",
    **{f"guides/{path.name}": path for path in (SKILL, INDEX_GUIDE, *sorted(ROOT.glob("guides/*.md")))},
}
"""The pages of the site that do not lie in docs/, by their name there."""


def on_files(files: Files, config: Any) -> Files:
    """Add the README, the guides and reference pages, and the page of all tools."""
    for name, path in PAGES.items():
        files.append(File.generated(config, name, content=_body(path)))
    sys.path.insert(0, str(ROOT))
    from tools.pages import tools_page

    files.append(File.generated(config, "tools.md", content=tools_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Turn the repository's links into the site's."""
    name = page.file.src_uri
    if name.startswith("guides/"):
        markdown = NAMED.sub(lambda found: f"[{found[1]}]({found[1]})", markdown)
        return LINK.sub(lambda found: _link(_beside(found[1]), found[2] or "", name, config), markdown)
    return LINK.sub(lambda found: _link(found[1], found[2] or "", name, config), markdown)


def on_post_build(config: Any) -> None:
    """Write the site for a language model (llmstxt.org): one line, then every page with its address."""
    lines = ["# aoti-debug", "", f"> {config.site_description}", ""]
    lines.append(f"- [Tools]({config.site_url}tools/)")
    pages = {**PAGES, **{path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}}
    for name, path in pages.items():
        title = _body(path).lstrip().partition("\n")[0].removeprefix("# ")
        address = (name.removesuffix(".md") + "/").removesuffix("index/")
        lines.append(f"- [{title}]({config.site_url}{address})")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _body(path: Path) -> str:
    """The text of a page, without a skill's frontmatter."""
    text = path.read_text(encoding="utf-8")
    return text.split("---\n", 2)[2] if text.startswith("---\n") else text


def _beside(link: str) -> str:
    """On the site all guides are in one folder; in the repository two are at the top."""
    name = PurePosixPath(link).name
    return os.path.relpath(PAGES[f"guides/{name}"], ROOT / "guides") if f"guides/{name}" in PAGES else link


def _link(link: str, anchor: str, page: str, config: Any) -> str:
    source = PAGES.get(page, ROOT / "docs" / page)
    folder = ROOT / "guides" if page.startswith("guides/") else source.parent
    target = Path(os.path.normpath(folder / link))
    if not target.exists():
        raise PluginError(f"{page}: {link} leads to no file")
    inside = target.relative_to(ROOT).as_posix()
    names = [name for name, path in PAGES.items() if path == target]
    if names:
        inside = names[0]
    elif inside.startswith("docs/"):
        inside = inside.removeprefix("docs/")
    else:
        return f"{config.repo_url}/blob/main/{inside}{anchor}"
    return os.path.relpath(inside, PurePosixPath(page).parent) + anchor
