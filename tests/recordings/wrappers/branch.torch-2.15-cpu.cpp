
extern "C"  void  cpp_fused_gt_sum_0(const float* in_ptr0,
                       float* out_ptr0,
                       bool* out_ptr1);
extern "C"  void  cpp_fused_cos_gt_1(const float* in_ptr0,
                       float* out_ptr0);
extern "C"  void  cpp_fused_add_gt_2(float* in_out_ptr0);
extern "C"  void  cpp_fused_gt_sin_3(const float* in_ptr0,
                       float* out_ptr0);
extern "C"  void  cpp_fused_relu_4(float* in_out_ptr0);
CACHE_TORCH_DTYPE(float32);
CACHE_TORCH_DTYPE(bool);
CACHE_TORCH_DEVICE(cpu);
namespace torch::aot_inductor {
namespace {
class AOTInductorModelKernels : public AOTInductorModelKernelsBase {
  public:
    void* cpp_fused_add_gt_2{nullptr};
    void* cpp_fused_cos_gt_1{nullptr};
    void* cpp_fused_gt_sin_3{nullptr};
    void* cpp_fused_gt_sum_0{nullptr};
    void* cpp_fused_relu_4{nullptr};
};








    : AOTInductorModelBase(1,
                           1,
                           0,
                           device_str,
                           std::move(cubin_dir),
                           true) {
    inputs_info_[0].name = "arg0_1";


    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";
    out_spec_ = R"([1, {"type": null, "context": null, "children_spec": []}])";
    outputs_info_[0].name = "output0";

}

std::unordered_map<std::string, AtenTensorHandle> AOTInductorModel::const_run_impl(
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor,
    bool initialization
) {






}


namespace torch::aot_inductor {

void AOTInductorModel::_const_run_impl(
    std::vector<AtenTensorHandle>& output_handles,
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {}

AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg0_1 = ConstantHandle(input_handles[0]);
    int32_t arg0_1_dtype;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(arg0_1, &arg0_1_dtype));

    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg0_1_expected_dtype != arg0_1_dtype) {

        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg0_1_expected_dtype << "(at::kFloat), "
           << "but got: " << arg0_1_dtype << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg0_1_size = arg0_1.sizes();

    if (8 != arg0_1_size[0]) {

        ss << "input_handles[0]: unmatched dim value at 0, "
           << "expected: 8, " << "but got: " << arg0_1_size[0]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }

    if (6 != arg0_1_size[1]) {

        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 6, " << "but got: " << arg0_1_size[1]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    auto arg0_1_stride = arg0_1.strides();

    if (6 != arg0_1_stride[0]) {

        ss << "input_handles[0]: unmatched stride value at 0, "
           << "expected: 6, " << "but got: " << arg0_1_stride[0]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }

    if (1 != arg0_1_stride[1]) {

        ss << "input_handles[0]: unmatched stride value at 1, "
           << "expected: 1, " << "but got: " << arg0_1_stride[1]
           << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
    int32_t arg0_1_device_type;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(arg0_1, &arg0_1_device_type));

    int32_t arg0_1_expected_device_type = 0;
    if (arg0_1_expected_device_type != arg0_1_device_type) {

        ss << "input_handles[0]: unmatched device type, "
        << "expected: " << arg0_1_expected_device_type << "0(cpu), "
        << "but got: " << arg0_1_device_type << "\n";
        throw std::runtime_error(std::move(ss).str());
    }
}

static bool _check_aoti_runtime_check_inputs_env() {



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


    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {
    __check_inputs_outputs(input_handles, output_handles);
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);
    inputs.clear();

    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {8L, 6L}, {6L, 1L}, "input"); }
    static constexpr int64_t *int_array_0=nullptr;
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, int_array_0, int_array_0, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, int_array_0, int_array_0, cached_torch_dtype_bool, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // [Provenance debug handles] cpp_fused_gt_sum_0:1
    cpp_fused_gt_sum_0((const float*)(arg0_1.data_ptr()), (float*)(buf0.data_ptr()), (bool*)(buf1.data_ptr()));
    buf0.reset();
    RAIIAtenTensorHandle buf3;
    int64_t buf1_scalar;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_item_int64(buf1, &buf1_scalar));
    if (buf1_scalar == 0) {
        // subgraph: false_graph_0
        AtenTensorHandle false_graph_0_arg0_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(arg0_1, &false_graph_0_arg0_1_handle));
        RAIIAtenTensorHandle false_graph_0_arg0_1(false_graph_0_arg0_1_handle);
        static constexpr int64_t int_array_1[] = {8L, 6L};
        static constexpr int64_t int_array_2[] = {6L, 1L};
        AtenTensorHandle false_graph_0_buf0_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_1, int_array_2, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &false_graph_0_buf0_handle));
        RAIIAtenTensorHandle false_graph_0_buf0(false_graph_0_buf0_handle);
        // [Provenance debug handles] cpp_fused_cos_gt_1:2
        cpp_fused_cos_gt_1((const float*)(false_graph_0_arg0_1.data_ptr()), (float*)(false_graph_0_buf0.data_ptr()));
        static constexpr int64_t int_array_3[] = {8L, 8L};
        static constexpr int64_t int_array_4[] = {8L, 1L};
        AtenTensorHandle false_graph_0_buf1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_3, int_array_4, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &false_graph_0_buf1_handle));
        RAIIAtenTensorHandle false_graph_0_buf1(false_graph_0_buf1_handle);
        // Unsorted Source Nodes: [cond, gt, matmul, cos, t], Original ATen: [aten.gt, aten.mm, aten.cos, aten.t]
        // [Provenance debug handles] aoti_torch_cpu_mm_out:3
        static constexpr int64_t int_array_5[] = {6L, 8L};
        static constexpr int64_t int_array_6[] = {1L, 6L};
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(false_graph_0_buf1, false_graph_0_buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(false_graph_0_arg0_1, 2, int_array_5, int_array_6, 0L))));
        false_graph_0_arg0_1.reset();
        false_graph_0_buf0.reset();
        auto false_graph_0_buf2 = std::move(false_graph_0_buf1);  // reuse
        // [Provenance debug handles] cpp_fused_add_gt_2:4
        cpp_fused_add_gt_2((float*)(false_graph_0_buf2.data_ptr()));
        buf3.reset();
        buf3 = std::move(false_graph_0_buf2);
    } else {
        // subgraph: true_graph_0
        AtenTensorHandle true_graph_0_arg0_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(arg0_1, &true_graph_0_arg0_1_handle));
        RAIIAtenTensorHandle true_graph_0_arg0_1(true_graph_0_arg0_1_handle);
        static constexpr int64_t int_array_7[] = {8L, 6L};
        static constexpr int64_t int_array_8[] = {6L, 1L};
        AtenTensorHandle true_graph_0_buf0_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_7, int_array_8, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &true_graph_0_buf0_handle));
        RAIIAtenTensorHandle true_graph_0_buf0(true_graph_0_buf0_handle);
        // [Provenance debug handles] cpp_fused_gt_sin_3:5
        cpp_fused_gt_sin_3((const float*)(true_graph_0_arg0_1.data_ptr()), (float*)(true_graph_0_buf0.data_ptr()));
        static constexpr int64_t int_array_9[] = {8L, 8L};
        static constexpr int64_t int_array_10[] = {8L, 1L};
        AtenTensorHandle true_graph_0_buf1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_9, int_array_10, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &true_graph_0_buf1_handle));
        RAIIAtenTensorHandle true_graph_0_buf1(true_graph_0_buf1_handle);
        // Unsorted Source Nodes: [cond, gt, matmul, sin, t], Original ATen: [aten.gt, aten.mm, aten.sin, aten.t]
        // [Provenance debug handles] aoti_torch_cpu_mm_out:6
        static constexpr int64_t int_array_11[] = {6L, 8L};
        static constexpr int64_t int_array_12[] = {1L, 6L};
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(true_graph_0_buf1, true_graph_0_buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(true_graph_0_arg0_1, 2, int_array_11, int_array_12, 0L))));
        true_graph_0_arg0_1.reset();
        true_graph_0_buf0.reset();
        buf3.reset();
        buf3 = std::move(true_graph_0_buf1);
    }
    arg0_1.reset();
    buf1.reset();
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(buf3, {8L, 8L}, {8L, 1L}, "torch.ops.cond", cached_torch_dtype_float32, "torch.float32"); }
    if (_check_aoti_runtime_check_inputs_env()) { assert_alignment(buf3, 16, "torch.ops.cond"); }

    auto buf4 = std::move(buf3);  // reuse
    // [Provenance debug handles] cpp_fused_relu_4:7
    cpp_fused_relu_4((float*)(buf4.data_ptr()));
    output_handles[0] = buf4.release();
} // AOTInductorModel::run_impl

