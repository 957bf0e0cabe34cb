"""Flags that act when a package is loaded or run: no recompile needed."""

from __future__ import annotations

from .types import COUNT, FIRST_NOT_ZERO, SWITCH, TEXT, Flag

RUNTIME: tuple[Flag, ...] = (
    # libc10_cuda: forceUncachedAllocator() through c10::utils::check_env, 2.8 to 2.15.
    Flag(
        env="PYTORCH_NO_CUDA_MEMORY_CACHING",
        alias="PYTORCH_NO_HIP_MEMORY_CACHING",
        acts=("run",),
        values=SWITCH,
        shows="an access outside a buffer, which the caching allocator would hide",
        misses="weights (one cudaMalloc block) and overruns inside one allocation; CUDA graph capture fails "
        "under it",
        cost="one cudaMalloc and cudaFree for each buffer",
        device="cuda",
        in_guide=True,
    ),
    Flag(
        env="CUDA_LAUNCH_BLOCKING",
        acts=("run",),
        values=SWITCH,
        shows="an asynchronous fault at the launch that caused it",
        misses="the kernel's name: combine with printer level 3 or launch probes",
        cost="launches run one after the other",
        device="cuda",
        in_guide=True,
    ),
    Flag(
        env="TORCH_SHOW_CPP_STACKTRACES",
        acts=("load", "run"),
        values=SWITCH,
        shows="C++ frames of load errors; symbolised frames of run errors (plain ones come anyway from 2.13)",
        misses="faults of the device",
        in_guide=True,
    ),
    # torch/_inductor/config.py:30 (2.13): read at import, used by the ISA probe of compile and of load.
    Flag(
        env="TORCHINDUCTOR_VEC_ISA_OK",
        config="cpp.vec_isa_ok",
        acts=("compile", "load"),
        values=SWITCH,
        shows="1 skips the CPU instruction-set probe, which took 32-46 s of a load on one H200 (2.11)",
        misses="with 1, nothing tests whether the compiler can build for this CPU's instruction set",
        in_guide=True,
    ),
    # _inductor/codegen/debug_utils.py and aoti_torch of 2.15.
    Flag(
        env="AOTI_TORCH_SAVE_DIR",
        acts=("run",),
        values=TEXT,
        shows="where printer level 1 saves its tensors",
        misses="packages compiled without level 1",
        since=(2, 15),
        before="files go below tmp/ of the working directory",
    ),
    Flag(
        env="AOTI_LOG_LOADING",
        acts=("load",),
        values=FIRST_NOT_ZERO,
        shows="`[AOTI_LOAD] load_constants: starting H2D copy of N constants`",
        since=(2, 14),
    ),
    Flag(
        env="AOTI_COPY_USE_PINNED_ASYNC",
        acts=("load",),
        values=SWITCH,
        shows="nothing: how weights are copied to the device",
        since=(2, 14),
        device="cuda",
    ),
    Flag(
        env="AOTI_COPY_STAGE_BUFFER_BYTES",
        acts=("load",),
        values=COUNT,
        shows="nothing: size of the staging buffer for weights, bytes",
        since=(2, 14),
        device="cuda",
    ),
    Flag(
        env="AOTI_COPY_STAGE_CPU_THREADS",
        acts=("load",),
        values=COUNT,
        shows="nothing: threads that stage weights",
        since=(2, 15),
        device="cuda",
    ),
    Flag(
        env="AOTI_CUDA_COPY_CHUNK_SIZE",
        acts=("load",),
        values=COUNT,
        shows="nothing: throttles the copy of weights",
        since=(2, 13),
        device="cuda",
    ),
    Flag(
        env="AOTI_CUDA_COPY_SLEEP_US",
        acts=("load",),
        values=COUNT,
        shows="nothing: throttles the copy of weights, microseconds",
        since=(2, 13),
        device="cuda",
    ),
)
