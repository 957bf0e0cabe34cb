"""Requests that share one import of torch: equal results, equal guarantees, no process left."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.jobs.shared_import import Limits, WarmImports, limits_here
from mcp_server.jobs.supervisor import children_of
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events
from mcp_server.worker.events import Event
from tests.jobs.support import FAMILY, alive, all_dead, family
from tests.worker.support import saved
from tests.zoo.names import nightly

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shared_processes")]

DYING = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-I", "-S", "-c", {family!r}, {pids!r}])
while not os.path.exists({pids!r}):
    pass
{end}
"""


def shared(directory: Path, work: Callable[[Context], Awaitable[None]]) -> Context:
    """Do `work` in a context whose requests share an import."""
    context = Context(directory=directory / "job", python=Path(sys.executable))

    async def run() -> None:
        async with context.sharing_imports():
            await work(context)

    anyio.run(run)
    return context


def program(directory: Path, end: str) -> tuple[Path, dict[str, object]]:
    """A request to import a file that starts a family of processes and then runs `end`."""
    pids = directory / "pids"
    module = directory / "dying.py"
    module.write_text(DYING.format(family=FAMILY, pids=str(pids), end=end))
    return pids, {"package": "none.pt2", "inputs": None, "extra_imports": [str(module)]}


def forked(run: WorkerRun) -> bool:
    """Whether the worker found torch imported. The import takes more than a second."""
    begun = run.last(events.Torch)
    assert begun is not None
    return bool(begun.t < 0.5)


def facts(run: WorkerRun) -> list[Event]:
    return list(run.events)


def test_forks_report_what_processes_report(tmp_path: Path) -> None:
    """Events, ending and exit status equal those of a separate worker, and the second import is free.

    If the server is killed, a request sent before that is noticed runs in a new process.
    """
    inputs = saved(tmp_path, "in.pt", [torch.arange(6).view(2, 3)])
    alone = Context(directory=tmp_path / "alone", python=Path(sys.executable))

    async def both(context: Context) -> None:
        own = await alone.worker("describe_inputs", {"inputs": inputs})
        for _ in range(2):
            fork = await context.worker("describe_inputs", {"inputs": inputs})
            assert forked(fork) and not forked(own)
            assert facts(fork) == facts(own)
            assert fork.finished.ok and own.finished.ok
        (supervisor,) = children_of(os.getpid())
        (server,) = children_of(supervisor)
        os.kill(server, signal.SIGKILL)
        late = await context.worker("describe_inputs", {"inputs": inputs})
        assert late.finished.ok and not forked(late)

    context = shared(tmp_path, both)
    assert context.imports is None and context.cost.cost().wall_s > 0.2
    assert children_of(os.getpid()) == []


def test_a_fork_has_its_own_directory_and_variables(tmp_path: Path) -> None:
    """Variables read late are the request's. A variable that an import reads needs another process."""
    (tmp_path / "elsewhere").mkdir()
    module = tmp_path / "told.py"
    module.write_text("import os\nprint(os.getcwd(), os.environ.get('AOTI_RUNTIME_CHECK_INPUTS'))\n1/0\n")
    request = {"package": "none.pt2", "inputs": None, "extra_imports": [str(module)]}

    async def asked(context: Context, env: Mapping[str, str], cwd: Path) -> WorkerRun:
        return await context.worker("run", request, env=env, cwd=cwd)

    async def work(context: Context) -> None:
        first = await asked(context, {}, tmp_path)
        late = await asked(context, {"AOTI_RUNTIME_CHECK_INPUTS": "1"}, tmp_path / "elsewhere")
        early = await asked(context, {"OMP_NUM_THREADS": "1"}, tmp_path)
        assert [forked(first), forked(late), forked(early)] == [True, True, False]
        assert first.finished.stdout.read_text().split() == [str(tmp_path), "None"]
        assert late.finished.stdout.read_text().split() == [str(tmp_path / "elsewhere"), "1"]

    shared(tmp_path, work)


@pytest.mark.parametrize(
    "harm",
    [
        *nightly("torch.cuda._is_in_bad_fork = lambda: True"),
        "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ],
    ids=["device", "thread"],
)
def test_a_module_that_would_harm_a_fork_is_left_out(tmp_path: Path, harm: str) -> None:
    """The server starts again with torch alone, and serves."""
    (tmp_path / "harmful.py").write_text(f"import time, torch\n{harm}\n")
    env = {"PYTHONPATH": str(tmp_path)}
    inputs = saved(tmp_path, "in.pt", [torch.ones(1)])

    async def work(context: Context) -> None:
        context.expect(env=env, modules=("harmful",))
        run = await context.worker("describe_inputs", {"inputs": inputs}, env=env)
        assert run.finished.ok and forked(run)

    shared(tmp_path, work)
    assert children_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("end", "signal_name"),
    [("os.abort()", "SIGABRT"), *nightly(("while True: pass", None))],
    ids=["crash", "hang"],
)
def test_a_fork_that_ends_early_takes_only_its_own(tmp_path: Path, end: str, signal_name: str | None) -> None:
    """A crash, time limit or cancel ends the fork's tree, and the next request is served.

    Leaving the context ends the server.
    """
    inputs = saved(tmp_path, "in.pt", [torch.ones(1)])
    for name in ("dying", "cancelled"):
        (tmp_path / name).mkdir()

    async def work(context: Context) -> None:
        pids, request = program(tmp_path / "dying", end)
        run = await context.worker("run", request, timeout_s=6)
        assert forked(run)
        expected = "signal" if signal_name else "timeout"
        assert (run.finished.ending, run.finished.signal) == (expected, signal_name or "SIGTERM")
        assert all_dead(family(pids), 15.0)
        pids, request = program(tmp_path / "cancelled", "while True: pass")
        with anyio.move_on_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(context.worker, "run", request))
                while not pids.exists():
                    await anyio.sleep(0.02)
                tasks.cancel_scope.cancel()
        assert all_dead(family(pids), 15.0)
        assert forked(await context.worker("describe_inputs", {"inputs": inputs}))

    shared(tmp_path, work)
    assert children_of(os.getpid()) == []


