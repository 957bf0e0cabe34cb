extern "C"  void  cpp_fused_exp_mul_unsqueeze_0(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       float* out_ptr1);
#include <torch/cache/aoti_include/cpu.h>
extern "C"  void  cpp_fused_relu_1(float* in_out_ptr0);
CACHE_TORCH_DTYPE(float32);
CACHE_TORCH_DEVICE(cpu);
CACHE_TORCH_LAYOUT(strided);
namespace torch::aot_inductor {
namespace {


    void* cpp_fused_exp_mul_unsqueeze_0{nullptr};
    void* cpp_fused_relu_1{nullptr};
};








    : AOTInductorModelBase(1,
                           1,
                           4,
                           device_str,
                           std::move(cubin_dir),
                           true) {
    inputs_info_[0].name = "arg3_1";
    constants_info_[0].name = "weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cpu;

    constants_info_[0].data_size = 4096;

    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {32, 32};
    constants_info_[0].stride = {32, 1};

    constants_info_[0].original_fqn = "weight";
    constants_info_[1].name = "scale";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cpu;

    constants_info_[1].data_size = 128;

    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {32};
    constants_info_[1].stride = {1};

    constants_info_[1].original_fqn = "scale";
    constants_info_[2].name = "other";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].device_type = cached_torch_device_type_cpu;

    constants_info_[2].data_size = 4096;

    constants_info_[2].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[2].shape = {32, 32};
    constants_info_[2].stride = {32, 1};

    constants_info_[2].original_fqn = "other";
    constants_info_[3].name = "_FOLDED_CONST_permute";
    constants_info_[3].dtype = cached_torch_dtype_float32;
    constants_info_[3].device_type = cached_torch_device_type_cpu;

    constants_info_[3].data_size = 4096;
    constants_info_[3].from_folded = true;
    constants_info_[3].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::FoldedConstant);
    constants_info_[3].shape = {32, 32};
    constants_info_[3].stride = {1, 32};

    constants_info_[3].original_fqn = "_FOLDED_CONST_permute";


    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";
    out_spec_ = R"([1, {"type": null, "context": null, "children_spec": []}])";
    outputs_info_[0].name = "output0";

}

std::unordered_map<std::string, AtenTensorHandle> AOTInductorModel::const_run_impl(


    bool initialization
) {

                std::unordered_map<std::string, AtenTensorHandle> folded_constants_map;
                folded_constants_map.reserve(1);
                std::vector<AtenTensorHandle> output_handles(1);


    // The below assignment of output_handles to constants is not used directly.
    // It's only used to memo the correspondence of handle and constants.
    output_handles[0] = constants_->at(3);
    _const_run_impl(output_handles, stream, proxy_executor);
    folded_constants_map["_FOLDED_CONST_permute"] = output_handles[0];
    return folded_constants_map;
}


namespace torch::aot_inductor {
CACHE_TORCH_DTYPE(float32);
CACHE_TORCH_DEVICE(cpu);

void AOTInductorModel::_const_run_impl(
    std::vector<AtenTensorHandle>& output_handles,


) {
    [[maybe_unused]] auto& weight = constants_->at(0);
    [[maybe_unused]] auto& scale = constants_->at(1);
    [[maybe_unused]] auto& other = constants_->at(2);

    static constexpr int64_t int_array_0[] = {32L, };
    static constexpr int64_t int_array_1[] = {1L, };
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    static constexpr int64_t int_array_2[] = {32L, 32L};
    static constexpr int64_t int_array_3[] = {32L, 1L};
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // [Provenance debug handles] cpp_fused_exp_mul_unsqueeze_0:1
    cpp_fused_exp_mul_unsqueeze_0((const float*)(scale.data_ptr()), (const float*)(weight.data_ptr()), (float*)(buf0.data_ptr()), (float*)(buf1.data_ptr()));
    buf0.reset();
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [exp, unsqueeze, mul, matmul], Original ATen: [aten.exp, aten.unsqueeze, aten.mul, aten.mm]
    // [Provenance debug handles] aoti_torch_cpu_mm_out:2
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf2, buf1, other));
    static constexpr int64_t int_array_4[] = {1L, 32L};
    auto var_0 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf2, 2, int_array_2, int_array_4, 0L));
    output_handles[0] = var_0.release();
} // AOTInductorModel::_const_run_impl

AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg3_1 = ConstantHandle(input_handles[0]);
    int32_t arg3_1_dtype;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(arg3_1, &arg3_1_dtype));

    int32_t arg3_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg3_1_expected_dtype != arg3_1_dtype) {

        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg3_1_expected_dtype << "(at::kFloat), "
           << "but got: " << arg3_1_dtype << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg3_1_size = arg3_1.sizes();

    if (8 != arg3_1_size[0]) {

        ss << "input_handles[0]: unmatched dim value at 0, "
           << "expected: 8, " << "but got: " << arg3_1_size[0]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }

    if (32 != arg3_1_size[1]) {

        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 32, " << "but got: " << arg3_1_size[1]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg3_1_stride = arg3_1.strides();

    if (32 != arg3_1_stride[0]) {

        ss << "input_handles[0]: unmatched stride value at 0, "
           << "expected: 32, " << "but got: " << arg3_1_stride[0]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }

    if (1 != arg3_1_stride[1]) {

        ss << "input_handles[0]: unmatched stride value at 1, "
           << "expected: 1, " << "but got: " << arg3_1_stride[1]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    int32_t arg3_1_device_type;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(arg3_1, &arg3_1_device_type));

    int32_t arg3_1_expected_device_type = 0;
    if (arg3_1_expected_device_type != arg3_1_device_type) {

        ss << "input_handles[0]: unmatched device type, "
        << "expected: " << arg3_1_expected_device_type << "0(cpu), "
        << "but got: " << arg3_1_device_type << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
}





}

AOTI_NOINLINE static void __check_inputs_outputs(
    AtenTensorHandle* input_handles,
    AtenTensorHandle* output_handles) {
    if (!_check_aoti_runtime_check_inputs_env()){
        return;
    }
    check_input_0(input_handles);
}

void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {

    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg3_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& weight = constants_->at(0);
    [[maybe_unused]] auto& scale = constants_->at(1);
    [[maybe_unused]] auto& other = constants_->at(2);
    [[maybe_unused]] auto& _FOLDED_CONST_permute = constants_->at(3);
    inputs.clear();

    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg3_1, {8L, 32L}, {32L, 1L}, "input"); }
    static constexpr int64_t int_array_0[] = {8L, 32L};
    static constexpr int64_t int_array_1[] = {32L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [linear], Original ATen: [aten.mm]
    // [Provenance debug handles] aoti_torch_cpu_mm_out:3
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf0, arg3_1, _FOLDED_CONST_permute));
    arg3_1.reset();
    auto buf1 = std::move(buf0);  // reuse
    // [Provenance debug handles] cpp_fused_relu_1:4
    cpp_fused_relu_1((float*)(buf1.data_ptr()));
    output_handles[0] = buf1.release();
} // AOTInductorModel::run_impl

