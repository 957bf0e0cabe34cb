"""`aoti-debug` from the folder in which this file lies, as clients start it: `uv run --script FILE serve`.

uv makes the environment from the header and keeps it in its cache, so an update of the folder leaves it
alone, nothing is built, and the folder may be read-only.
"""

# /// script
# requires-python = ">=3.10"
# dependencies = [
#   "mcp>=2.3,<3",
#   "pydantic>=2.12,<3",
#   "anyio>=4.9,<5",
#   "typer>=0.16,<1",
#   "rich>=13.9,<16",
#   "pyelftools>=0.31,<1",
#   "pyyaml>=6,<7",
#   "jinja2>=3.1,<4",
# ]
# ///

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """The command line, imported from this folder."""
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from mcp_server.cli import main as run

    run()


if __name__ == "__main__":
    main()
