"""Jobs and their store: handles, limits, and what other servers may see."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.gpus import Clock
from mcp_server.jobs.manager import Job, Manager
from mcp_server.jobs.store import Store
from mcp_server.model import Cost
from tests.conftest import ROOT
from tests.jobs.support import appears, endless


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state")


# The store.


def limited(root: Path, *, cap_bytes: int = 1 << 30, cap_jobs: int = 500, keep: int = 0) -> Store:
    """Create a store with low limits."""
    store = Store(root)
    store.cap_bytes, store.cap_jobs, store.keep = cap_bytes, cap_jobs, keep
    return store


def finished(store: Store, size: int = 0) -> Any:
    """Create a job that has ended and left a file of `size` bytes."""
    job = store.create("test")
    (job.path / "data").write_bytes(b"x" * size)
    job.release()
    return job


@pytest.mark.parametrize("mode", [0o1777, 0o775])
def test_root_that_others_may_write(mode: int, tmp_path: Path) -> None:
    """A directory that others may write, such as /tmp, is refused and not changed."""
    tmp_path.chmod(mode)
    with pytest.raises(ProblemError, match="others may write"):
        Store(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode


@pytest.mark.parametrize(
    "handle",
    ["", "job_", "job_1234567", "job_1234567g", "job_12345678\n", "../jobs/job_12345678", "job_12345678/.."],
)
def test_malformed_handle(handle: str, store: Store) -> None:
    """A malformed handle is refused, and is never used as a path."""
    with pytest.raises(ProblemError, match="not a job handle"):
        store.find(handle)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_root_of_somebody_else(tmp_path: Path) -> None:
    """A state directory of another user is refused, and so is a link in its place."""
    (tmp_path / "state").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "state")
    with pytest.raises(ProblemError, match="a link to one"):
        Store(tmp_path / "other")
    os.chown(tmp_path / "state", 12345, 12345)
    with pytest.raises(ProblemError, match="another user"):
        Store(tmp_path / "state")


def test_sweep_removes_the_oldest(tmp_path: Path) -> None:
    """Beyond the cap, the oldest jobs go first, whatever the clock says."""
    store = limited(tmp_path / "state", cap_bytes=300_000)
    jobs = [finished(store, 100_000) for _ in range(4)]
    os.utime(jobs[0].path, (4e9, 4e9))
    assert store.sweep() == [jobs[0].id, jobs[1].id]
    assert store.ids() == [jobs[2].id, jobs[3].id]
    assert sorted(path.name for path in store.jobs.iterdir()) == sorted(store.ids())


def test_sweep_spares_the_newest(tmp_path: Path) -> None:
    """The newest jobs stay even if each one is too large: their results may not have been read yet."""
    store = limited(tmp_path / "state", cap_bytes=10, keep=2)
    jobs = [finished(store, 100_000) for _ in range(3)]
    assert store.sweep() == [jobs[0].id]


def test_sweep_spares_running_jobs(tmp_path: Path) -> None:
    """A running job is never removed, not even by another server."""
    store = limited(tmp_path / "state", cap_jobs=0)
    job = store.create("test")
    assert limited(store.root, cap_jobs=0).sweep() == []
    assert store.is_running(store.find(job.id))
    job.release()
    assert not store.is_running(store.find(job.id))
    assert store.sweep() == [job.id]


def test_sweep_does_not_follow_links(tmp_path: Path) -> None:
    """The target of a link in a job is neither counted nor removed."""
    store = limited(tmp_path / "state", cap_bytes=50_000)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_bytes(b"x" * 100_000)
    job = finished(store)
    (job.path / "link").symlink_to(outside)
    assert store.sweep() == []
    store.cap_jobs = 0
    assert store.sweep() == [job.id]
    assert (outside / "data").exists()


def test_two_servers_at_once(tmp_path: Path) -> None:
    """Jobs that several servers make and sweep at the same time get distinct handles and numbers."""

    def make(_: int) -> tuple[str, int]:
        store = limited(tmp_path / "state", cap_jobs=3)
        job = finished(store)
        store.sweep()
        return job.id, job.number

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(40)))
    assert len({job_id for job_id, _ in made}) == 40
    assert sorted(number for _, number in made) == list(range(1, 41))
    assert len(Store(tmp_path / "state").ids()) <= 3


# Jobs.


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    async with Manager.open(Store(tmp_path / "state")) as manager:
        yield manager


async def quick(job: Job) -> Cost:
    job.progress("\x1b[1mhalf\x1b[0m way\n")
    return Cost(runs=1)


async def broken(job: Job) -> Cost:
    raise KeyError("oops\x1b[2J")


async def test_defect(manager: Manager) -> None:
    """An unexpected error is reported as a defect, its traceback is kept, and other jobs continue."""
    job = manager.start("broken", broken)
    state = await manager.wait(job.id, 60)
    assert state.problem is not None
    assert state.problem.what == "defect in this tool: KeyError: 'oops\\x1b[2J'"
    assert "in broken" in (job.path / "traceback.log").read_text()
    assert (await manager.wait(manager.start("quick", quick).id, 60)).state == "finished"


async def test_result_survives_the_server(tmp_path: Path) -> None:
    """A later server answers for the jobs of an earlier one, finished or not."""
    store = Store(tmp_path / "state")
    async with Manager.open(store) as first:
        done = await first.wait(first.start("quick", quick).id, 60)
        lost = first.start("endless", endless)
        await first.wait(lost.id, 0.02)
    async with Manager.open(Store(store.root)) as second:
        assert await second.wait(done.job_id, 0) == done
        assert (await second.wait(lost.id, 0)).state == "stopped"


async def test_job_of_a_killed_server(tmp_path: Path) -> None:
    """A job of another server is running until that server is killed. Then it is stopped, with the reason."""
    code = """
