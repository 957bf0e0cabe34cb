"""A GPU has one name and serves one job at a time; the lease ends with its holder."""

import fcntl
import json
import subprocess
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Command
from mcp_server.jobs.gpus import Waits, device_names, leased
from mcp_server.model import CommandWorkload
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.runtime.failure import ONLY_FIRST, launched
from mcp_server.tools.capture import capture
from tests.conftest import Zoo
from tests.jobs.support import appears
from tests.zoo.names import nightly, thorough


@pytest.fixture(autouse=True)
def a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a device file, and leases that only this test uses."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr("mcp_server.runtime.context.DEVICES", tmp_path / "dev")
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")


async def test_second_job_waits(tmp_path: Path) -> None:
    """The second job waits for the lease, names the holder, and runs once the first job ends."""
    order: list[str] = []

    async def second() -> None:
        async with leased(["0", "1"], Waits("job two", order.append)):
            order.append("second runs")

    async with anyio.create_task_group() as tasks, leased(["1"], Waits("job one")):
        tasks.start_soon(second)
        await anyio.sleep(0.15)
        order.append("first ends")
    assert order == ["waiting for GPU 1, in use by job one", "first ends", "second runs"]


async def test_lock_that_is_a_link(tmp_path: Path) -> None:
    """A link in place of a lock file is refused, so nothing is written through it."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "gpu-0.lock").symlink_to(victim)
    with pytest.raises(ProblemError):
        async with leased(["0"], Waits("one")):
            pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("gpus", "visible", "names"),
    [
        ((0, 1), None, ("0", "1")),
        ((1, 0, 1), None, ("0", "1")),
        ((0,), "", ()),
        ((0,), "3,2", ("3",)),
        ((0, 1), "GPU-abc, 5", ("5", "GPU-abc")),
        ((7,), "3", ("7",)),
    ],
)
def test_device_names(gpus: tuple[int, ...], visible: str | None, names: tuple[str, ...]) -> None:
    """An index counts the entries of the child's CUDA_VISIBLE_DEVICES."""
    assert device_names(gpus, visible) == names


def in_use(lock: Path) -> bool:
    """Whether somebody holds the lock."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


HOLDER = "locate_fault job_0000000a"
WAITING = f"waiting for GPU 0, in use by {HOLDER}"


def cuda_package(tmp_path: Path) -> Path:
    """Write a file with the metadata of a CUDA package. torch refuses to load it, but after the lease."""
    path = tmp_path / "cuda.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        name = "cuda/data/aotinductor/model/model.wrapper_metadata.json"
        archive.writestr(name, json.dumps({"AOTI_DEVICE_KEY": "cuda"}))
    return path


def context_in(tmp_path: Path, told: list[str]) -> Context:
    (tmp_path / "job").mkdir()
    return Context(tmp_path / "job", Path(sys.executable), progress=told.append, holder="diagnose job_b")


@asynccontextmanager
async def other_job(until: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run another job that holds the GPU until `until` returns."""
    taken = anyio.Event()

    async def use() -> None:
        async with leased(["0"], Waits(HOLDER)):
            taken.set()
            await until()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        await taken.wait()
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.slow
def test_a_cpu_package_waits_for_nobody(zoo: Zoo, tmp_path: Path) -> None:
    """The call of a CPU package runs even if another job has the GPU."""
    package = zoo("ranker")
    inputs = package.with_name("ranker.inputs.pt")
    context = context_in(tmp_path, [])

    async def work() -> None:
        async with other_job(anyio.sleep_forever):
            assert (await context.worker("run", {"package": package, "inputs": inputs})).finished.ok

    anyio.run(work)
    assert context.cost.cost().waited_s == 0