def test_an_interpreter_without_torch_is_refused_as_usual(tmp_path: Path) -> None:
    """Without an import there is no server, and the request itself has the error."""
    inputs = saved(tmp_path, "in.pt", [torch.ones(1)])
    (tmp_path / "torch.py").write_text("raise ImportError('broken torch')")

    async def work(context: Context) -> None:
        with pytest.raises(Exception, match="torch cannot be imported"):
            await context.worker("describe_inputs", {"inputs": inputs}, env={"PYTHONPATH": str(tmp_path)})

    shared(tmp_path, work)


# Fork servers that outlive a job.


Work = Callable[[WarmImports], Awaitable[None]]


def warm_for(work: Work, limits: Limits | None = None) -> None:
    """Run a server that keeps imports warm during `work`, and check that no process is left."""

    async def serve() -> None:
        async with anyio.create_task_group() as tasks:
            await work(WarmImports(tasks, limits))
            tasks.cancel_scope.cancel()

    anyio.run(serve)
    assert children_of(os.getpid()) == []


async def job(warm: WarmImports, tmp_path: Path, env: Mapping[str, str] | None = None) -> WorkerRun:
    """Run a job with one request to the worker."""
    inputs = tmp_path / "in.pt"
    if not inputs.exists():
        saved(tmp_path, "in.pt", [torch.ones(1)])
    number = sum(1 for _ in tmp_path.glob("job*"))
    context = Context(tmp_path / f"job{number}", Path(sys.executable), home=warm)
    async with context.sharing_imports():
        done = await context.worker("describe_inputs", {"inputs": inputs}, env=env)
    assert done.finished.ok
    return done


def pids(warm: WarmImports) -> list[int]:
    return [one.server.pid for one in warm.kept if one.server is not None]


async def ended(pid: int) -> None:
    """Wait until the process has ended."""
    with anyio.fail_after(120):
        while alive(pid):
            await anyio.sleep(0.02)


def test_nothing_that_a_job_did_is_seen_by_the_next(tmp_path: Path) -> None:
    """Modules, variables and directory of a job are not in the next one, which has the same process.

    Other variables need another process, which is kept as well.
    """
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
            assert forked(done)
            assert done.finished.stdout.read_text().split() == ["False", "None", str(tmp_path / name)]
        (first,) = pids(warm)
        assert warm.kept[0].requests == 2
        assert forked(await job(warm, tmp_path, {"OMP_NUM_THREADS": "1"}))
        assert pids(warm)[0] == first and len(pids(warm)) == 2

    warm_for(work)


def test_a_changed_file_is_not_served_from_memory(tmp_path: Path) -> None:
    """A changed module, or a new one on the search path, is found by the next job."""
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
    warm_for(work)


@pytest.mark.parametrize(
    "limits",
    [Limits(idle_s=0.3), *nightly(Limits(requests=1), Limits(memory_bytes=1))],
    ids=["idle", "worn", "grown"],
)
def test_limits_end_a_process_that_no_job_uses(tmp_path: Path, limits: Limits) -> None:
    """Limits do not end a process during its job, but the next job has another."""

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

    warm_for(work, limits)


def test_a_job_that_is_stopped_leaves_its_import_to_the_next(tmp_path: Path) -> None:
    """The import continues if the job that started it is cancelled."""

    async def work(warm: WarmImports) -> None:
        context = Context(tmp_path / "stopped", Path(sys.executable), home=warm)
        with anyio.move_on_after(0.2) as stopped:
            async with context.sharing_imports():
                context.expect()
                await anyio.sleep_forever()
        assert stopped.cancelled_caught
        (begun,) = warm.kept
        assert not begun.users and not begun.tried.is_set()
        assert forked(await job(warm, tmp_path))
        assert warm.kept == [begun]

    warm_for(work)


def test_how_long_is_the_users_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTI_DEBUG_WARM_S sets the seconds. Other values are rejected, with what is allowed."""
    monkeypatch.setenv("AOTI_DEBUG_WARM_S", "30")
    assert limits_here().idle_s == 30
    for wrong in ("long", "-1", "nan", "inf"):
        monkeypatch.setenv("AOTI_DEBUG_WARM_S", wrong)
        with pytest.raises(ProblemError, match="AOTI_DEBUG_WARM_S"):
            limits_here()
    monkeypatch.delenv("AOTI_DEBUG_WARM_S")
    assert limits_here() == Limits()
