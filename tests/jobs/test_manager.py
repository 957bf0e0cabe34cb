"""Jobs have handles, outlive the request, and lose no finished work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import JOBS_VARIABLE, Job, JobState, Manager, load, most_at_once
from mcp_server.jobs.store import Store
from mcp_server.model import Cost
from tests.jobs.support import FAMILY, all_dead, appears, family, finish, python

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).resolve().parents[2]

Work = Callable[[Job], Awaitable[Cost]]


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    async with Manager.open(Store(tmp_path / "state")) as manager:
        yield manager


async def quick(job: Job) -> Cost:
    job.progress("\x1b[1mhalf\x1b[0m way\n")
    return Cost(runs=1)


async def endless(job: Job) -> Cost:
    job.progress("sleeping")
    await anyio.sleep(60)
    return Cost()


async def refused(job: Job) -> Cost:
    async with anyio.create_task_group():
        raise ProblemError("no such file", value=3, allowed="a file", next_call="look again")
    return Cost()


async def broken(job: Job) -> Cost:
    raise KeyError("oops\x1b[2J")


async def test_finished(manager: Manager) -> None:
    """Work that ends within the wait comes back with its result and its progress."""
    job = manager.start("quick", quick)
    state = await manager.wait(job.id, 5)
    assert (state.job_id, state.kind, state.state) == (job.id, "quick", "finished")
    assert state.result == {"runs": 1, "compiles": 0, "wall_s": 0.0, "waited_s": 0.0}
    assert state.progress == ["half way"]
    assert 0 <= state.wall_s < 5


async def test_numbers_that_json_lacks(manager: Manager) -> None:
    """NaN in a result is null at once, not only when the result is read again from disk."""

    async def odd(job: Job) -> Cost:
        return Cost(wall_s=float("nan"))

    job = manager.start("odd", odd)
    state = await manager.wait(job.id, 5)
    assert state.result is not None and state.result["wall_s"] is None
    assert await manager.wait(job.id, 0) == state


async def test_running(manager: Manager) -> None:
    """Work that takes longer is running, and waiting for it takes no longer than asked."""
    job = manager.start("endless", endless)
    with anyio.fail_after(1):
        state = await manager.wait(job.id, 0.05)
    assert (state.state, state.progress, state.result) == ("running", ["sleeping"], None)


async def test_outlives_the_request(manager: Manager) -> None:
    """A cancelled wait does not touch the job."""
    gate = anyio.Event()

    async def gated(job: Job) -> Cost:
        await gate.wait()
        return Cost()

    job = manager.start("gated", gated)
    with anyio.move_on_after(0.02):
        await manager.wait(job.id, 60)
    gate.set()
    assert (await manager.wait(job.id, 5)).state == "finished"


async def test_stopped(manager: Manager) -> None:
    """Stopping kills all processes of the job before it answers, and stays the answer."""

    async def work(job: Job) -> Cost:
        await finish(job.path, python(FAMILY, str(job.path / "pids")))
        return Cost()

    job = manager.start("run", work)
    pids = await anyio.to_thread.run_sync(family, job.path / "pids")
    state = await manager.stop(job.id)
    assert all_dead(pids, 0)
    assert (state.state, state.result) == ("stopped", None)
    assert await manager.wait(job.id, 1) == state == await manager.stop(job.id)


async def test_stopping_finished_work(manager: Manager) -> None:
    """Stopping what is finished keeps the result."""
    job = manager.start("quick", quick)
    state = await manager.wait(job.id, 5)
    assert await manager.stop(job.id) == state


async def test_problem(manager: Manager) -> None:
    """A ProblemError, also from inside a task group, comes back with all its parts."""
    state = await manager.wait(manager.start("refused", refused).id, 5)
    assert state.state == "failed"
    assert state.problem is not None
    assert state.problem.model_dump() == {
        "what": "no such file",
        "value": "3",
        "allowed": "a file",
        "next_call": "look again",
        "asks": "",
        "choices": (),
    }


async def test_defect(manager: Manager) -> None:
    """An error nobody foresaw is called a defect, its stack is kept, and other jobs go on."""
    job = manager.start("broken", broken)
    state = await manager.wait(job.id, 5)
    assert state.problem is not None
    assert state.problem.what == "defect in this tool: KeyError: 'oops\\x1b[2J'"
    assert "in broken" in (job.path / "traceback.log").read_text()
    assert (await manager.wait(manager.start("quick", quick).id, 5)).state == "finished"


@pytest.mark.parametrize("handle", ["job_00000000", "../../etc", ""])
async def test_unknown_handle(handle: str, manager: Manager) -> None:
    """A handle of no job is a clear error for waiting and for stopping."""
    with pytest.raises(ProblemError):
        await manager.wait(handle, 0)
    with pytest.raises(ProblemError):
        await manager.stop(handle)


async def test_result_survives_the_server(tmp_path: Path) -> None:
    """A later server answers for the jobs of an earlier one: finished ones, and those it took along."""
    store = Store(tmp_path / "state")
    async with Manager.open(store) as first:
        done = await first.wait(first.start("quick", quick).id, 5)
        lost = first.start("endless", endless)
        await first.wait(lost.id, 0.02)
    async with Manager.open(Store(store.root)) as second:
        assert await second.wait(done.job_id, 0) == done
        assert (await second.wait(lost.id, 0)).state == "stopped"


async def test_job_of_a_killed_server(tmp_path: Path) -> None:
    """A job whose server was killed is stopped, with the reason; before that it is running, and not ours."""
    code = """
