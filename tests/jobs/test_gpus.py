"""Two jobs never hold one GPU, and a lease ends with whoever holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.gpus import Waits, leased
from mcp_server.jobs.store import try_lock
from tests.jobs.support import appears

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of these tests alone."""
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path)


@pytest.mark.anyio
async def test_second_job_waits(tmp_path: Path) -> None:
    """A lease is waited for, the holder is named, and it is had once the first is over."""
    order: list[str] = []

    async def second() -> None:
        async with leased(["0", "1"], Waits("job two", order.append)):
            order.append("second runs")

    async with anyio.create_task_group() as tasks, leased(["1"], Waits("job one")):
        tasks.start_soon(second)
        await anyio.sleep(0.15)
        order.append("first ends")
    assert order == ["waiting for GPU 1, in use by job one", "first ends", "second runs"]


@pytest.mark.anyio
async def test_one_order_for_all(tmp_path: Path) -> None:
    """GPUs are taken in one order whatever order was asked for, so that no two jobs wait for each other."""
    waiting = anyio.Event()

    async def both() -> None:
        async with leased(["1", "0"], Waits("both", lambda _: waiting.set())):
            pass

    async with anyio.create_task_group() as tasks, leased(["0"], Waits("one")):
        tasks.start_soon(both)
        await waiting.wait()
        fd = try_lock(tmp_path / "gpu-1.lock")
        assert fd is not None
        os.close(fd)


@pytest.mark.anyio
async def test_different_gpus_do_not_wait(tmp_path: Path) -> None:
    """Jobs on different GPUs run side by side."""
    with anyio.fail_after(1):
        async with leased(["0"], Waits("one")), leased(["1"], Waits("two")):
            pass


@pytest.mark.anyio
async def test_waiting_can_be_cancelled(tmp_path: Path) -> None:
    """A cancelled wait gives back the leases that it had already."""
    async with leased(["1"], Waits("one")):
        with anyio.move_on_after(0.1) as scope:
            async with leased(["0", "1"], Waits("two")):
                pytest.fail("two jobs on one GPU")
        assert scope.cancelled_caught
        with anyio.fail_after(1):
            async with leased(["0"], Waits("three")):
                pass


@pytest.mark.anyio
async def test_lease_ends_with_a_killed_server(tmp_path: Path) -> None:
    """A lease of a server that was killed is free at once."""
    code = """
import sys, time
from pathlib import Path
from mcp_server.jobs.store import try_lock
try_lock(Path(sys.argv[1]) / "gpu-0.lock")
(Path(sys.argv[1]) / "ready").write_text("")
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) as holder:
        await anyio.to_thread.run_sync(appears, tmp_path / "ready")
        assert try_lock(tmp_path / "gpu-0.lock") is None
        holder.kill()
    with anyio.fail_after(1):
        async with leased(["0"], Waits("next")):
            pass


@pytest.mark.anyio
async def test_removed_lock_file(tmp_path: Path) -> None:
    """A lock file that a cleaner removed does not keep the next job from its lease."""
    async with leased(["0"], Waits("one")) as (fd,):
        (tmp_path / "gpu-0.lock").unlink()
        assert fd >= 0
    with anyio.fail_after(1):
        async with leased(["0"], Waits("two")):
            assert (tmp_path / "gpu-0.lock").read_text() == "two"


@pytest.mark.anyio
async def test_lock_that_is_a_link(tmp_path: Path) -> None:
    """A link in place of a lock is refused, not written through."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "gpu-0.lock").symlink_to(victim)
    with pytest.raises(ProblemError):
        async with leased(["0"], Waits("one")):
            pass
    assert victim.read_text() == "precious"