import sys
import anyio
from pathlib import Path
from mcp_server.jobs.store import Store
from mcp_server.jobs.manager import Manager; from tests.jobs.support import endless
async def main():
    new = Path(sys.argv[1]) / "new"
    async with Manager.open(Store(new.parent)) as manager:
        new.write_text(manager.start("endless", endless).id)
        new.rename(new.parent / "id")
        await anyio.sleep(60)
anyio.run(main)
"""
    root = tmp_path / "state"
    with subprocess.Popen([sys.executable, "-c", code, str(root)], cwd=ROOT) as server:
        job_id = await anyio.to_thread.run_sync(appears, root / "id")
        async with Manager.open(Store(root)) as manager:
            assert (await manager.wait(job_id, 0.05)).state == "running"
            with pytest.raises(ProblemError, match="another server"):
                await manager.stop(job_id)
            server.kill()
            state = await manager.wait(job_id, 60)
    assert state.state == "stopped"
    assert state.problem is not None and "server" in state.problem.what


async def test_disk_that_refuses_the_result(manager: Manager) -> None:
    """A result that cannot be written is returned as long as the server lives."""

    async def blocked(job: Job) -> Cost:
        (job.path / "result.json").mkdir()
        return Cost(runs=7)

    job = manager.start("blocked", blocked)
    state = await manager.wait(job.id, 60)
    assert state.result is not None and state.result["runs"] == 7
    assert await manager.wait(job.id, 0) == state


async def test_old_jobs_make_room(tmp_path: Path) -> None:
    """The store is swept after each job. The handle of a removed job gives a clear error."""
    store = Store(tmp_path / "state")
    store.cap_jobs, store.keep = 2, 0
    async with Manager.open(store) as manager:
        states: list[Any] = []
        for _ in range(4):
            states.append(await manager.wait(manager.start("quick", quick).id, 60))
        with anyio.fail_after(60):
            while len(manager.store.ids()) > 2:
                await anyio.sleep(0.01)
        with pytest.raises(ProblemError, match="removed to make room"):
            await manager.wait(states[0].job_id, 0)
        assert await manager.wait(states[-1].job_id, 0) == states[-1]


async def test_heavy_jobs_wait_for_their_turn(tmp_path: Path) -> None:
    """Two heavy jobs run at once; others say that they wait. Light jobs do not wait. A stop makes room."""
    async with Manager.open(Store(tmp_path / "state"), 2) as manager:
        begun: list[str] = []

        async def endless_work(job: Job) -> Cost:
            begun.append(job.id)
            await anyio.sleep_forever()
            raise AssertionError

        jobs = [manager.start("heavy", endless_work, heavy=True).id for _ in range(4)]
        await anyio.wait_all_tasks_blocked()
        assert begun == jobs[:2]
        said = [(await manager.wait(job, 0)).progress[-1:] for job in jobs]
        assert said[:2] == [[], []] and "2 jobs run" in said[2][0] and "1 wait before" in said[3][0]
        assert (await manager.wait(manager.start("quick", quick).id, 60)).state == "finished"
        await manager.stop(jobs[3])
        await manager.stop(jobs[0])
        await anyio.wait_all_tasks_blocked()
        assert begun == jobs[:3]


# The clock.

SLACK_S = 15.0  # allowance for a busy machine


async def test_a_limit_stands_still_with_the_clock() -> None:
    """A limit of 0.3 s ends after 0.9 s if 0.6 s were spent waiting, and the wait is reported."""
    clock, began = Clock(), time.monotonic()
    with clock.limit(0.3) as limit:
        with clock.blocked():
            await anyio.sleep(0.6)
        await anyio.sleep(20)
    assert limit.cancelled_caught
    assert 0.85 < time.monotonic() - began < 0.9 + SLACK_S
    assert 0.55 < clock.waited_s < 0.6 + SLACK_S
    assert clock.wall_s - clock.waited_s == pytest.approx(clock.worked_s, abs=0.05)


def test_a_job_waits_when_none_of_its_children_works() -> None:
    """The clock runs while one child works and another waits, perhaps for the lease of the first."""
    clock = Clock()
    with clock.child():
        with clock.child(), clock.blocked():
            assert not still(clock)
        with clock.blocked():
            assert still(clock)
            with clock.child():
                assert not still(clock)
            assert still(clock)
    assert not still(clock)


def still(clock: Clock) -> bool:
    before = clock.waited_s
    time.sleep(0.002)
    return clock.waited_s > before
