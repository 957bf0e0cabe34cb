"""Rebuilds are shared between tasks and processes, and never outgrow the cap."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio

from mcp_server.probes.cache import IN_USE_S, MANIFEST, Cache, digest_file, digest_file_cached

KEY, OTHER = "a" * 64, "b" * 64


def fill(cache: Cache, key: str, size: int, age_s: float = 0.0) -> Path:
    work = cache.building(key)
    (work / "package.pt2").write_bytes(b"x" * size)
    (work / MANIFEST).write_text("{}")
    entry = cache.finish(key, work)
    then = time.time() - age_s
    os.utime(entry, (then, then))
    return entry


def test_an_entry_is_found_only_when_it_is_finished(tmp_path: Path) -> None:
    """Work in progress is no entry."""
    cache = Cache(tmp_path)
    cache.building(KEY)
    assert cache.find(KEY) is None
    assert cache.find(KEY) != fill(cache, KEY, 10)
    assert cache.find(KEY) == tmp_path / KEY


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    """The second time nothing is read: the remembered digest is given; a new time makes it read again."""
    package, memory = tmp_path / "p.pt2", tmp_path / "digests"
    package.write_bytes(b"weights")
    first = digest_file_cached(package, memory)
    (remembered,) = memory.iterdir()
    remembered.write_text("from memory")
    assert digest_file_cached(package, memory) == "from memory"
    os.utime(package, ns=(1, 1))
    assert digest_file_cached(package, memory) == first == digest_file(package)


def test_the_entries_used_longest_ago_go_first(tmp_path: Path) -> None:
    """Beyond the cap the old entry goes; a young one is kept even then, since it may be being loaded."""
    cache = Cache(tmp_path, cap=150)
    fill(cache, KEY, 100, age_s=IN_USE_S + 60)
    fill(cache, OTHER, 100)
    cache.sweep()
    assert cache.find(KEY) is None and cache.find(OTHER) is not None


def test_only_one_of_many_tasks_builds(tmp_path: Path) -> None:
    """Twenty tasks ask for one key at once: one builds, the others wait for it."""
    cache, builds = Cache(tmp_path), []

    async def ask() -> None:
        async with cache.locked(KEY):
            if cache.find(KEY) is None:
                work = cache.building(KEY)
                builds.append(1)
                await anyio.sleep(0.05)
                (work / MANIFEST).write_text("{}")
                cache.finish(KEY, work)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)

    anyio.run(main)
    assert builds == [1]


HOLD = """
import sys, time, anyio
from pathlib import Path
from mcp_server.probes.cache import Cache
async def main():
    cache = Cache(Path(sys.argv[1]))
    async with cache.locked(sys.argv[2]):
        cache.building(sys.argv[2]).joinpath("half").write_text("x")
        print("held", flush=True)
        await anyio.sleep(60)
anyio.run(main)
"""


def test_a_killed_builder_leaves_nothing_behind(tmp_path: Path) -> None:
    """While the builder lives its work is kept; once killed, a sweep removes it and the lock is free."""
    cache = Cache(tmp_path)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), KEY], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    cache.sweep()
    assert (tmp_path / f"{KEY}.building" / "half").exists()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    cache.sweep()
    assert not (tmp_path / f"{KEY}.building").exists()

    async def take() -> None:
        with anyio.fail_after(5):
            async with cache.locked(KEY):
                pass

    anyio.run(take)
