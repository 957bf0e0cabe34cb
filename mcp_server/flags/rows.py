"""Flags that change how a package is built, checked, printed or traced, or that it reads at load or run time.

Source: torch/_inductor/config.py and the code generators, torch 2.8 to 2.15.
"""

from mcp_server import RANGE

from .types import (
    DISK_FORMAT,
    FIRST_NOT_ZERO,
    FRACTION,
    KERNELS,
    LEVEL,
    OPTIMISATION,
    PROVENANCE,
    REPRO,
    TEXT,
    Flag,
    Need,
)

BUILDING: tuple[Flag, ...] = (
    Flag(
        config="always_keep_tensor_constants",
        shows="1 keeps constants of a few elements, which are otherwise folded into the code",
    ),
    # cpp_builder.py:1028-1090 (2.13).
    Flag(
        env="AOT_INDUCTOR_DEBUG_COMPILE",
        config="aot_inductor.debug_compile",
        shows="-O0 -g without -DNDEBUG for wrapper and kernels: readable frames in gdb",
        misses="Triton kernels",
        cost="slow CPU kernels",
    ),
    Flag(
        env="AOT_INDUCTOR_DEBUG_SYMBOLS",
        config="aot_inductor.debug_symbols",
        shows="-g with the usual optimisation",
        misses="inlined and optimised-out variables",
        since=(2, 10),
    ),
    Flag(
        env="AOT_INDUCTOR_ENABLE_LINE_TABLES",
        config="aot_inductor.enable_line_tables",
        shows="default on: -g1, so that C++ frames carry lines",
        misses="variables",
        since=(2, 13),
    ),
    Flag(
        env="AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL",
        config="aot_inductor.compile_wrapper_opt_level",
        values=OPTIMISATION,
        shows="O0 builds a wrapper that is `too big to optimize`, and builds it faster",
        misses="kernels keep their level",
    ),
    Flag(
        env="AOT_INDUCTOR_COMPILE_WRAPPER_WITH_O0",
        shows="nothing",
        misses="everything",
        inert=f"no torch from {RANGE} reads it; use AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL=O0",
    ),
    Flag(
        env="AOT_INDUCTOR_WEIGHT_USE_CACHING_ALLOCATOR",
        config="aot_inductor.weight_use_caching_allocator",
        shows="puts the weights under PYTORCH_NO_CUDA_MEMORY_CACHING too",
        misses="overruns from one weight into the next: all weights stay one block",
        since=(2, 9),
        device="cuda",
    ),
    Flag(
        config="aot_inductor.package_constants_in_so",
        shows="0 leaves the weights out, so that load_constants(user_managed=True) gives each its own memory",
        misses="running without load_constants then ends in SIGSEGV",
    ),
    Flag(
        config="aot_inductor.package_constants_on_disk_format",
        values=DISK_FORMAT,
        shows="weights as files of the package, readable without loading it",
        misses="pickle_weights loads only from Python",
        since=(2, 10),
        before="use package_constants_on_disk",
        conflicts=("aot_inductor.force_mmap_weights",),
    ),
    Flag(
        config="aot_inductor.force_mmap_weights",
        shows="weights appended to the .so and mapped, instead of in its data section",
        conflicts=("aot_inductor.package_constants_on_disk_format",),
    ),
    Flag(
        config="aot_inductor.use_runtime_constant_folding",
        shows="folds constants at load instead of at compile time",
    ),
    Flag(
        config="aot_inductor.embed_kernel_binary",
        shows="cubins inside the .so: rules out a missing cubin file",
        misses="a wrong architecture",
        device="cuda",
    ),
    Flag(
        config="aot_inductor.emit_multi_arch_kernel",
        shows="adds PTX to the kernels, so that newer GPUs run them, too",
        cost="needs nvcc",
        device="cuda",
    ),
    Flag(
        config="aot_inductor.autotune_offload_constants_min_device_fraction",
        values=FRACTION,
        shows="spills weights to the host while autotuning, against out-of-memory at compile time",
        misses="run-time out-of-memory",
        since=(2, 15),
        device="cuda",
    ),
)


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
    ),
    Flag(
        env="TORCHINDUCTOR_NAN_ASSERTS",
        config="nan_asserts",
        shows="after each Triton kernel, NaN or INF in its arguments; from 2.13 in model inputs too",
        misses="CPU kernels, extern kernels, custom ops, outputs; an intended -inf raises a false alarm",
        cost="one device synchronisation for each tensor argument of each launch",
        cpu_since=(2, 13),
        before="a CPU model gets no check at all",
    ),
    Flag(
        env="TORCHINDUCTOR_RUNTIME_TRITON_NAN_ASSERTS",
        config="runtime_triton_nan_asserts",
        shows="device assert `NaN or Inf found` at the Triton line that produced the value",
        misses="everything that is not Triton; an intended -inf raises a false alarm",
        cost="one comparison for each value in each Triton kernel",
        since=(2, 10),
        device="cuda",
    ),
    Flag(
        env="TORCHINDUCTOR_SIZE_ASSERTS",
        config="size_asserts",
        shows="on by default: the checks of sizes and strides that AOTI_RUNTIME_CHECK_INPUTS turns on",
        misses="everything when 0",
        cost="none until AOTI_RUNTIME_CHECK_INPUTS is set",
        since=(2, 13),
        before="the C++ wrapper has no assert_size_stride layer",
    ),
    Flag(
        env="TORCHINDUCTOR_SCALAR_ASSERTS",
        config="scalar_asserts",
        shows="default on: `Expected u0 <= 5 but received 9` for unbacked sizes, always active",
        misses="guards on sizes of inputs; prints the value of the first free symbol only",
        cost="a comparison on the host",
    ),
    Flag(
        env="TORCHINDUCTOR_ALIGNMENT_ASSERTS",
        config="alignment_asserts",
        shows="`Expect the tensor to be 16 bytes aligned`, under AOTI_RUNTIME_CHECK_INPUTS at run time",
        misses="misaligned inputs of a CUDA model, which are cloned with a warning instead",
        since=(2, 15),
        before="not generated in the C++ wrapper",
    ),
    Flag(
        env="TORCHINDUCTOR_ALIGNMENT_ASSERTS_INPUTS",
        shows="an input that is not 16-byte aligned, without any run-time switch",
        misses="intermediate buffers",
        since=(2, 15),
    ),
    # utils.py:1245 (2.13).
    Flag(
        config="assert_indirect_indexing",
        shows="on by default: `index out of bounds: 0 <= tmpN < BOUND`, and the name of the kernel",
        misses="with 0 an out-of-range index is read silently; user-defined Triton kernels never have it",
        cost="small; 0 is only for finding out what lies behind the assert",
    ),
    Flag(
        config="debug_index_asserts",
        shows="index asserts in decompositions too",
        misses="user-defined Triton kernels",
        cost="more asserts in the kernels",
    ),
    Flag(
        config="do_not_emit_runtime_assertions",
        shows="nothing: 1 omits run-time assertions, to find out whether one of them is wrong",
        misses="what those assertions would have caught",
        since=(2, 12),
    ),
    Flag(
        config="aot_inductor.check_lowerbound",
        shows="0 removes the false alarm `expected it to be >= 2` of AOTI_RUNTIME_CHECK_INPUTS",
        misses="with 0 also a dimension that is really too small",
        since=(2, 10),
    ),
    Flag(
        config="aot_inductor.check_upperbound",
        shows="0 removes upper bounds from AOTI_RUNTIME_CHECK_INPUTS",
        misses="with 0 also a dimension that is really too large",
        since=(2, 15),
    ),
    Flag(
        env="TORCHINDUCTOR_MEMORY_PLANNING",
        config="memory_planning",
        shows="nothing: pools buffers; keep it 0 while hunting a bad access",
        misses="with 1, no allocator setting can catch an overrun from one buffer of the pool into the next",
    ),
    Flag(
        config="allow_buffer_reuse",
        shows="0 keeps most buffers apart, so that a stale or overwritten buffer shows",
        misses="outputs and views can still share memory",
        cost="more memory",
    ),
    Flag(
        config="inplace_buffers",
        shows="0 stops kernels from writing over their inputs",
        misses="outputs and views can still share memory",
        cost="more memory",
    ),
)


