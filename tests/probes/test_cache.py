"""Rebuilds are shared between tasks, servers and processes, stay below the cap, and are never half-built."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from mcp_server.probes.cache import MANIFEST, Cache
from tests.conftest import ROOT, ZooPackage
from tests.server.clients import data_of, real_server

KEY, OTHER = "a" * 64, "b" * 64


def built(cache: Cache, key: str, size: int) -> tuple[Path, bool]:
    async def build(work: Path) -> None:
        (work / "package.pt2").write_bytes(b"x" * size)
        (work / MANIFEST).write_text("{}")

    return anyio.run(lambda: cache.built(key, build, print))


# Keeps the source of each compile, and makes an empty object of it after a while: quick, and real to link.
EMPTY = """#!/bin/sh
for word; do case "$word" in *.cpp) source=$word;; esac; target=$word; done
case " $* " in *" -c "*) echo "$source" >> {calls}; sleep 0.3; exec {compiler} -x c++ -c /dev/null -o "$target";; esac
exec {compiler} "$@"
"""  # noqa: E501


async def traced(state: Path, arguments: dict[str, Any], found: list[str], **env: str) -> None:
    """Ask a server of its own for the rebuilt package, which it hands back since there are no inputs."""
    async with Client(real_server(state, **env)) as client:
        found.append(data_of(await client.call_tool("trace_launches", arguments))["package"])


def test_one_builds_and_the_other_waits(zoo: ZooPackage, tmp_path: Path) -> None:
    """Each source is compiled once, both get the same package, and nothing unfinished is left."""
    compiler, calls, cache = tmp_path / "own-g++", tmp_path / "calls", tmp_path / "cache"
    compiler.write_text(EMPTY.format(calls=calls, compiler=shutil.which("g++")))
    compiler.chmod(0o755)
    arguments = {"package": str(zoo("ranker")), "env": {"CXX": str(compiler)}, "wait_s": 45}
    found: list[str] = []

    env = {"AOTI_DEBUG_CACHE": str(cache), "PATH": os.environ["PATH"]}

    async def main() -> None:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for name in ("one", "two"):
                    tasks.start_soon(partial(traced, tmp_path / name, arguments, found, **env))

    anyio.run(main)
    sources = [Path(source).name for source in calls.read_text().split()]
    assert len(sources) == len(set(sources)) == 3
    assert found[0] == found[1] and Path(found[0]).exists()
    assert not list(cache.glob("*.building"))


BUILD = """
import sys, anyio
from pathlib import Path
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context
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


def wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_rebuild_leaves_no_compiler_and_no_entry(zoo: ZooPackage, tmp_path: Path) -> None:
    """SIGKILL at a random moment of the compile: its compilers end within seconds, and the next user of the
    cache finds neither an entry nor the half-built one."""
    root = tmp_path / "cache"
    argv = [sys.executable, "-c", BUILD, str(zoo("ranker")), str(root), str(tmp_path)]
    builder = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    wait(lambda: bool(processes_below(root)), 60)
    time.sleep(random.Random(0).uniform(0, 1.0))
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    wait(lambda: not processes_below(root), 10)
    Cache(root).sweep()
    assert not [*root.glob("*.building"), *root.rglob("package.pt2")]