@pytest.mark.slow
def test_children_of_one_job_share_its_lease(tmp_path: Path) -> None:
    """Two children that wait for each other run at once, and another job waits until both have ended."""
    told: list[str] = []
    context = context_in(tmp_path, told)
    meet = "touch {mine}; until [ -e {other} ] && [ -e {seen} ]; do sleep 0.02; done"
    seen = tmp_path / "seen"

    async def child(mine: str, other: str) -> None:
        argv = ("sh", "-c", meet.format(mine=tmp_path / mine, other=tmp_path / other, seen=seen))
        command = Command(argv, tmp_path, timeout_s=60, gpus=(0,))
        assert (await context.run(command, mine)).ok

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child, "a", "b")
            tasks.start_soon(child, "b", "a")
            await anyio.to_thread.run_sync(appears, tmp_path / "a")
            assert in_use(tmp_path / "leases" / "gpu-0.lock")
            seen.touch()
        assert not in_use(tmp_path / "leases" / "gpu-0.lock")

    anyio.run(work)
    assert context.cost.cost().waited_s == 0 and context.leases == {}


@pytest.mark.slow
def test_a_program_waits_before_it_begins(tmp_path: Path) -> None:
    """A program that may use the GPU leases it before it starts. The wait is reported separately."""
    told: list[str] = []
    context = context_in(tmp_path, told)

    async def until() -> None:
        await anyio.sleep(0.6)
        assert not (tmp_path / "began").exists()

    async def work() -> None:
        async with other_job(until):
            workload = CommandWorkload(argv=["touch", "began"], cwd=tmp_path)
            began = time.monotonic()
            seen = await capture(context, workload, gpus=gpus_of(None))
            assert seen.finished.ok and time.monotonic() - began > 0.5
            assert seen.finished.waited_s > 0.4 and seen.finished.wall_s < 60

    anyio.run(work)
    assert told == ["step 1: running touch", WAITING]
    assert (tmp_path / "leases" / "gpu-0.lock").read_text() == "diagnose job_b"


@pytest.mark.slow
def test_jobs_that_share_gpus_lease_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AOTI_DEBUG_SHARE_GPUS=1 the worker leases no GPU either."""
    monkeypatch.setenv("AOTI_DEBUG_SHARE_GPUS", "1")
    context = context_in(tmp_path, [])

    async def work() -> None:
        async with other_job(anyio.sleep_forever):
            done = await context.worker("run", {"package": cuda_package(tmp_path)})
            assert done.phases("loading") and done.finished.waited_s == 0

    anyio.run(work)


# Ranks under a launcher.


TORCHRUN = Path(sys.executable).parent / "torchrun"
PROGRAM = "import os; print('rank', os.environ['RANK'], 'is here')"


@pytest.mark.parametrize(
    "prefix, added",
    [
        (["torchrun"], ["--no-python", "--log-dir", "d/torchrun", "--tee", "3"]),
        (["/opt/bin/torchrun", "--no-python", "--log-dir=x", "-t", "0:1"], []),
        (["srun", "--gpus=1"], ["--label"]),
        (["nice", "-n", "5"], []),
        ([], []),
    ],
)
def test_options_are_added_once(prefix: list[str], added: list[str]) -> None:
    """Options are added only to known launchers, and only if the prefix does not set them."""
    assert launched(prefix, ["python", "x.py"], Path("d")) == (*prefix, *added, "python", "x.py")


@pytest.mark.parametrize("variable", ["RANK", *nightly("SLURM_PROCID", "PMI_RANK")])
def test_a_tool_runs_once(variable: str) -> None:
    """A child that is not a run of the workload, such as a compiler, runs only in the first rank."""
    argv = [*ONLY_FIRST, "echo", "two words"]
    said = [subprocess.check_output(argv, env={variable: rank}, text=True) for rank in ("0", "1")]
    assert said == ["two words\n", ""]


@thorough
def test_torchrun_with_two_ranks(tmp_path: Path) -> None:
    """In a real launch, each rank has a file with its lines."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    command = Command(argv=(sys.executable, "-c", PROGRAM), cwd=tmp_path, timeout_s=600)
    finished = anyio.run(lambda: context.run(command, "both", runs=1))
    assert finished.ok
    logs = {path.name: path.read_text().strip() for path in (finished.output.parent / "ranks").iterdir()}
    assert logs == {"0.log": "rank 0 is here", "1.log": "rank 1 is here"}


@pytest.mark.slow
def test_one_rank_answers_for_the_worker(tmp_path: Path) -> None:
    """Only rank 0 carries out a request, so the report has each event once."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    done = anyio.run(lambda: context.worker("probe", {}, cwd=tmp_path))
    assert done.finished.ok and len(done.phases("finished")) == 1
