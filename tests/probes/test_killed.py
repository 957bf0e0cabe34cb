"""A rebuild that is killed leaves no process and no half-built entry."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mcp_server.probes.cache import Cache
from tests.conftest import ROOT, ZooPackage

pytestmark = pytest.mark.slow

BUILD = """
import sys, anyio
from pathlib import Path
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.tools.context import Context
package, cache, work = map(Path, sys.argv[1:])
anyio.run(lambda: instrument(package, Options(), Context(work, Path(sys.executable)), cache=Cache(cache)))
"""


def processes_below(directory: Path) -> list[str]:
    """Command names of the processes whose working directory lies below `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            below = (process / "cwd").readlink().is_relative_to(directory)
            if below:
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_killed_rebuild_leaves_no_compiler_and_no_entry(zoo: ZooPackage, tmp_path: Path, seed: int) -> None:
    """SIGKILL at a random moment of the compile: its compilers end within seconds, and the next user of the
    cache finds neither an entry nor the half-built one."""
    root = tmp_path / "cache"
    argv = [sys.executable, "-c", BUILD, str(zoo("ranker")), str(root), str(tmp_path)]
    builder = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not processes_below(root):
        assert builder.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 1.0))
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    until = time.monotonic() + 10
    while processes_below(root):
        assert time.monotonic() < until, processes_below(root)
        time.sleep(0.05)
    Cache(root).sweep()
    assert not [*root.glob("*.building"), *root.rglob("package.pt2")]
