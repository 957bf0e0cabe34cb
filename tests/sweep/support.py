"""Cases whose workloads need no torch, and one that kills what diagnoses it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from mcp_server.sweep import SweepCase, read_plan

# Kills the process of the sweep that diagnoses it, the first time.
KILLER = """
    import os, signal
    from pathlib import Path
    marker = Path(__file__).with_suffix(".done")
    if not marker.exists():
        marker.touch()
        pid = os.getppid()
        while b"mcp_server.sweep" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
"""


def plan(directory: Path, text: str) -> tuple[SweepCase, ...]:
    """The cases of a file with this text."""
    path = directory / "cases.yaml"
    path.write_text(textwrap.dedent(text))
    return read_plan(path)


def killer(directory: Path) -> Path:
    """A program that ends its own diagnosis once, and then does nothing."""
    script = directory / "killer.py"
    script.write_text(textwrap.dedent(KILLER))
    return script
