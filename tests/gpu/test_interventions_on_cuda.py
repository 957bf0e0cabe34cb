"""Interventions after faults that leave a CUDA context of no use, and a Triton kernel compiled anew."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.interventions.kernel import edit_kernel, replace_launch
from mcp_server.diagnosis.interventions.run import call_of_package, try_interventions
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.runtime.context import Context
from tests.gpu.zoo import CudaZoo

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_a_device_assert_ends_each_process_and_the_trial_goes_on(
    cuda_zoo: CudaZoo, cuda_context: Context
) -> None:
    """The offending id clamped: gone; a bystander in the same trial: the same assert again."""
    call = call_of_package(cuda_zoo.call("ranker", "bad-index"))
    ids = inputs.Leaf(0, "args[0]")
    changes = [inputs.contiguous(ids), inputs.keep_in_range(ids, 0, 31)]
    same, gone = anyio.run(partial(try_interventions, cuda_context, call, changes))
    assert same.effect is Effect.SAME and gone.effect is Effect.GONE and gone.proves
    assert gone.side_effects.known and not gone.side_effects


def test_a_triton_expression_is_replaced_and_compiled_as_inductor_did(
    cuda_zoo: CudaZoo, cuda_context: Context
) -> None:
    """The logarithm of what is at least 1e-6: NaN goes, and the rows without it stay."""
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
    """Its argument kept above 0: the NaN goes, and the rows without it stay."""
    call = call_of_package(cuda_zoo.call("logarithm", "bad-nan"))
    opened = open_package(cuda_zoo.package("logarithm"))
    launches = read_wrapper(opened.wrapper_text, opened.kernel_text).run.launches
    (number,) = (launch.index for launch in launches if "log" in launch.kernel)
    guard = anyio.run(partial(replace_launch, cuda_context, call, number, "guard-log"))
    (trial,) = anyio.run(partial(try_interventions, cuda_context, call, [guard]))
    assert trial.effect is Effect.GONE and trial.proves and not trial.side_effects
