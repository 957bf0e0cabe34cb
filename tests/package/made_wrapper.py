# ruff: noqa: E501 (generated C++ has long lines)
"""Makes wrappers of any size in the form of torch 2.11 on CUDA, for scale and property tests."""

from tests.recorded import RECORDINGS

_HEAD = """\
#include <torch/csrc/inductor/aoti_include/cuda.h>
namespace torch::aot_inductor {
"""

_RUN = """\
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles,
    AtenTensorHandle* output_handles,
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

_RECORDED = (RECORDINGS / "wrappers" / "jagged.torch-2.11-cuda.cpp").read_text()
_START, _END = _RECORDED.index("template <typename in_ptr0_type_, typename in_ptr1_type_"), "\n}\n"
_KERNEL = _RECORDED[_START : _RECORDED.index(_END, _START) + len(_END)].replace("index_mul_0", "add_mul_@N@")

_ALLOCATE = """\
    AtenTensorHandle buf@N@_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf@N@_handle));
    RAIIAtenTensorHandle buf@N@(buf@N@_handle);
"""

_TRITON = """\
    // Topologically Sorted Source Nodes: [add_@N@, mul_@N@], Original ATen: [aten.add, aten.mul]
    // [Provenance debug handles] triton_poi_fused_add_mul_@N@:@H@
    int64_t triton_poi_fused_add_mul_@N@_xnumel = 16L*s77;
    call_triton_poi_fused_add_mul_@N@(arg1_1, buf@P@, buf@N@, s77, s77, triton_poi_fused_add_mul_@N@_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
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
    """A wrapper with a chain of launches. Every fourth is a matrix product, and some buffers are reused."""
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
    """Fill the template for launch `name` (1-based), which reads buf{name - 1} and writes buf{name}."""
    marks = {"@N@": name, "@P@": name - 1, "@Q@": name - 2, "@H@": name, "@A@": name + 1}
    for mark, value in marks.items():
        template = template.replace(mark, str(value))
    return template
