"""Flags that print, save, name or trace what generated code does, and flags read at load or run time."""

from __future__ import annotations

from .types import COUNT, FIRST_NOT_ZERO, KERNELS, LEVEL, PROVENANCE, REPRO, TEXT, Flag, Need

PRINTING: tuple[Flag, ...] = (
    # _inductor/codegen/debug_utils.py (2.13).
    Flag(
        env="AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER",
        config="aot_inductor.debug_intermediate_value_printer",
        values=LEVEL,
        shows="1 saves, 2 prints tensors before and after each launch; 3 prints kernel names",
        misses="proxy-executor ops, scatter, index_put; on C++ and extern kernels weights and views",
        cost="1 and 2 synchronise around each launch; 3 is unflushed printf: run with PYTHONUNBUFFERED=1",
        in_guide=True,
    ),
    Flag(
        env="AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT",
        config="aot_inductor.filtered_kernel_names",
        values=KERNELS,
        shows="printer level 2 for these kernels only",
        misses="levels 1 and 3 ignore it; part of a name matches nothing; model inputs are printed anyway",
        needs=(
            Need(
                "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER",
                "2",
                "the filter acts at printer level 2 only",
            ),
        ),
        in_guide=True,
    ),
    Flag(
        env="INDUCTOR_PROVENANCE",
        config="trace.provenance_tracking_level",
        values=PROVENANCE,
        shows="kernel_information.json in the package: kernel -> your source lines",
        misses="nothing at run time by itself",
        cost="compile time only",
        since=(2, 9),
        before="cannot be set by the environment",
        in_guide=True,
    ),
    Flag(
        env="TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE",
        config="cpp.enable_kernel_profile",
        shows="the Python stack of each launch as text in wrapper.cpp",
        misses="nothing prints it in open-source torch: read the wrapper",
        since=(2, 10),
        before="records calls for the profiler, without stacks",
        needs=(
            Need(
                "TORCHINDUCTOR_CPP_ENABLE_KERNEL_CONTEXT_GUARD",
                "1",
                "without it no guard is generated",
                (2, 14),
            ),
        ),
    ),
    Flag(
        env="TORCHINDUCTOR_CPP_ENABLE_KERNEL_CONTEXT_GUARD",
        shows="lets TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE write its guards",
        misses="nothing by itself",
        since=(2, 14),
        before="the guards need no second flag",
        needs=(Need("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", "1", "it acts only together with that flag"),),
    ),
    Flag(
        config="triton.debug_sync_kernel",
        shows="an asynchronous fault at the launch that caused it",
        misses="an access that raises no error",
        cost="one synchronisation for each kernel",
        since=(2, 14),
        before="writes Python text into the C++ wrapper, which then fails to compile",
        device="cuda",
        in_guide=True,
    ),
    Flag(
        config="triton.debug_sync_graph",
        shows="an asynchronous fault at the end of the call",
        misses="which kernel it was",
        cost="one synchronisation for each call",
        since=(2, 14),
        before="writes Python text into the C++ wrapper, which then fails to compile",
        device="cuda",
    ),
    Flag(
        config="triton.autotune_at_compile_time",
        shows="set to 0 to find out whether a compile-time crash comes from autotuning on synthetic "
        "tensors or from your model",
        misses="run-time faults; from 2.14 the wrapper then holds no Triton source",
        cost="kernels are tuned later",
        device="cuda",
        in_guide=True,
    ),
    # _inductor/debug.py:1391-1475 (2.13).
    Flag(
        env="DUMP_AOTI_MINIFIER",
        config="aot_inductor.dump_aoti_minifier",
        shows="torch_compile_debug/run_*/minifier/minifier_launcher.py",
        misses="faults of the device: all candidates run in one process, whose CUDA context is then dead",
        cost="runs the model inside the compiling process",
        in_guide=True,
    ),
    Flag(
        env="AOTINDUCTOR_REPRO_LEVEL",
        config="aot_inductor.repro_level",
        values=REPRO,
        shows="1 and 2 on failure, 3 always (for a segfault), 4 on wrong numbers",
        misses="see DUMP_AOTI_MINIFIER",
        needs=(Need("DUMP_AOTI_MINIFIER", "1", "the level acts only when the minifier is on"),),
    ),
    # Caches, logs and traces.
    Flag(
        env="TORCHINDUCTOR_CACHE_DIR",
        values=TEXT,
        shows="keeps the generated sources of one compile apart",
        misses="compiling into the same folder again appends a second pair of command comments",
    ),
    Flag(
        env="TORCHINDUCTOR_FORCE_DISABLE_CACHES",
        alias="TORCH_COMPILE_FORCE_DISABLE_CACHES",
        config="force_disable_caches",
        shows="works in a fresh folder below the cache",
        misses="not needed for a changed flag: no cache skips AOTInductor's code generation",
    ),
    Flag(
        env="TORCH_COMPILE_DEBUG",
        shows="torch_compile_debug/run_*: graphs, IR, output code, provenance map",
        misses="run-time values",
        cost="disk",
    ),
    Flag(
        env="TORCH_TRACE",
        values=TEXT,
        shows="structured trace in this folder; guard_added_fast lists guards that were added silently",
        misses="run-time values",
        cost="disk",
    ),
    Flag(
        env="TORCH_LOGS",
        values=TEXT,
        shows="output_code, post_grad_graphs, +inductor (build commands), dynamic (added guards)",
        misses="kernel_code, schedule, graph_code and guards print nothing for export -> AOTInductor",
    ),
    Flag(
        env="TORCH_COMPILE_DEBUG_MAX_EVENTS",
        values=COUNT,
        shows="limits the extended debug timeline",
        since=(2, 14),
    ),
    Flag(
        env="TORCH_COMPILE_DEBUG_EXTEND",
        shows="provenance on a timeline; forces INDUCTOR_PROVENANCE to at least 1",
        misses="run-time values",
        since=(2, 14),
    ),
)


