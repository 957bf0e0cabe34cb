"""Steps lease a GPU when their workload comes to launch something on it, and not before."""

from __future__ import annotations

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

from mcp_server.jobs.command import Command
from mcp_server.jobs.gpus import Waits, leased
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.runtime.launchers import ONLY_FIRST, launched, separate_ranks
from mcp_server.tools.capture import capture, hooked
from tests.conftest import ZooPackage
from tests.jobs.support import appears
from tests.zoo.names import nightly, thorough

LOAD = "import torch\ntorch._C._aoti.AOTIModelPackageLoader({package!r}, 'model', False, 1, -1)\n"
HOLDER = "locate_fault job_0000000a"
WAITING = f"waiting for GPU 0, in use by {HOLDER}"


@pytest.fixture(autouse=True)
def a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device file, and leases of this test alone."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr("mcp_server.runtime.context.DEVICES", tmp_path / "dev")
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")


def cuda_package(tmp_path: Path) -> Path:
    """A file that says that it is for CUDA; torch refuses to load it, which is late enough for a lease."""
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
    """Another job that has the GPU, and gives it back after `until`."""
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
def test_a_script_has_no_lease_before_it_loads(tmp_path: Path) -> None:
    """Import and compile go on while another job has the GPU; the load waits, and that is no run time."""
    told: list[str] = []
    script = tmp_path / "serve.py"
    package = str(cuda_package(tmp_path))
    script.write_text("open('compiled', 'w')\n" + LOAD.format(package=package))
    context = context_in(tmp_path, told)

    async def until() -> None:
        await anyio.to_thread.run_sync(appears, tmp_path / "compiled")
        while WAITING not in told:
            await anyio.sleep(0.02)
        await anyio.sleep(1)

    async def work() -> None:
        async with other_job(until):
            seen = await capture(context, ScriptWorkload(script=script, cwd=tmp_path), gpus=gpus_of(None))
            assert [load.outcome for load in seen.loads] == ["failed"]
            assert seen.finished.ending == "exit" and seen.finished.waited_s > 0.9

    anyio.run(work)
    cost = context.cost.cost()
    assert told == ["running serve.py, its compile included", WAITING]
    assert 0.9 < cost.waited_s <= cost.wall_s
    assert (tmp_path / "leases" / "gpu-0.lock").read_text() == "diagnose job_b"


@pytest.mark.slow
def test_a_cpu_package_waits_for_nobody(zoo: ZooPackage, tmp_path: Path) -> None:
    """On a machine with a GPU that is in use, what loads a CPU package or a CPU library just runs."""
    package = zoo("ranker")
    inputs = package.with_name("ranker.inputs.pt")
    script = tmp_path / "serve.py"
    script.write_text(
        f"import torch\nmodel = torch._inductor.aoti_load_package({str(package)!r})\n"
        f"model(*torch.load({str(inputs)!r}))\n"
        "try:\n    torch._C._aoti.AOTIModelContainerRunnerCpu('none.so', 1)\nexcept RuntimeError:\n    pass\n"
    )
    context = context_in(tmp_path, [])

    async def work() -> None:
        async with other_job(anyio.sleep_forever):
            seen = await capture(context, ScriptWorkload(script=script, cwd=tmp_path), gpus=gpus_of(None))
            assert seen.finished.ok and [call.outcome for call in seen.calls] == ["ok"]
            assert (await context.worker("run", {"package": package, "inputs": inputs})).finished.ok

    anyio.run(work)
    assert context.cost.cost().waited_s == 0


@pytest.mark.slow
@pytest.mark.parametrize("share", [True, *nightly(False)], ids=["shared import", "alone"])
def test_a_worker_imports_torch_without_a_lease(tmp_path: Path, share: bool) -> None:
    """A request that loads a CUDA package comes as far as that without the GPU, forked or not."""
    told: list[str] = []
    context = context_in(tmp_path, told)
    request = {"package": cuda_package(tmp_path)}

    async def until() -> None:
        while WAITING not in told:
            await anyio.sleep(0.02)
        (report,) = (tmp_path / "job").glob("*-run/report.jsonl")
        assert json.loads(report.read_text().splitlines()[-1])["event"] == "torch"

    async def work() -> None:
        async with other_job(until):
            done = await context.worker("run", request)
            assert done.phases("loading") and done.finished.waited_s > 0

    async def shared() -> None:
        async with context.sharing_imports():
            await work()

    anyio.run(shared if share else work)
    assert told == ["making the call", WAITING]


@pytest.mark.slow
def test_what_does_not_ask_has_it_from_the_start(tmp_path: Path) -> None:
    """A host in C++, or Python without the hook, leases the GPU before it begins."""
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
    assert told == ["running touch", WAITING]
    assert [hooked(("python3.12", "a.py")), hooked(("python", "-I", "a.py"))] == [True, False]
    assert not hooked(("./host", "model.pt2")) and not hooked(("torchrun", "a.py"))


@pytest.mark.slow
def test_jobs_that_share_gpus_lease_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTI_DEBUG_SHARE_GPUS=1 holds for a worker's own choice of a GPU, too."""
    monkeypatch.setenv("AOTI_DEBUG_SHARE_GPUS", "1")
    context = context_in(tmp_path, [])

    async def work() -> None:
        async with other_job(anyio.sleep_forever):
            done = await context.worker("run", {"package": cuda_package(tmp_path)})
            assert done.phases("loading") and done.finished.waited_s == 0

    anyio.run(work)


# Ranks under a launcher: their lines apart, and one of them answering for the worker.


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
    """Only to launchers that are known, and only where the prefix does not say otherwise."""
    assert launched(prefix, ["python", "x.py"], Path("d")) == (*prefix, *added, "python", "x.py")


def test_lines_of_each_rank(tmp_path: Path) -> None:
    """As srun labels them; lines of the launcher itself belong to nobody."""
    output = tmp_path / "output.log"
    output.write_text("0: one\n1: two\nsrun: error\n10: three\n0: four\n")
    paths = separate_ranks(output, ["srun"])
    assert [(path.name, path.read_text()) for path in paths] == [
        ("0.log", "one\nfour\n"),
        ("1.log", "two\n"),
        ("10.log", "three\n"),
    ]


@pytest.mark.parametrize("variable", ["RANK", *nightly("SLURM_PROCID", "PMI_RANK")])
def test_a_tool_runs_once(variable: str) -> None:
    """What is no run of the workload, such as a compiler, is done by the first rank alone."""
    said = [
        subprocess.check_output([*ONLY_FIRST, "echo", "two words"], env={variable: rank}, text=True)
        for rank in ("0", "1")
    ]
    assert said == ["two words\n", ""]


@thorough
@pytest.mark.slow
def test_torchrun_with_two_ranks(tmp_path: Path) -> None:
    """A real launch: each rank's lines are in a file of its own."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    command = Command(argv=(sys.executable, "-c", PROGRAM), cwd=tmp_path, timeout_s=600)
    finished = anyio.run(lambda: context.run(command, "both", runs=1))
    assert finished.ok
    logs = {path.name: path.read_text().strip() for path in (finished.output.parent / "ranks").iterdir()}
    assert logs == {"0.log": "rank 0 is here", "1.log": "rank 1 is here"}


@pytest.mark.slow
def test_one_rank_answers_for_the_worker(tmp_path: Path) -> None:
    """A request is carried out by rank 0 alone: the report has each event once."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    done = anyio.run(lambda: context.worker("probe", {}, cwd=tmp_path))
    assert done.finished.ok and len(done.phases("finished")) == 1
