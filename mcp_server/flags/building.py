"""Flags that decide how the package is built: symbols, optimisation, weights, kernel binaries."""

from __future__ import annotations

from mcp_server.versions import RANGE

from .types import DISK_FORMAT, FRACTION, OPTIMISATION, SWITCH, Flag

BUILDING: tuple[Flag, ...] = (
    Flag(
        config="always_keep_tensor_constants",
        values=SWITCH,
        shows="1 keeps constants of a few elements, which are otherwise folded into the code",
    ),
    # cpp_builder.py:1028-1090 (2.13).
    Flag(
        env="AOT_INDUCTOR_DEBUG_COMPILE",
        config="aot_inductor.debug_compile",
        values=SWITCH,
        shows="-O0 -g without -DNDEBUG for wrapper and kernels: readable frames in gdb",
        misses="Triton kernels",
        cost="slow CPU kernels",
        in_guide=True,
    ),
    Flag(
        env="AOT_INDUCTOR_DEBUG_SYMBOLS",
        config="aot_inductor.debug_symbols",
        values=SWITCH,
        shows="-g with the usual optimisation",
        misses="inlined and optimised-out variables",
        since=(2, 10),
    ),
    Flag(
        env="TORCHINDUCTOR_DEBUG_COMPILE",
        values=SWITCH,
        shows="the same as AOT_INDUCTOR_DEBUG_COMPILE",
        misses="Triton kernels",
        cost="slow CPU kernels",
        since=(2, 10),
        before="nothing reads it",
    ),
    Flag(
        env="TORCHINDUCTOR_DEBUG_SYMBOL",
        values=SWITCH,
        shows="the same as AOT_INDUCTOR_DEBUG_SYMBOLS; in 2.9 as AOT_INDUCTOR_DEBUG_COMPILE",
        misses="inlined and optimised-out variables",
        since=(2, 9),
        before="nothing reads it",
    ),
    Flag(
        env="AOT_INDUCTOR_ENABLE_FRAME_POINTER",
        config="aot_inductor.enable_frame_pointer",
        values=SWITCH,
        shows="-fno-omit-frame-pointer, for profilers; default on from 2.13",
        misses="faults",
        since=(2, 12),
    ),
    Flag(
        env="AOT_INDUCTOR_ENABLE_LINE_TABLES",
        config="aot_inductor.enable_line_tables",
        values=SWITCH,
        shows="default on: -g1, so that C++ frames carry lines",
        misses="variables",
        since=(2, 13),
    ),
    Flag(
        env="AOT_INDUCTOR_ENABLE_LTO",
        config="aot_inductor.enable_lto",
        values=SWITCH,
        shows="nothing: link-time optimisation; keep it off while debugging",
        since=(2, 9),
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
        values=SWITCH,
        shows="nothing",
        misses="everything",
        inert=f"no torch from {RANGE} reads it; use AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL=O0",
        in_guide=True,
    ),
    Flag(
        env="AOT_INDUCTOR_WEIGHT_USE_CACHING_ALLOCATOR",
        config="aot_inductor.weight_use_caching_allocator",
        values=SWITCH,
        shows="puts the weights under PYTORCH_NO_CUDA_MEMORY_CACHING too",
        misses="overruns from one weight into the next: all weights stay one block",
        since=(2, 9),
        device="cuda",
    ),
    Flag(
        config="aot_inductor.package_constants_in_so",
        values=SWITCH,
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
        values=SWITCH,
        shows="weights appended to the .so and mapped, instead of in its data section",
        conflicts=("aot_inductor.package_constants_on_disk_format",),
    ),
    Flag(
        config="aot_inductor.use_runtime_constant_folding",
        values=SWITCH,
        shows="folds constants at load instead of at compile time",
    ),
    Flag(
        config="aot_inductor.embed_kernel_binary",
        values=SWITCH,
        shows="cubins inside the .so: rules out a missing cubin file",
        misses="a wrong architecture",
        device="cuda",
    ),
    Flag(
        config="aot_inductor.emit_multi_arch_kernel",
        values=SWITCH,
        shows="fatbins with PTX: rules out `no kernel image is available`",
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