RUNTIME: tuple[Flag, ...] = (
    # libc10_cuda: forceUncachedAllocator() through c10::utils::check_env, 2.8 to 2.15.
    Flag(
        env="PYTORCH_NO_CUDA_MEMORY_CACHING",
        alias="PYTORCH_NO_HIP_MEMORY_CACHING",
        acts=("run",),
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
        shows="an asynchronous fault at the launch that caused it",
        misses="the kernel's name: combine with printer level 3 or launch probes",
        cost="launches run one after the other",
        device="cuda",
        in_guide=True,
    ),
    Flag(
        env="TORCH_SHOW_CPP_STACKTRACES",
        acts=("load", "run"),
        shows="C++ frames of load errors; symbolised frames of run errors (plain ones come anyway from 2.13)",
        misses="faults of the device",
        in_guide=True,
    ),
    # torch/_inductor/config.py:30 (2.13): read at import, used by the ISA probe of compile and of load.
    Flag(
        env="TORCHINDUCTOR_VEC_ISA_OK",
        config="cpp.vec_isa_ok",
        acts=("compile", "load"),
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
        shows="nothing: how weights are copied to the device",
        since=(2, 14),
        device="cuda",
    ),
    *(
        Flag(env=env, acts=("load",), values=COUNT, shows=f"nothing: {shows}", since=since, device="cuda")
        for env, since, shows in (
            ("AOTI_COPY_STAGE_BUFFER_BYTES", (2, 14), "size of the staging buffer for weights, bytes"),
            ("AOTI_COPY_STAGE_CPU_THREADS", (2, 15), "threads that stage weights"),
            ("AOTI_CUDA_COPY_CHUNK_SIZE", (2, 13), "throttles the copy of weights"),
            ("AOTI_CUDA_COPY_SLEEP_US", (2, 13), "throttles the copy of weights, microseconds"),
        )
    ),
)
