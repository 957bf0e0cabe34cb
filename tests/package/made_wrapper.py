# ruff: noqa: E501 (generated C++ has long lines)
"""Makes wrappers of any size in the form of torch 2.11 on CUDA, for scale and property tests."""

from __future__ import annotations

_HEAD = """\
#include <torch/csrc/inductor/aoti_include/cuda.h>
namespace torch::aot_inductor {
"""

_RUN = """\
void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles, // array of input AtenTensorHandle; handles
                        // are stolen; the array itself is borrowed
    AtenTensorHandle*
        output_handles, // array for writing output AtenTensorHandle; handles
                        // will be stolen by the caller; the array itself is
                        // borrowed
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {
    __check_inputs_outputs(input_handles, output_handles);

    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& table_weight = constants_->at(0);
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    inputs.clear();
    [[maybe_unused]] auto& kernels = static_cast<AOTInductorModelKernels&>(*this->kernels_.get());
    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
"""

_KERNEL = """
template <typename in_ptr0_type_, typename in_ptr1_type_, typename out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_add_mul_@N@(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t ks0,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_add_mul_@N@', '''
    import triton
    import triton.language as tl

    from torch._inductor.runtime import triton_helpers, triton_heuristics
    from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
    from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
    triton_helpers.set_driver_to_gpu()

    @triton_heuristics.pointwise(
        size_hints={'x': 2048}, filename=__file__,
        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'ks0': 'i64',
            'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90,
            multi_processor_count=132, major=9, regs_per_multiprocessor=65536, warp_size=32), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'kernel_name': 'triton_poi_fused_add_mul_@N@',
            'mutated_arg_names': [], 'num_load': 2, 'num_store': 1, 'assert_indirect_indexing': True,
            'no_x_dim': False, 'atomic_add_found': False, 'num_reduction': 0, 'autotune_local_cache': True,
            'autotune_pointwise': True, 'autotune_remote_cache': None, 'force_disable_caches': False},
        min_elem_per_thread=0
    )
    @triton.jit
    def triton_poi_fused_add_mul_@N@(in_ptr0, in_ptr1, out_ptr0, ks0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0 // 16), xmask, eviction_policy='evict_last')
        tmp1 = ks0
        tmp2 = tmp0 + tmp1
        tmp3 = tmp0 < 0
        tmp4 = tl.where(tmp3, tmp2, tmp0)
        tl.device_assert(((0 <= tmp4) & (tmp4 < ks0)) | ~(xmask), "index out of bounds: 0 <= tmp4 < ks0")
        tmp6 = tl.load(in_ptr1 + (x0 + 16*tmp4), xmask)
        tmp7 = tmp6 * 2.0
        tl.store(out_ptr0 + (x0), tmp7, xmask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;
    if (grid_0 == 0 || grid_1 == 0 || grid_2 == 0) return;
    if (kernels_.triton_poi_fused_add_mul_@N@ == nullptr) {
        kernels_.triton_poi_fused_add_mul_@N@ = loadKernel("/cache/aa/cubin@N@.cubin", "triton_poi_fused_add_mul_@N@", 0, cubin_dir_);
    }
    CUdeviceptr var_0 = reinterpret_cast<CUdeviceptr>(in_ptr0.data_ptr());
    void* kernel_args_[] = {&var_0};
    launchKernel(kernels_.triton_poi_fused_add_mul_@N@, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}
"""

_ALLOCATE = """\
    AtenTensorHandle buf@N@_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf@N@_handle));
    RAIIAtenTensorHandle buf@N@(buf@N@_handle);
"""

_TRITON = """\
    // Topologically Sorted Source Nodes: [add_@N@, mul_@N@], Original ATen: [aten.add, aten.mul]
    // [Provenance debug handles] triton_poi_fused_add_mul_@N@:@H@
    int64_t triton_poi_fused_add_mul_@N@_xnumel = 16L*s77;
    call_triton_poi_fused_add_mul_@N@(arg1_1, buf@P@, buf@N@, s77, triton_poi_fused_add_mul_@N@_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
"""

_EXTERN = """\
    // Topologically Sorted Source Nodes: [linear_@N@], Original ATen: [aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:@H@
    static constexpr int64_t int_array_@A@[] = {16L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf@N@, buf@P@, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(table_weight, 2, int_array_@A@, int_array_1, 0L))));
"""

_REUSE = """\
    auto buf@N@ = std::move(buf@Q@);  // reuse
"""


def make_wrapper(launches: int) -> str:
    """A chain of launches, every fourth a matrix product; every other buffer takes over an older one's memory."""
    kernels, body = [], [_fill(_ALLOCATE, 0)]
    for number in range(launches):
        name = number + 1
        allocate = _REUSE if number % 2 and number > 2 else _ALLOCATE
        if number % 4 == 3:
            call = _EXTERN
        else:
            call = _TRITON
            kernels.append(_fill(_KERNEL, name))
        body.append(_fill(allocate + call, name))
    end = f"    output_handles[0] = buf{launches}.release();\n}} // AOTInductorModel::run_impl\n}}\n"
    return "".join([_HEAD, *kernels, _RUN, *body, end])


def _fill(template: str, name: int) -> str:
    """A template for launch `name` (1-based): it reads buf{name - 1} and writes buf{name}."""
    marks = {"@N@": name, "@P@": name - 1, "@Q@": name - 2, "@H@": name, "@A@": name + 1}
    for mark, value in marks.items():
        template = template.replace(mark, str(value))
    return template
