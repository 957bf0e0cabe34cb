"""Writes the tables of flags between their marks: all, those of the guides, and what each release brought.

With `--check` it only compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mcp_server import versions
from mcp_server.flags import FLAGS, Flag, table_markdown

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(?<=<!-- flags:begin -->\n).*?(?=<!-- flags:end -->)", re.DOTALL)
TABLES: dict[str, tuple[Flag, ...]] = {
    "docs/flags.md": FLAGS,
    "reference/flags.md": tuple(flag for flag in FLAGS if flag.in_guide),
}


def by_release() -> str:
    """The flags that came after the first supported release, by the release that brought them."""
    rows = ["| from torch | flags |", "| --- | --- |"]
    for release in sorted({flag.since for flag in FLAGS if flag.since > versions.FIRST}):
        names = ", ".join(f"`{flag.name}`" for flag in FLAGS if flag.since == release)
        rows.append(f"| {versions.text(release)} | {names} |")
    return "\n".join(rows)


def written(path: str, table: str) -> str:
    """The text of the file at `path` with the current table."""
    return MARKED.sub(lambda _found: f"\n{table.strip()}\n\n", (ROOT / path).read_text())


def main() -> int:
    tables = {path: table_markdown(flags) for path, flags in TABLES.items()}
    tables["docs/releases.md"] = by_release()
    current = {path: written(path, table) for path, table in tables.items()}
    if "--check" in sys.argv[1:]:
        return int(any((ROOT / path).read_text() != text for path, text in current.items()))
    for path, text in current.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
