"""Writes the tables of flags, each between its two marks: all flags, and those that the guides use.

With `--check` it only compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mcp_server.flags import FLAGS, Flag, table_markdown

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(?<=<!-- flags:begin -->\n).*?(?=<!-- flags:end -->)", re.DOTALL)
TABLES: dict[str, tuple[Flag, ...]] = {
    "docs/flags.md": FLAGS,
    "reference/flags.md": tuple(flag for flag in FLAGS if flag.in_guide),
}


def written(path: str, flags: tuple[Flag, ...]) -> str:
    """The text of the file at `path` with the current table."""
    return MARKED.sub(lambda _found: f"\n{table_markdown(flags).strip()}\n\n", (ROOT / path).read_text())


def main() -> int:
    current = {path: written(path, flags) for path, flags in TABLES.items()}
    if "--check" in sys.argv[1:]:
        return int(any((ROOT / path).read_text() != text for path, text in current.items()))
    for path, text in current.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
