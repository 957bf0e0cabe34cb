"""Scripts that replay one launch, from the source that a package's wrapper embeds."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from mcp_server.errors import ProblemError
from mcp_server.package.kernels import Kernel, read_triton_kernels
from mcp_server.package.terms.blocks import LineCounter
from mcp_server.tools.reduce.launch import Recorded, Replay, files, triton_source

# Shortened from a wrapper.cpp of torch 2.11 (H200).
WRAPPER = """
static inline void call_{name}(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t {size},
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){{
    /*
    async_compile.triton('{symbol}', '''
    import triton
    import triton.language as tl

    @triton_heuristics.{heuristic}(
        size_hints={{'x': 2048}},
        triton_meta={{'constants': {constants}}},
        filename=__file__,
    )
    @triton.jit
    def {symbol}(in_ptr0, out_ptr0, {parameters}):
        at = tl.program_id(0)
        tl.store(out_ptr0 + at, tl.load(in_ptr0 + at))
    ''', device_str='cuda')
    */
    uint32_t grid_0 = {grid};
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;
    kernels_.{name} = loadKernel("/cache/c1.cubin", "{symbol}", 0, cubin_dir_);
    launchKernel(kernels_.{name}, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}}
"""
USER = WRAPPER.format(
    name="lookup_0",
    symbol="lookup",
    size="_grid_0",
    heuristic="user_autotune",
    constants="{'width': 16}",
    parameters="width: tl.constexpr",
    grid="_grid_0",
)
POINTWISE = WRAPPER.format(
    name="triton_poi_fused_0",
    symbol="triton_poi_fused_0",
    size="xnumel",
    heuristic="pointwise",
    constants="{}",
    parameters="xnumel, XBLOCK : tl.constexpr",
    grid="((xnumel + (128 - 1)) / (128))",
)
REDUCTION = POINTWISE.replace("XBLOCK : tl.constexpr", "XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr")
TENSORS = (
    Recorded("in_ptr0", "", (8, 16), (16, 1), "cuda:0"),
    Recorded("out_ptr0", "", (8, 16), (16, 1), "cuda:0"),
)


def kernel_of(text: str) -> Kernel:
    (kernel,) = read_triton_kernels(text, LineCounter(text)).values()
    return kernel


def replay(text: str, *numbers: Recorded) -> tuple[dict[str, str], list[str]]:
    recorded = (*TENSORS, *numbers)
    return files(Replay("title", "2.11.0", kernel_of(text), recorded, ("out_ptr0",), (), ""))


def call_in(script: str) -> str:
    return next(
        line.strip() for line in script.splitlines() if line.strip().startswith(("lookup[", "triton_"))
    )


def test_the_source_is_a_plain_triton_kernel() -> None:
    """Inductor's launcher is taken off, and what is left is a module."""
    source = triton_source(kernel_of(POINTWISE))
    assert "triton_heuristics" not in source
    assert source.index("@triton.jit") < source.index("def triton_poi_fused_0(")
    ast.parse(source)


def test_a_users_kernel_is_called_with_its_own_constants() -> None:
    """Compile-time arguments come from the record, the grid from the launch."""
    written, notes = replay(USER, Recorded("_grid_0", "8"))
    assert set(written) == {"repro.py", "kernel.py"}
    tensors = 'in_ptr0=arguments["in_ptr0"], out_ptr0=arguments["out_ptr0"]'
    assert call_in(written["repro.py"]) == f"lookup[(8, 1, 1)]({tensors}, width=16, num_warps=4)"
    assert notes == []
    ast.parse(written["repro.py"])


def test_block_sizes_come_from_the_grid() -> None:
    """How many elements a block of a generated kernel has is what its grid divides by."""
    written, notes = replay(POINTWISE, Recorded("xnumel", "300"))
    call = call_in(written["repro.py"])
    assert call.startswith("triton_poi_fused_0[(3, 1, 1)](")
    assert "xnumel=300, XBLOCK=128, num_warps=4" in call
    assert notes == []


def test_an_assumption_is_said() -> None:
    """A block size that the package does not hold is assumed, and the result says so."""
    written, notes = replay(REDUCTION, Recorded("xnumel", "300"))
    assert "R0_BLOCK=1024" in call_in(written["repro.py"])
    assert notes == ["R0_BLOCK = 1024 is assumed: the package does not say it"]


def test_what_is_missing_is_refused() -> None:
    """No script is written from half of the arguments, without a source, or without a grid."""
    with pytest.raises(ProblemError, match="grid of the launch"):
        replay(POINTWISE.replace("xnumel + (128", "s7 + (128"), Recorded("xnumel", "300"))
    with pytest.raises(ProblemError, match="was not recorded: 'xnumel'"):
        replay(POINTWISE)
    bare = Replay("title", "2.11.0", replace(kernel_of(USER), source=""), TENSORS, (), (), "")
    with pytest.raises(ProblemError, match="no source"):
        files(bare)
