"""The tools, leases and the recorder on CUDA workloads."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs.gpus import Waits, device_names, leased
from mcp_server.recorder.ring import read_recording
from mcp_server.runtime.context import Context
from mcp_server.tools.requests import run_request
from mcp_server.worker import events
from tests.gpu.conftest import Answers
from tests.gpu.zoo import CudaZoo
from tests.support.command import answered, output_of
from tests.support.tools import asked

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LOGARITHM = "h = h.sigmoid() * torch.log(scale)"


def test_the_machine_is_told_with_its_gpu(answers: Answers) -> None:
    """The machine has torch with CUDA, the GPU with its memory, and kernels for its architecture."""
    result = answers["check-wrong-dtype"].result()
    machine = result.machine
    assert machine.cuda_available and machine.torch_cuda and machine.driver_cuda and machine.triton
    gpu = machine.gpus[0]
    assert gpu.capability.isdigit()
    assert result.package is not None and result.package.compute_capability == gpu.capability
    assert [problem.what for problem in result.problems if problem.certain] == []


def test_a_bad_index_is_stable_and_its_root_is_the_assertion(answers: Answers) -> None:
    """Three runs fail in the same way. The root is the device assertion, and not cuBLAS's later status."""
    result = answers["repeat-bad-index"].result()
    assert (result.pattern, result.failing) == ("stable", 3)
    assert {run.failure.family for run in result.runs if run.failure} == {"device_assert_index"}


def test_the_crash_leads_to_the_input(answers: Answers, cuda_zoo: CudaZoo, cuda_context: Context) -> None:
    """From real output and package, the launch that asserts and the input behind the index are named."""
    repeated = answers["repeat-bad-index"].result()
    log = repeated.runs[0].log.path
    explain = partial(asked, "explain_error", cuda_context, log=log, package=cuda_zoo.package("ranker"))
    told = anyio.run(explain)
    assert told.known and told.family == "device_assert_index" and told.candidates[0] == "index_out_of_bounds"
    assert "< 32" in told.text and told.count >= 1
    fact = told.trace[0]
    assert fact["launch"] == 0 and fact["kernel"] == "triton_poi_fused_embedding_0"
    assert any("args[0]" in source for source in fact["index_from"])


def test_the_first_nan_is_put_on_its_launch(answers: Answers) -> None:
    """The fused kernel with the logarithm wrote NaN from good inputs. Its line in the model is named."""
    result = answers["dump-nan"].result()
    assert result.returned and result.first_bad is not None
    bad = result.first_bad
    assert (bad.kind, bad.launch, bad.element.index) == ("kernel", 1, [0, 5])
    assert "log" in bad.kernel and bad.inputs_were_good is True
    assert LOGARITHM in [location.code for location in bad.locations]


def test_the_printer_sees_the_same_nan(answers: Answers) -> None:
    """A package compiled with the value printer at level 2 names the same kernel in its log."""
    result = answers["compile-with-printer"].result()
    assert any("is the first with NaN or infinity" in note and "log" in note for note in result.notes)


def test_synchronous_tracing_stops_at_the_launch_that_faults(answers: Answers) -> None:
    """Three launches share one kernel. Only the third reads out of bounds, and it is named."""
    result = answers["trace-shift"].result()
    assert result.how == "fault" and result.last is not None and result.last.state == "fault"
    shifts = [row.launch for row in result.launches if row.kernel == "shift_kernel_0"]
    assert len(shifts) == 3 and result.last.launch == shifts[2]
    assert any("shift(b.sin()" in place.code for place in result.last.model)


@pytest.mark.parametrize("name", ["logarithm", "ranker"])
def test_a_healthy_package_agrees_with_eager(answers: Answers, name: str) -> None:
    """Split products, padded weights and fused kernels do not diverge."""
    result = answers[f"compare-{name}"].result()
    assert result.outcome == "agrees" and result.kind is None, result.summary
    assert (result.deterministic, result.reads_unset) == (True, False)
    assert result.every_launch.judged >= 2 and not result.every_launch.wrong


