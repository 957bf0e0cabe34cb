"""Starts `aoti-debug` from this file's folder, as clients do: `uv run --script FILE serve`.

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
# [tool.uv]
# fork-strategy = "fewest"  # one version for all Pythons: a short lock
# ///

from __future__ import annotations

import os
import sys
from pathlib import Path


def leave_environment() -> None:
    """Undo what `uv run` changed for this script: workloads get the environment in which uv was started.

    uv sets VIRTUAL_ENV to its own environment and puts that first in PATH, which hides the user's active one
    and its torch (uv 0.13). uv stays our parent, with the variables that it got.
    """
    if "UV" not in os.environ or os.environ.get("VIRTUAL_ENV") != sys.prefix:
        return
    try:
        told = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:  # processes of one user may be hidden from each other
        told = b""
    before = dict(pair.split("=", 1) for pair in os.fsdecode(told).split("\0") if "=" in pair)
    path = [e for e in os.environ.get("PATH", "").split(os.pathsep) if e != str(Path(sys.prefix, "bin"))]
    os.environ["PATH"] = before.get("PATH", os.pathsep.join(path))
    if "VIRTUAL_ENV" in before:
        os.environ["VIRTUAL_ENV"] = before["VIRTUAL_ENV"]
    else:
        del os.environ["VIRTUAL_ENV"]


def main() -> None:
    """Run the command line from this folder."""
    leave_environment()
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    try:
        from mcp_server.cli.main import main as run
    except ModuleNotFoundError as error:
        needed = (
            f"{error.name} is missing: start this file with `uv run --script`, or pip install {sys.path[0]}"
        )
        raise SystemExit(f"error: {needed}") from None
    run()


if __name__ == "__main__":
    main()
