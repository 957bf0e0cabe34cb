"""Writes the table of flags into README.md, between its two marks. With `--check` it only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mcp_server.flags import FLAGS, table_markdown

README = Path(__file__).resolve().parent.parent / "README.md"
MARKED = re.compile(r"(?<=<!-- flags:begin -->\n).*?(?=<!-- flags:end -->)", re.DOTALL)


def main() -> int:
    text = README.read_text()
    written = MARKED.sub(lambda _found: f"\n{table_markdown(FLAGS).strip()}\n\n", text)
    if "--check" in sys.argv[1:]:
        return int(written != text)
    README.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
