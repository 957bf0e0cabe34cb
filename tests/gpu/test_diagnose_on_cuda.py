"""Diagnoses and interventions on CUDA workloads, including faults that end the CUDA context."""

from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.interventions.kernel import edit_kernel, replace_launch
from mcp_server.diagnosis.interventions.run import call_of_package, try_interventions
from mcp_server.model import ScriptWorkload, Verdict
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.runtime.context import Context
from tests.gpu.conftest import Answers
from tests.gpu.zoo import CudaZoo

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def verdict(answers: Answers, name: str) -> Verdict:
    result = answers[f"diagnose-{name}"].result()
    assert isinstance(result, Verdict)
    return result


INPUT_FAULTS = [
    ("wrong-device", "device_mismatch", 0),
    ("wrong-dtype", "input_mismatch", 0),
    ("out-of-range", "shape_out_of_range", 0),
    ("bad-index", "index_out_of_bounds", 0),
    ("bad-start", "index_out_of_bounds", 1),
    ("bad-scatter", "index_out_of_bounds", 1),
]


@pytest.mark.parametrize(("name", "category", "position"), INPUT_FAULTS)
def test_a_bad_input_is_guilty(answers: Answers, name: str, category: str, position: int) -> None:
    """A bad input is guilty, and not the kernel or library call that crashed."""
    seen = verdict(answers, name)
    assert (seen.outcome, seen.category) == ("fault", category), seen.summary
    assert seen.guilty is not None
    assert (seen.guilty.kind, seen.guilty.input_index) == ("input", position), seen.summary
    assert seen.fix is not None and seen.evidence


def test_an_index_of_32_bits_is_proven_by_one_of_64(answers: Answers) -> None:
    """The address is 2**32 elements past its tensor, as the code says; a wide index removes the fault."""
    seen = verdict(answers, "bad-wide")
    assert (seen.category, seen.confidence) == ("illegal_memory_access", "proven"), seen.summary
    assert seen.guilty is not None and seen.guilty.name == "wide_kernel"
    assert seen.intervention is not None and "64-bit indices" in seen.intervention.what
    assert any("2**32" in each.fact for each in seen.evidence)


def test_a_grid_that_the_driver_refuses_is_named(answers: Answers) -> None:
    """For 70,000 blocks in y, the verdict names the kernel, the number and the limit."""
    seen = verdict(answers, "bad-tall")
    assert seen.guilty is not None and seen.guilty.name == "tall_kernel", seen.summary
    assert "70,000 blocks in y" in seen.summary and "65,535" in seen.summary


def test_an_assertion_names_the_kernel_that_crashed(answers: Answers) -> None:
    """Besides the guilty input, the verdict has the launch that asserts, its Triton line and the value."""
    seen = verdict(answers, "bad-index")
    assert seen.guilty is not None and "32" in (seen.guilty.value or "")
    assert seen.crashing is not None and seen.crashing.name == "triton_poi_fused_embedding_0"
    assert seen.crashing.launch_index == 0


def test_nan_is_put_on_the_kernel_that_made_it(answers: Answers) -> None:
    """A logarithm of a negative value is put on the fused kernel and the model's line."""
    seen = verdict(answers, "nan")
    assert (seen.outcome, seen.category) == ("fault", "nan_or_inf"), seen.summary
    assert seen.guilty is not None and seen.guilty.kind == "kernel" and "log" in seen.guilty.name
    assert any("torch.log(scale)" in place.code for place in seen.guilty.model_locations)


USER_KERNELS = [
    ("bad-read", "lookup_kernel", None),
    ("bad-write", "spread_kernel", None),
    ("bad-shift", "shift_kernel", 4),
]


PARTS = """
import sys, torch, triton, triton.language as tl
from torch.library import triton_op, wrap_triton

@triton.jit
def parts_kernel(x_ptr, out_ptr, width, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < width, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, axis=0))

@triton_op("own::row_sum", mutates_args={})
def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], device=x.device)
    wrap_triton(parts_kernel)[(x.shape[0], 4)](x, out, x.shape[1], CHUNK=64)
    return out

class Sums(torch.nn.Module):
    def forward(self, x):
        return row_sum(x) + 1

x = torch.randn(8, 256, device="cuda")
package = torch._inductor.aoti_compile_and_package(torch.export.export(Sums(), (x,)), package_path="sums.pt2")
worst = (torch._inductor.aoti_load_package(package)(x) - x.sum(1) - 1).abs().max().item()
if worst > 1e-3:
    sys.exit(f"rows differ by {worst:.3f}")
"""


