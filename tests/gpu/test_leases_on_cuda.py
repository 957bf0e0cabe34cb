"""Leases on a machine that has a GPU: its names, and a CUDA package's call that waits for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs.gpus import Waits, device_names, known_gpus, leased
from mcp_server.runtime.context import Context
from mcp_server.tools.requests import run_request
from mcp_server.worker import events
from tests.gpu.zoo import CudaZoo

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture
def own_leases(tmp_path: Path, cuda_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of this test alone, though the other tests share the GPU."""
    monkeypatch.setenv("AOTI_DEBUG_SHARE_GPUS", "0")
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")


def test_the_gpus_of_this_machine_have_one_name_each(cuda_environment: None) -> None:
    """What `nvidia-smi` lists is read: by index and by UUID each GPU is one lease."""
    asked = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\n")
    gpus = [line.split(", ") for line in listed if line]
    known = known_gpus()
    assert [[str(gpu.index), gpu.uuid] for gpu in known] == gpus
    for index, uuid in gpus:
        assert device_names((0,), uuid, known) == device_names((0,), index, known)


def test_a_call_waits_for_its_gpu(own_leases: None, cuda_zoo: CudaZoo, tmp_path: Path) -> None:
    """A call waits while another job has the GPU, and then comes back."""
    told: list[str] = []
    context = Context(tmp_path / "job", Path(sys.executable), progress=told.append)
    workload = cuda_zoo.call("ranker", "inputs")
    holder = "trace_launches job_0000000a"

    async def other_job(taken: anyio.Event) -> None:
        async with leased(device_names((0,), None, known_gpus()), Waits(holder)):
            taken.set()
            while not any(line.startswith("waiting for GPU") for line in told):
                await anyio.sleep(0.05)
            await anyio.sleep(1)

    async def work() -> None:
        taken = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other_job, taken)
            await taken.wait()
            done = await context.worker("run", run_request(workload))
            assert done.finished.ok and done.last(events.Called) is not None
            assert done.finished.waited_s > 0.5

    anyio.run(work)
    assert told[0] == "making the call" and told[1].endswith(f"in use by {holder}")
    assert context.cost.cost().waited_s > 0.5