import sys
import anyio
from pathlib import Path
from mcp_server.jobs.store import Store
from mcp_server.jobs.manager import Manager; from tests.jobs.test_manager import endless
async def main():
    async with Manager.open(Store(Path(sys.argv[1]))) as manager:
        (Path(sys.argv[1]) / "id").write_text(manager.start("endless", endless).id)
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
            state = await manager.wait(job_id, 5)
    assert state.state == "stopped"
    assert state.problem is not None and "server" in state.problem.what


async def test_disk_that_refuses_the_result(manager: Manager) -> None:
    """When the result cannot be written it is still answered as long as the server lives."""

    async def blocked(job: Job) -> Cost:
        (job.path / "result.json").mkdir()
        return Cost(runs=7)

    job = manager.start("blocked", blocked)
    state = await manager.wait(job.id, 5)
    assert state.result is not None and state.result["runs"] == 7
    assert load(job.path) is None
    assert await manager.wait(job.id, 0) == state


async def test_progress_is_bounded(manager: Manager) -> None:
    """Only the last lines of progress are kept, none of them long."""

    async def chatty(job: Job) -> Cost:
        for number in range(100):
            job.progress(f"{number} " + "x" * 1_000)
        return Cost()

    state = await manager.wait(manager.start("chatty", chatty).id, 5)
    assert [line.split()[0] for line in state.progress] == [str(number) for number in range(80, 100)]
    assert max(map(len, state.progress)) == 300


async def test_old_jobs_make_room(tmp_path: Path) -> None:
    """After each job the store is swept; a swept handle is a clear error."""
    store = Store(tmp_path / "state")
    store.cap_jobs, store.keep = 2, 0
    async with Manager.open(store) as manager:
        states: list[JobState] = []
        for _ in range(4):
            states.append(await manager.wait(manager.start("quick", quick).id, 5))
        with anyio.fail_after(5):
            while len(manager.store.ids()) > 2:
                await anyio.sleep(0.01)
        with pytest.raises(ProblemError, match="swept"):
            await manager.wait(states[0].job_id, 0)
        assert await manager.wait(states[-1].job_id, 0) == states[-1]


async def test_heavy_jobs_wait_for_their_turn(tmp_path: Path) -> None:
    """Two run at once, the others say that they wait, in turn; light work does not; a stop frees a place."""
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
        assert (await manager.wait(manager.start("quick", quick).id, 5)).state == "finished"
        await manager.stop(jobs[3])
        await manager.stop(jobs[0])
        await anyio.wait_all_tasks_blocked()
        assert begun == jobs[:3]


async def test_an_error_of_the_user_of_a_manager_stays_as_it_is(tmp_path: Path) -> None:
    """It is not wrapped into a group, and the jobs end all the same."""
    with pytest.raises(ProblemError, match=r"^mine$"):
        async with Manager.open(Store(tmp_path / "state")) as manager:
            manager.start("endless", endless)
            raise ProblemError("mine")


@pytest.mark.parametrize("said", ["0", "-1", "x", "1e3", "٣", "99999"])
async def test_a_number_of_jobs_that_is_none(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a whole number of jobs is one."""
    for text, at_least in (("", 4), ("3", 3)):
        monkeypatch.setenv(JOBS_VARIABLE, text)
        assert most_at_once() >= at_least
    monkeypatch.setenv(JOBS_VARIABLE, said)
    with pytest.raises(ProblemError, match=JOBS_VARIABLE):
        most_at_once()
