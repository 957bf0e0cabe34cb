"""The command line, started as users start it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.server.clients import ROOT

CLI = [sys.executable, "-c", "from mcp_server.cli.main import main; main()"]


def environment(tmp_path: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return {**inherited, "AOTI_DEBUG_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
