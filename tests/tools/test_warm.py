"""Imports of torch that outlive a job: found again where they fit, and ended when they should not be used."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.jobs.supervisor import children_of
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.runtime.shared_import import Imported, Limits, WarmImports, limits_here
from mcp_server.worker import events
from tests.jobs.support import alive, all_dead
from tests.worker.support import saved

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shared_processes")]

Work = Callable[[WarmImports], Awaitable[None]]


def served(work: Work, limits: Limits | None = None) -> None:
    """A server that keeps imports warm while `work` goes on; nothing is left of it."""

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            await work(WarmImports(tasks, limits))
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    assert children_of(os.getpid()) == []


async def job(warm: WarmImports, tmp_path: Path, env: Mapping[str, str] | None = None) -> WorkerRun:
    """One job with one request to the worker."""
    inputs = tmp_path / "in.pt"
    if not inputs.exists():
        saved(tmp_path, "in.pt", [torch.ones(1)])
    number = sum(1 for _ in tmp_path.glob("job*"))
    context = Context(tmp_path / f"job{number}", Path(sys.executable), home=warm)
    async with context.sharing_imports():
        done = await context.worker("describe_inputs", {"inputs": inputs}, env=env)
    assert done.finished.ok
    return done


def forked(run: WorkerRun) -> bool:
    """Whether the worker found torch imported already: the import takes a second and more."""
    begun = run.last(events.Torch)
    assert begun is not None
    return bool(begun.t < 0.5)


def pids(warm: WarmImports) -> list[int]:
    return [one.server.pid for one in warm.kept if one.server is not None]


async def ended(pid: int) -> None:
    """Return once the process is gone."""
    with anyio.fail_after(20):
        while alive(pid):
            await anyio.sleep(0.02)


def test_the_next_job_finds_torch_imported(tmp_path: Path) -> None:
    """Two jobs are forked from one process; other variables need another one, which is kept as well."""

    async def work(warm: WarmImports) -> None:
        assert forked(await job(warm, tmp_path))
        first = pids(warm)
        assert forked(await job(warm, tmp_path))
        assert pids(warm) == first and warm.kept[0].requests == 2
        assert forked(await job(warm, tmp_path, {"OMP_NUM_THREADS": "1"}))
        assert pids(warm)[0] == first[0] and len(pids(warm)) == 2

    served(work)


def test_nothing_that_a_job_did_is_seen_by_the_next(tmp_path: Path) -> None:
    """Modules, variables and the directory of one job are gone in the next, which has the same process."""
    module = tmp_path / "marks.py"
    module.write_text(
        "import os, sys\nprint(hasattr(sys, 'marked'), os.environ.get('MARKED'), os.getcwd())\n"
        "sys.marked = os.environ['MARKED'] = 'yes'\n1/0\n"
    )
    request = {"package": "none.pt2", "extra_imports": [str(module)]}

    async def work(warm: WarmImports) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            context = Context(tmp_path / f"job-{name}", Path(sys.executable), home=warm)
            async with context.sharing_imports():
                done = await context.worker("run", request, cwd=tmp_path / name)
            assert done.finished.stdout.read_text().split() == ["False", "None", str(tmp_path / name)]
        assert len(pids(warm)) == 1 and warm.kept[0].requests == 2

    served(work)


def test_a_changed_file_is_not_served_from_memory(tmp_path: Path) -> None:
    """A module that was written anew, or a new one where modules are searched, is found by the next job."""
    searched = tmp_path / "lib"
    searched.mkdir()
    (searched / "sitecustomize.py").write_text("import helper\n")
    (searched / "helper.py").write_text("VALUE = 1\n")
    os.utime(searched, (1, 1))
    env = {"PYTHONPATH": str(searched), "PYTHONDONTWRITEBYTECODE": "1"}

    async def work(warm: WarmImports) -> None:
        await job(warm, tmp_path, env)
        (first,) = pids(warm)
        (searched / "helper.py").write_text("VALUE = 2 + 2\n")
        await job(warm, tmp_path, env)
        (second,) = [pid for pid in pids(warm) if pid != first]
        (searched / "numpy_of_mine.py").write_text("")
        await job(warm, tmp_path, env)
        assert second != pids(warm)[-1] != first

    for name in ("helper.py", "sitecustomize.py"):
        os.utime(searched / name, (1, 1))
    served(work)


@pytest.mark.parametrize(
    "limits", [Limits(idle_s=0.3), Limits(requests=1), Limits(memory_bytes=1)], ids=["idle", "worn", "grown"]
)
def test_limits_end_a_process_that_no_job_uses(tmp_path: Path, limits: Limits) -> None:
    """It outlives the job that uses it, whatever its limits say; the next job has its own."""

    async def work(warm: WarmImports) -> None:
        context = Context(tmp_path / "job", Path(sys.executable), home=warm)
        inputs = saved(tmp_path, "in.pt", [torch.ones(1)])
        async with context.sharing_imports():
            await context.worker("describe_inputs", {"inputs": inputs})
            (pid,) = pids(warm)
            await anyio.sleep(0.6)
            assert alive(pid) and pids(warm) == [pid]
        await ended(pid)
        assert forked(await job(warm, tmp_path)) and pid not in pids(warm)

    served(work, limits)


def test_the_longest_unused_makes_room(tmp_path: Path) -> None:
    """With room for one, the process of other surroundings is ended when its job has ended."""

    async def work(warm: WarmImports) -> None:
        await job(warm, tmp_path)
        (first,) = pids(warm)
        await job(warm, tmp_path, {"OMP_NUM_THREADS": "1"})
        await ended(first)
        assert len(warm.kept) == 1 and first not in pids(warm)

    served(work, Limits(processes=1))


def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    """The job that finds it gone does without, the next one has a new process."""

    async def work(warm: WarmImports) -> None:
        await job(warm, tmp_path)
        (pid,) = pids(warm)
        os.kill(pid, signal.SIGKILL)
        await job(warm, tmp_path)
        await job(warm, tmp_path)
        assert forked(await job(warm, tmp_path)) and pid not in pids(warm)

    served(work)


def test_a_job_that_is_stopped_leaves_its_import_to_the_next(tmp_path: Path) -> None:
    """The import goes on when the job that began it is cancelled."""

    async def work(warm: WarmImports) -> None:
        context = Context(tmp_path / "stopped", Path(sys.executable), home=warm)
        with anyio.move_on_after(0.2) as stopped:
            async with context.sharing_imports():
                context.expect()
                await anyio.sleep_forever()
        assert stopped.cancelled_caught
        (begun,) = warm.kept
        assert isinstance(begun, Imported) and not begun.users and not begun.tried.is_set()
        assert forked(await job(warm, tmp_path))
        assert warm.kept == [begun]

    served(work)


def test_they_end_with_the_server(tmp_path: Path) -> None:
    """Leaving the server's tasks kills them all within a second."""
    found: list[int] = []

    async def work(warm: WarmImports) -> None:
        await job(warm, tmp_path)
        await job(warm, tmp_path, {"OMP_NUM_THREADS": "1"})
        found.extend(pids(warm))

    served(work)
    assert len(found) == 2 and all_dead(found, 1.0)


def test_how_long_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTI_DEBUG_WARM_S sets the seconds; what is none is refused with what is allowed."""
    monkeypatch.setenv("AOTI_DEBUG_WARM_S", "30")
    assert limits_here().idle_s == 30
    for wrong in ("long", "-1", "nan", "inf"):
        monkeypatch.setenv("AOTI_DEBUG_WARM_S", wrong)
        with pytest.raises(ProblemError, match="AOTI_DEBUG_WARM_S"):
            limits_here()
    monkeypatch.delenv("AOTI_DEBUG_WARM_S")
    assert limits_here() == Limits()
