"""Rebuilds are shared between tasks and processes, and never outgrow the cap."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from mcp_server.probes.cache import IN_USE_S, MANIFEST, Cache, digest_file, digest_file_cached

KEY, OTHER = "a" * 64, "b" * 64


def built(cache: Cache, key: str, size: int) -> tuple[Path, bool]:
    async def build(work: Path) -> None:
        (work / "package.pt2").write_bytes(b"x" * size)
        (work / MANIFEST).write_text("{}")

    return anyio.run(lambda: cache.built(key, build, print))


def fill(cache: Cache, key: str, size: int, age_s: float = 0.0) -> Path:
    entry, _ = built(cache, key, size)
    then = time.time() - age_s
    os.utime(entry, (then, then))
    return entry


def test_an_entry_is_found_only_when_it_is_finished(tmp_path: Path) -> None:
    """Work that a builder left half done is no entry, and goes; what is finished is not built again."""
    cache = Cache(tmp_path)

    async def broken(work: Path) -> None:
        (work / "half").write_text("x")
        raise OSError

    with pytest.raises(OSError):
        anyio.run(lambda: cache.built(KEY, broken, print))
    assert built(cache, KEY, 10) == (tmp_path / KEY, False) and not (tmp_path / KEY / "half").exists()
    assert built(cache, KEY, 10) == (tmp_path / KEY, True)


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
    old = fill(cache, KEY, 100, age_s=IN_USE_S + 60)
    young = fill(cache, OTHER, 100)
    cache.sweep()
    assert not old.exists() and young.exists()


def test_only_one_of_many_tasks_builds(tmp_path: Path) -> None:
    """Twenty tasks ask for one key at once: one builds, the others wait for it."""
    cache, builds = Cache(tmp_path), []

    async def build(work: Path) -> None:
        builds.append(1)
        await anyio.sleep(0.05)
        (work / MANIFEST).write_text("{}")

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(cache.built, KEY, build, print)

    anyio.run(main)
    assert builds == [1]


HOLD = """
import sys, time, anyio
from pathlib import Path
from mcp_server.probes.cache import Cache
async def build(work):
    (work / "half").write_text("x")
    print("held", flush=True)
    await anyio.sleep(60)
anyio.run(Cache(Path(sys.argv[1])).built, sys.argv[2], build, print)
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
    assert built(cache, KEY, 10) == (tmp_path / KEY, False)
