"""A GPU is leased to a child when a process of it asks, and no longer than one of them lives or keeps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_server import worker
from mcp_server.jobs.command import Command, Finished
from mcp_server.jobs.gpus import Waits
from mcp_server.jobs.run import run
from mcp_server.jobs.store import try_lock
from tests.jobs.support import all_dead, appears, python, within

ROOT = Path(__file__).resolve().parents[2]
LEASE = Path(worker.__file__).with_name("lease.py")

# What a child has of the worker: its `take` and `leave`, and words of its own.
BEGIN = f"""
import importlib.util, os, signal, subprocess, sys, time
spec = importlib.util.spec_from_file_location("lease", {str(LEASE)!r})
lease = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lease)
def touch(name): open(name, "w").close()
def until(name):
    while not os.path.exists(name): time.sleep(0.005)
"""

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of this test alone."""
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")


async def asking(
    tmp_path: Path, name: str, code: str, told: Callable[[str], None] = lambda _: None, **more: float
) -> Finished:
    """A child that asks for GPU 0 where its code does; all of them have one working directory."""
    directory = tmp_path / name
    directory.mkdir()
    command = Command(
        python(BEGIN + code), tmp_path, timeout_s=more.get("timeout_s", 20), gpus=(0,), asks=True
    )
    return await run(command, directory, waits=Waits(f"diagnose {name}", told))


def free(tmp_path: Path) -> bool:
    """Whether nobody has GPU 0."""
    fd = try_lock(tmp_path / "leases" / "gpu-0.lock")
    if fd is not None:
        os.close(fd)
    return fd is not None


async def there(path: Path) -> None:
    await anyio.to_thread.run_sync(appears, path)


async def test_the_one_who_has_it_is_named_and_the_limit_stands_still(tmp_path: Path) -> None:
    """A child whose limit is shorter than its wait succeeds; the wait is told, with tool and job."""
    lines: list[str] = []
    async with anyio.create_task_group() as tasks:
        holder = "lease.take(); touch('held'); time.sleep(1.5)"
        tasks.start_soon(partial(asking, tmp_path, "job_0000000a", holder))
        await there(tmp_path / "held")
        done = await asking(tmp_path, "job_0000000b", "lease.take()", lines.append, timeout_s=1)
    assert done.ok and done.wall_s < 1 < done.waited_s + 0.4
    assert lines == ["waiting for GPU 0, in use by diagnose job_0000000a"]


async def test_no_two_children_launch_at_once(tmp_path: Path) -> None:
    """Five children that take and leave the lease again and again are never in it together."""
    code = """
for turn in range(4):
    lease.take()
    os.write(log, b"+"); time.sleep(0.01); os.write(log, b"-")
    lease.leave()
    time.sleep(0.002 * turn)
"""
    opened = "log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)\n"
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(partial(asking, tmp_path, f"job{number}", opened + code))
    assert (tmp_path / "log").read_text() == "+-" * 20
    assert free(tmp_path)


async def test_processes_of_one_child_share_it(tmp_path: Path) -> None:
    """A forked child, a subprocess with closed descriptors and threads never wait for their own parent."""
    code = """
import threading
lease.take()
threads = [threading.Thread(target=lease.take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if os.fork() == 0:
    lease.take(); os._exit(0)
os.wait()
if len(sys.argv) == 2:
    code = sys.argv[1]
    subprocess.run([sys.executable, "-I", "-S", "-c", code, code, "last"], check=True)
"""
    directory = tmp_path / "job"
    directory.mkdir()
    argv = python(BEGIN + code, BEGIN + code)
    done = await run(Command(argv, tmp_path, timeout_s=20, gpus=(0,), asks=True), directory)
    assert done.ok and done.waited_s == 0, done.output.read_text()


async def test_a_cancelled_child_leaves_the_queue(tmp_path: Path) -> None:
    """Whoever is cancelled while waiting has no process left and takes no lease later."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(asking, tmp_path, "first", "lease.take(); touch('held'); until('go')"))
        await there(tmp_path / "held")
        with anyio.CancelScope() as scope:
            waited = "open('pid', 'w').write(str(os.getpid())); lease.take(); touch('late')"
            await asking(tmp_path, "second", waited, lambda _: scope.cancel())
        assert all_dead([int((tmp_path / "pid").read_text())], 15.0)
        (tmp_path / "go").touch()
    assert not (tmp_path / "late").exists() and free(tmp_path)


async def test_a_lease_that_was_asked_for_outlives_no_killed_server(tmp_path: Path) -> None:
    """SIGKILL to the server: its child is dead, and the GPU free, within a second."""
    code = """
import sys, anyio
from pathlib import Path
import mcp_server.jobs.gpus as gpus
from mcp_server.jobs.run import run
from mcp_server.jobs.command import Command
directory = Path(sys.argv[1])
gpus.lease_root = lambda: directory / "leases"
command = Command(tuple(sys.argv[2:]), directory, gpus=(0,), asks=True)
anyio.run(run, command, directory)
"""
    child = python(
        BEGIN + "lease.take(); open('pid.part', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.part', 'pid'); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *child], cwd=ROOT) as server:
        pid = int(await anyio.to_thread.run_sync(appears, tmp_path / "pid"))
        assert not free(tmp_path)
        server.send_signal(signal.SIGKILL)
    assert all_dead([pid], 15.0)
    assert within(1.0, partial(free, tmp_path))