def test_a_users_kernel_is_proven_by_its_corrected_line(cuda_context: Context, tmp_path: Path) -> None:
    """The program passes with the corrected line and fails without. Its file stays."""
    script = tmp_path / "sums.py"
    script.write_text(PARTS)
    seen = anyio.run(diagnose, cuda_context, ScriptWorkload(script=script, cwd=tmp_path))
    assert (seen.category, seen.confidence) == ("wrong_output", "proven"), seen.summary
    assert seen.fix is not None and seen.fix.after == "tl.atomic_add(out_ptr + row, tl.sum(x, axis=0))"
    assert script.read_text() == PARTS


@pytest.mark.parametrize(("name", "kernel", "launch"), USER_KERNELS)
def test_user_kernels_out_of_bounds(answers: Answers, name: str, kernel: str, launch: int | None) -> None:
    """For an unchecked access in a user's Triton kernel, the verdict names it, and its launch if known.

    If the caller's index is outside its table, the index is at fault.
    """
    seen = verdict(answers, name)
    assert seen.outcome == "fault", seen.summary
    assert seen.category in ("illegal_memory_access", "index_out_of_bounds"), seen.summary
    parties = [party for party in (seen.guilty, seen.crashing) if party is not None]
    named = [party for party in parties if kernel in party.name]
    assert named, [party.name for party in parties]
    assert launch is None or launch in {party.launch_index for party in named}


def test_a_static_cxx_runtime_is_the_toolchain(answers: Answers) -> None:
    """A load that dies of SIGSEGV is put on the static libstdc++, with the compiler to use instead."""
    seen = verdict(answers, "static-toolchain")
    assert (seen.outcome, seen.category) == ("fault", "toolchain"), seen.summary
    assert seen.fix is not None and "CXX" in seen.fix.text


@pytest.mark.parametrize("name", ["good-logarithm", "good-lookup", "good-convolved"])
def test_a_healthy_call_has_no_fault(answers: Answers, name: str) -> None:
    """Good inputs are not accused, nor are convolutions, which round to TF32 in eager mode as well."""
    seen = verdict(answers, name)
    assert (seen.outcome, seen.category) == ("no_fault", None), seen.summary


def test_a_trial_goes_on_after_a_device_assert(cuda_zoo: CudaZoo, cuda_context: Context) -> None:
    """With the offending id clamped, the failure is gone. A bystander in the same trial asserts again."""
    call = call_of_package(cuda_zoo.call("ranker", "bad-index"))
    ids = inputs.Leaf(0, "args[0]")
    changes = [inputs.whole(ids, "contiguous"), inputs.keep_in_range(ids, 0, 31)]
    same, gone = anyio.run(partial(try_interventions, cuda_context, call, changes))
    assert same.effect is Effect.SAME and gone.effect is Effect.GONE and gone.proves
    assert gone.side_effects.known and not gone.side_effects


def test_a_triton_expression_is_compiled_as_inductor_did(cuda_zoo: CudaZoo, cuda_context: Context) -> None:
    """With the logarithm of at least 1e-6, NaN disappears and other rows stay."""
    call = call_of_package(cuda_zoo.call("logarithm", "bad-nan"))
    opened = open_package(cuda_zoo.package("logarithm"))
    kernels = read_wrapper(opened.wrapper_text, opened.kernel_text).kernels
    kernel = next(kernel for kernel in kernels.values() if "tl_math.log(" in kernel.source)
    start = kernel.source.index("tl_math.log(")
    old = kernel.source[start : kernel.source.index(")", start) + 1]
    new = old.replace("log(", "log(triton_helpers.maximum(").replace(")", ", 1e-6))", 1)
    change = anyio.run(partial(edit_kernel, cuda_context, call, kernel.name, old, new))
    (trial,) = anyio.run(partial(try_interventions, cuda_context, call, [change]))
    assert trial.effect is Effect.GONE and trial.proves and not trial.side_effects


def test_a_triton_logarithm_is_guarded_by_launch(cuda_zoo: CudaZoo, cuda_context: Context) -> None:
    """With its argument kept above 0, NaN disappears and other rows stay."""
    call = call_of_package(cuda_zoo.call("logarithm", "bad-nan"))
    opened = open_package(cuda_zoo.package("logarithm"))
    launches = read_wrapper(opened.wrapper_text, opened.kernel_text).run.launches
    (number,) = (launch.index for launch in launches if "log" in launch.kernel)
    guard = anyio.run(partial(replace_launch, cuda_context, call, number, "guard-log"))
    (trial,) = anyio.run(partial(try_interventions, cuda_context, call, [guard]))
    assert trial.effect is Effect.GONE and trial.proves and not trial.side_effects
