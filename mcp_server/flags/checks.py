"""Flags that put checks into the generated code, or take them out.

Read from torch/_inductor/config.py and the code generators of torch 2.8 to 2.15.
"""

from __future__ import annotations

from .types import FIRST_NOT_ZERO, SWITCH, Flag

CHECKS: tuple[Flag, ...] = (
    # codegen/cpp_wrapper_cpu.py:687-839 (2.13): getenv inside the model .so, cached at its first run.
    Flag(
        env="AOTI_RUNTIME_CHECK_INPUTS",
        acts=("run",),
        values=FIRST_NOT_ZERO,
        shows="each input's dtype, static size and stride, dimension range, device type; from 2.13 also "
        "relations between dimensions, and sizes and strides of extern and custom op outputs",
        misses="rank, device index, Python scalars, export guards; can be stricter than the Dim",
        cost="none to speak of; no recompile",
        in_guide=True,
    ),
    Flag(
        env="TORCHINDUCTOR_NAN_ASSERTS",
        config="nan_asserts",
        values=SWITCH,
        shows="after each Triton kernel, NaN or INF in its arguments; from 2.13 in model inputs too",
        misses="CPU kernels, extern kernels, custom ops, outputs; an intended -inf is a false alarm",
        cost="one device synchronisation for each tensor argument of each launch",
        cpu_since=(2, 13),
        before="a CPU model gets no check at all",
        in_guide=True,
    ),
    Flag(
        env="TORCHINDUCTOR_RUNTIME_TRITON_NAN_ASSERTS",
        config="runtime_triton_nan_asserts",
        values=SWITCH,
        shows="device assert `NaN or Inf found` at the Triton line that made the value",
        misses="everything that is not Triton; an intended -inf is a false alarm",
        cost="one comparison for each value in each Triton kernel",
        since=(2, 10),
        device="cuda",
        in_guide=True,
    ),
    Flag(
        env="TORCHINDUCTOR_SIZE_ASSERTS",
        config="size_asserts",
        values=SWITCH,
        shows="default on: the assert_size_stride layer that AOTI_RUNTIME_CHECK_INPUTS activates",
        misses="everything when 0",
        cost="none until AOTI_RUNTIME_CHECK_INPUTS is set",
        since=(2, 13),
        before="the C++ wrapper has no assert_size_stride layer",
    ),
    Flag(
        env="TORCHINDUCTOR_SCALAR_ASSERTS",
        config="scalar_asserts",
        values=SWITCH,
        shows="default on: `Expected u0 <= 5 but received 9` for unbacked sizes, always active",
        misses="guards on sizes of inputs; prints the value of the first free symbol only",
        cost="a comparison on the host",
    ),
    Flag(
        env="TORCHINDUCTOR_UNSAFE_SKIP_SCALAR_RANGE_ASSERTS",
        values=SWITCH,
        shows="nothing: 1 removes range asserts, including those from torch._check",
        misses="what those asserts would have caught",
        since=(2, 15),
    ),
    Flag(
        env="TORCHINDUCTOR_ALIGNMENT_ASSERTS",
        config="alignment_asserts",
        values=SWITCH,
        shows="`Expect the tensor to be 16 bytes aligned`, under AOTI_RUNTIME_CHECK_INPUTS at run time",
        misses="misaligned inputs of a CUDA model, which are cloned with a warning instead",
        since=(2, 15),
        before="not generated in the C++ wrapper",
    ),
    Flag(
        env="TORCHINDUCTOR_ALIGNMENT_ASSERTS_INPUTS",
        values=SWITCH,
        shows="an input that is not 16-byte aligned, without any run-time switch",
        misses="intermediate buffers",
        since=(2, 15),
    ),
    # utils.py:1245 (2.13).
    Flag(
        config="assert_indirect_indexing",
        values=SWITCH,
        shows="default on: `index out of bounds: 0 <= tmpN < BOUND` with the kernel",
        misses="with 0 an out-of-range index is read silently; user-defined Triton kernels never have it",
        cost="small; 0 is only for finding out what lies behind the assert",
        in_guide=True,
    ),
    Flag(
        config="debug_index_asserts",
        values=SWITCH,
        shows="index asserts in decompositions too",
        misses="user-defined Triton kernels",
        cost="more asserts in the kernels",
    ),
    Flag(
        config="do_not_emit_runtime_assertions",
        values=SWITCH,
        shows="nothing: 1 omits run-time assertions, to find out whether one of them is wrong",
        misses="what those assertions would have caught",
        since=(2, 12),
    ),
    Flag(
        config="aot_inductor.check_lowerbound",
        values=SWITCH,
        shows="0 removes the false alarm `expected it to be >= 2` of AOTI_RUNTIME_CHECK_INPUTS",
        misses="with 0 also a dimension that is really too small",
        since=(2, 10),
        in_guide=True,
    ),
    Flag(
        config="aot_inductor.check_upperbound",
        values=SWITCH,
        shows="0 removes upper bounds from AOTI_RUNTIME_CHECK_INPUTS",
        misses="with 0 also a dimension that is really too large",
        since=(2, 15),
    ),
    Flag(
        env="TORCHINDUCTOR_MEMORY_PLANNING",
        config="memory_planning",
        values=SWITCH,
        shows="nothing: pools buffers; keep it 0 while hunting a bad access",
        misses="with 1, no allocator setting can catch an overrun from one buffer of the pool into the next",
    ),
    Flag(
        config="allow_buffer_reuse",
        values=SWITCH,
        shows="0 keeps most buffers apart, so that a stale or overwritten buffer shows",
        misses="outputs and views can still share memory",
        cost="more memory",
    ),
    Flag(
        config="inplace_buffers",
        values=SWITCH,
        shows="0 stops kernels from writing over their inputs",
        misses="outputs and views can still share memory",
        cost="more memory",
    ),
)
