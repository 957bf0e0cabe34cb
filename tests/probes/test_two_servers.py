"""Two servers that rebuild one package at once, as two agents on one machine do."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from tests.conftest import ZooPackage
from tests.server.clients import data_of, real_server

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