PRINTING: tuple[Flag, ...] = (
    # _inductor/codegen/debug_utils.py (2.13).
    Flag(
        env="AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER",
        config="aot_inductor.debug_intermediate_value_printer",
        values=LEVEL,
        shows="1 saves, 2 prints tensors before and after each launch; 3 prints kernel names",
        misses="proxy-executor ops, scatter, index_put; on C++ and extern kernels weights and views",
        cost="1 and 2 synchronise around each launch; 3 is unflushed printf: run with PYTHONUNBUFFERED=1",
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
    ),
    # _inductor/debug.py:1391-1475 (2.13).
    Flag(
        env="DUMP_AOTI_MINIFIER",
        config="aot_inductor.dump_aoti_minifier",
        shows="torch_compile_debug/run_*/minifier/minifier_launcher.py",
        misses="faults of the device: all candidates run in one process, whose CUDA context is then dead",
        cost="runs the model inside the compiling process",
    ),
    Flag(
        env="AOTINDUCTOR_REPRO_LEVEL",
        config="aot_inductor.repro_level",
        values=REPRO,
        shows="1 and 2 on failure, 3 always (for a segfault), 4 on wrong numbers",
        misses="see DUMP_AOTI_MINIFIER",
        needs=(Need("DUMP_AOTI_MINIFIER", "1", "the level acts only when the minifier is on"),),
    ),
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
        misses="not needed after a flag is changed: AOTInductor generates its code again, whatever is cached",
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
    ),
    Flag(
        env="CUDA_LAUNCH_BLOCKING",
        acts=("run",),
        shows="an asynchronous fault at the launch that caused it",
        misses="the kernel's name: combine with printer level 3 or launch probes",
        cost="launches run one after the other",
        device="cuda",
    ),
    Flag(
        env="TORCH_SHOW_CPP_STACKTRACES",
        acts=("load", "run"),
        shows="C++ frames of load errors; symbolised frames of run errors (plain ones come anyway from 2.13)",
        misses="faults of the device",
    ),
    # torch/_inductor/config.py:30 (2.13): read at import, used by the ISA probe of both compile and load.
    Flag(
        env="TORCHINDUCTOR_VEC_ISA_OK",
        config="cpp.vec_isa_ok",
        acts=("compile", "load"),
        shows="1 skips the CPU instruction-set probe, which took 32-46 s of a load on one H200 (2.11)",
        misses="with 1, nothing tests whether the compiler can build for this CPU's instruction set",
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
)
