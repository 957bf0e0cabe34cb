"""A disk that fills during a run: the result says so, and the server or command goes on."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest

from tests.server.test_cli import CLI, environment

FLOOD = "import sys\nfor _ in range(40_000):\n    print('x' * 100)\nsys.exit(3)\n"
LIMIT_BYTES = 1 << 20


@pytest.mark.parametrize("command", ["diagnose", "run-deterministic"])
def test_output_that_the_disk_did_not_take(tmp_path: Path, command: str) -> None:
    """4 MB of output where no file may exceed 1 MiB: the reason and the remedy are in the result."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))

    (tmp_path / "flood.py").write_text(FLOOD)
    done = subprocess.run(
        [*CLI, command, "flood.py", "--json"],
        cwd=tmp_path,
        env=environment(tmp_path),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (1, 3), done.stderr
    result = json.loads(done.stdout)
    said = result["summary"] if command == "diagnose" else " ".join(result["notes"])
    assert "output of the workload is incomplete, since File too large: set AOTI_DEBUG_STATE" in said
