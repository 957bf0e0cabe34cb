"""The tools on CUDA workloads: wrong device, dtype and range, a bad index, NaN, a launch that faults."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from mcp_server.runtime.context import Context
from mcp_server.tools.check_devices import DevicesChecked
from mcp_server.tools.divergence import ComparedWithEager
from mcp_server.tools.explain_error import Explanation, explain_error
from mcp_server.tools.kernel_io import KernelIO
from mcp_server.tools.run_deterministic import Repeated
from mcp_server.tools.trace_launches import Trace
from tests.gpu.conftest import Answers
from tests.gpu.zoo import CudaZoo

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

LOGARITHM = "h = h.sigmoid() * torch.log(scale)"


def checked(answers: Answers, name: str) -> DevicesChecked:
    result = answers[name].result()
    assert isinstance(result, DevicesChecked)
    return result


def test_a_cpu_input_to_a_cuda_package_is_named(answers: Answers) -> None:
    """The input and both devices are told from the files, before anything runs."""
    (mismatch,) = checked(answers, "check-wrong-device").mismatches
    assert (mismatch.category, mismatch.aspect, mismatch.input_index) == ("device_mismatch", "device", 0)
    assert (mismatch.expected.partition(":")[0], mismatch.got.partition(":")[0]) == ("cuda", "cpu")


def test_a_wrong_dtype_is_named(answers: Answers) -> None:
    """int32 ids where the package was compiled for int64."""
    (mismatch,) = checked(answers, "check-wrong-dtype").mismatches
    assert (mismatch.aspect, mismatch.expected, mismatch.got) == ("dtype", "int64", "int32")


def test_a_batch_out_of_range_is_named(answers: Answers) -> None:
    """70 rows where 2 to 64 were compiled."""
    (mismatch,) = checked(answers, "check-out-of-range").mismatches
    assert (mismatch.category, mismatch.dim, mismatch.got) == ("shape_out_of_range", 0, "70")


def test_the_machine_is_told_with_its_gpu(answers: Answers) -> None:
    """torch with CUDA, the GPU with its memory, and kernels that fit its architecture."""
    result = checked(answers, "check-wrong-dtype")
    machine = result.machine
    assert machine.cuda_available and machine.torch_cuda and machine.driver_cuda and machine.triton
    gpu = machine.gpus[0]
    assert gpu.capability.isdigit()
    assert result.package is not None and result.package.compute_capability == gpu.capability
    assert [problem.what for problem in result.problems if problem.certain] == []


def test_a_static_cxx_runtime_is_seen_in_the_file(answers: Answers) -> None:
    """A CUDA package without libstdc++.so.6 would crash at load: certain, and the fix names the compiler."""
    result = checked(answers, "check-static-toolchain")
    assert result.package is not None and result.package.cxx_runtime is None
    (problem,) = [p for p in result.problems if p.certain]
    assert problem.category == "toolchain" and problem.fix is not None and "CXX=" in problem.fix.text


def test_a_bad_index_is_stable_and_its_root_is_the_assertion(answers: Answers) -> None:
    """Three runs fail alike, and the root is the device assertion, not the status that cuBLAS gives later."""
    result = answers["repeat-bad-index"].result()
    assert isinstance(result, Repeated)
    assert (result.pattern, result.failing) == ("stable", 3)
    assert {run.failure.family for run in result.runs if run.failure} == {"device_assert_index"}


def test_the_text_of_the_crash_leads_to_the_input(
    answers: Answers, cuda_zoo: CudaZoo, cuda_context: Context
) -> None:
    """The child's real output and the package: the launch that asserts, and the input behind the index."""
    repeated = answers["repeat-bad-index"].result()
    assert isinstance(repeated, Repeated)
    log = repeated.runs[0].log.path
    explain = partial(explain_error, cuda_context, log=log, package=cuda_zoo.package("ranker"))
    told = anyio.run(explain)
    assert told.known and told.family == "device_assert_index" and told.candidates[0] == "index_out_of_bounds"
    assert "< 32" in told.text and told.count >= 1
    fact = told.trace[0]
    assert fact["launch"] == 0 and fact["kernel"] == "triton_poi_fused_embedding_0"
    assert any("args[0]" in source for source in fact["index_from"])


def test_the_first_nan_is_put_on_its_launch(answers: Answers) -> None:
    """The fused kernel with the logarithm wrote it, from good inputs; its line in the model is told."""
    result = answers["dump-nan"].result()
    assert isinstance(result, KernelIO)
    assert result.returned and result.first_bad is not None
    bad = result.first_bad
    assert (bad.kind, bad.launch, bad.element.index) == ("kernel", 1, [0, 5])
    assert "log" in bad.kernel and bad.inputs_were_good is True
    assert LOGARITHM in [location.code for location in bad.locations]


def test_the_printer_sees_the_same_nan(answers: Answers) -> None:
    """A package compiled with the value printer at level 2 names the same kernel in its log."""
    result = answers["compile-with-printer"].result()
    assert isinstance(result, Explanation)
    assert any("is the first with NaN or infinity" in note and "log" in note for note in result.notes)


def test_synchronous_tracing_stops_at_the_launch_that_faults(answers: Answers) -> None:
    """Three launches share one kernel; only the third reads out of bounds, and it is named."""
    result = answers["trace-shift"].result()
    assert isinstance(result, Trace)
    assert result.how == "fault" and result.last is not None and result.last.state == "fault"
    shifts = [row.launch for row in result.launches if row.kernel == "shift_kernel_0"]
    assert len(shifts) == 3 and result.last.launch == shifts[2]
    assert any("shift(b.sin()" in place.code for place in result.last.model)


@pytest.mark.parametrize("name", ["logarithm", "ranker"])
def test_a_healthy_package_agrees_with_eager(answers: Answers, name: str) -> None:
    """Split products, padded weights and fused kernels are no departures."""
    result = answers[f"compare-{name}"].result()
    assert isinstance(result, ComparedWithEager)
    assert result.outcome == "agrees" and result.kind is None, result.summary
    assert (result.deterministic, result.reads_unset) == (True, False)
    assert result.every_launch.judged >= 2 and not result.every_launch.wrong


def test_products_in_tf32_are_told_from_errors(answers: Answers) -> None:
    """Compiled with TF32 and compared with full float32: it departs, as much as TF32 explains.

    The first product cannot be judged where the autotuner fused its tanh into the second.
    """
    result = answers["compare-tf32"].result()
    assert isinstance(result, ComparedWithEager)
    assert (result.outcome, result.kind) == ("differs", "tf32"), result.summary
    first = result.every_launch.wrong[0]
    assert first.tf32 and 0 in (first.launch, *first.suspects), result.summary
