"""The calls that the tests judge: every tool, on failing and healthy CUDA workloads."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.model import PackageWorkload, Record, TensorSpec
from mcp_server.runtime.context import Context
from tests.gpu.zoo import CONVOLVED, TF32, CudaZoo
from tests.support.tools import asked

Call = Callable[[Context, CudaZoo], Awaitable[Record]]

PRINTER = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
CPU_IDS = TensorSpec(shape=[8, 6], dtype="int64", device="cpu", low=0, high=31)
TOO_MANY = TensorSpec(shape=[70, 6], dtype="int64", device="cuda:0", low=0, high=31)


async def _printed(context: Context, zoo: CudaZoo) -> Any:
    """Compile with the value printer, run, and explain its output: PyTorch's own procedure."""
    program = zoo.exported("logarithm", "bad-nan")
    compiled = await asked("compile_with_flags", context, program, flags={PRINTER: 2})
    assert compiled.package is not None, compiled.failure
    inputs = zoo.inputs("logarithm", "bad-nan")
    workload = PackageWorkload(package=compiled.package.path, inputs=inputs, timeout_s=60)
    ran = await asked("run_deterministic", context, workload, repeats=1)
    return await asked("explain_error", context, log=ran.runs[0].log.path)


def compared(name: str, tool: str = "compare_with_eager") -> Call:
    """Compare a healthy package with its program."""
    return lambda context, zoo: asked(
        tool, context, zoo.call(name, "inputs"), exported=zoo.exported(name, "inputs").exported
    )


def of(tool: str, name: str, inputs: str | list[TensorSpec]) -> Call:
    return lambda context, zoo: asked(tool, context, zoo.call(name, inputs))


def diagnosed(name: str, inputs: str | list[TensorSpec]) -> Call:
    return lambda context, zoo: diagnose(context, zoo.call(name, inputs), budget_s=150)


# In the order in which the tests need them, the long ones of each kind first.
CALLS: dict[str, Call] = {
    "compile-with-printer": _printed,
    "check-wrong-dtype": of("check_devices", "ranker", "bad-dtype"),
    "repeat-bad-index": of("run_deterministic", "ranker", "bad-index"),
    "dump-nan": of("dump_kernel_io", "logarithm", "bad-nan"),
    "trace-shift": of("trace_launches", "user_shift", "bad-read"),
    "compare-logarithm": compared("logarithm"),
    "compare-ranker": compared("ranker"),
    "compare-tf32": compared(TF32),
    "diagnose-wrong-device": diagnosed("ranker", [CPU_IDS]),
    "diagnose-wrong-dtype": diagnosed("ranker", "bad-dtype"),
    "diagnose-out-of-range": diagnosed("ranker", [TOO_MANY]),
    "diagnose-bad-index": diagnosed("ranker", "bad-index"),
    "diagnose-bad-start": diagnosed("jagged", "bad-index"),
    "diagnose-bad-scatter": diagnosed("scatter", "bad-index"),
    "diagnose-nan": diagnosed("logarithm", "bad-nan"),
    "diagnose-bad-read": diagnosed("user_lookup", "bad-read"),
    "diagnose-bad-write": diagnosed("user_spread", "bad-write"),
    "diagnose-bad-shift": diagnosed("user_shift", "bad-read"),
    "diagnose-bad-wide": diagnosed("user_wide", "bad-rows"),
    "diagnose-bad-tall": diagnosed("user_tall", "bad-rows"),
    "diagnose-static-toolchain": lambda context, zoo: diagnose(context, zoo.static_call(), budget_s=150),
    "diagnose-good-logarithm": diagnosed("logarithm", "inputs"),
    "diagnose-good-lookup": diagnosed("user_lookup", "inputs"),
    "diagnose-good-convolved": compared(CONVOLVED, "diagnose"),
}
