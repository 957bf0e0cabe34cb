"""The command line, started as users start it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mcp_server.cli import main
from tests.conftest import ROOT

CLI = [sys.executable, "-c", "from mcp_server.cli.main import main; main()"]


def environment(tmp_path: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return {**inherited, "AOTI_DEBUG_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}


def output_of(argv: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a process, and keep what it prints."""
    return subprocess.run(argv, capture_output=True, text=True, **{"check": False, **options})


def ran(argv: Sequence[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a process in `folder`, which is also its state directory."""
    env = {**environment(folder), **variables}
    return output_of(argv, cwd=folder, env=env, timeout=600)


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, because a new Python would import everything again."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main.run(list(words))
    return subprocess.CompletedProcess(["aoti-debug", *words], code, out.getvalue(), err.getvalue())


def answered(*words: str | Path) -> dict[str, Any]:
    """What the command prints as JSON."""
    done = typed(str(words[0]), "--json", *map(str, words[1:]))
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found