def test_products_in_tf32_are_told_from_errors(answers: Answers) -> None:
    """Compiled with TF32, the package diverges from full float32 as much as TF32 explains.

    The first product cannot be judged if the autotuner fused its tanh into the second.
    """
    result = answers["compare-tf32"].result()
    assert (result.outcome, result.kind) == ("differs", "tf32"), result.summary
    first = result.every_launch.wrong[0]
    assert first.tf32 and 0 in (first.launch, *first.suspects), result.summary


@pytest.fixture
def own_leases(tmp_path: Path, cuda_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of this test alone, although other tests share the GPU."""
    monkeypatch.setenv("AOTI_DEBUG_SHARE_GPUS", "0")
    monkeypatch.setattr("mcp_server.jobs.gpus.lease_root", lambda: tmp_path / "leases")


def test_a_call_waits_for_its_gpu(own_leases: None, cuda_zoo: CudaZoo, tmp_path: Path) -> None:
    """A call waits while another job has the GPU, and then returns."""
    told: list[str] = []
    context = Context(tmp_path / "job", Path(sys.executable), progress=told.append)
    workload = cuda_zoo.call("ranker", "inputs")
    holder = "trace_launches job_0000000a"

    async def other_job(taken: anyio.Event) -> None:
        async with leased(device_names((0,), None), Waits(holder)):
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
    assert told[0] == "step 1: making the call" and told[1].endswith(f"in use by {holder}")
    assert context.cost.cost().waited_s > 0.5


PROGRAM = """
import statistics, sys, time, torch
from pathlib import Path
how, package, good, bad = sys.argv[1:]
good, bad = ([leaf.cuda() for leaf in torch.load(file)] for file in (good, bad))
model = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
for _ in range(20):
    model.run(list(good))
torch.cuda.synchronize()
times = []
for _ in range(300):
    start = time.perf_counter()
    model.run(list(good))
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
print(statistics.median(times))
if how == "bad":
    model.run(list(bad))
    torch.cuda.synchronize()
"""


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory: CUDA pins no memory of files on disk (seen on an H100, driver of CUDA 13.0)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_call_that_a_device_assert_ended_is_taken_from_the_recording(
    cuda_zoo: CudaZoo, tmp_path: Path, in_memory: Path
) -> None:
    """The host died. The bad index is found in what the stream had copied before."""
    call = cuda_zoo.call("ranker", "bad-index")
    recorded, kept = tmp_path / "recorded.pt2", in_memory
    answered("record", call.package, "--out", recorded, "--directory", kept)
    files = [str(cuda_zoo.inputs("ranker", name)) for name in ("inputs", "bad-index")]
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, "bad", str(recorded), *files]
    assert subprocess.run(argv, capture_output=True, timeout=300).returncode != 0
    (ring,) = kept.glob("*.ring")
    last = read_recording(ring).calls[-1]
    assert last.on_device and last.inputs[0].bytes is not None, "the index was not kept"
    verdict = answered("diagnose", call.package, "--recording", kept)
    assert verdict["category"] == "index_out_of_bounds", verdict["summary"]
    assert verdict["confidence"] == "proven"


def test_the_recorder_costs_a_call_nothing(cuda_zoo: CudaZoo, tmp_path: Path, in_memory: Path) -> None:
    """Medians of 300 calls, process by process, are within a tenth in one of three rounds."""
    call = cuda_zoo.call("ranker", "inputs")
    recorded = tmp_path / "recorded.pt2"
    answered("record", call.package, "--out", recorded, "--directory", in_memory)
    files = [str(cuda_zoo.inputs("ranker", "inputs"))] * 2
    ratios = []
    for _ in range(3):
        medians = []
        for package in (call.package, recorded, recorded, call.package):
            argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, "good", str(package), *files]
            done = output_of(argv, timeout=300, check=True)
            medians.append(float(done.stdout.split()[-1]))
        ratios.append((medians[1] + medians[2]) / (medians[0] + medians[3]))
    assert min(ratios) < 1.1, ratios
