
extern "C"  void  cpp_fused_ones_scatter_reduce_0(float* out_ptr0);
extern "C"  void  cpp_fused_add_index_put_zeros_1(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       const float* in_ptr2,
                       float* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0);

















    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg0_1";
    inputs_info_[1].name = "arg1_1";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















void AOTInductorModel::_const_run_impl(



) {}



















































































































AOTI_NOINLINE static void __check_inputs_outputs(









void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {

    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    int64_t s91 = s77;
    inputs.clear();

    static constexpr int64_t int_array_0[] = {12L, };
    static constexpr int64_t int_array_1[] = {1L, };
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg1_1, {s77, }, {1L, }, "input"); }
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {s77, }, {1L, }, "input"); }
    // [Provenance debug handles] cpp_fused_ones_scatter_reduce_0:1
    cpp_fused_ones_scatter_reduce_0((float*)(buf0.data_ptr()));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_scatter_reduce_two_out(buf0,buf0,0,arg1_1,arg0_1, "prod",1));
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // [Provenance debug handles] cpp_fused_add_index_put_zeros_1:2
    cpp_fused_add_index_put_zeros_1((const int64_t*)(arg1_1.data_ptr()), (const float*)(arg0_1.data_ptr()), (const float*)(buf0.data_ptr()), (float*)(buf2.data_ptr()), (float*)(buf4.data_ptr()), s77);
    arg0_1.reset();
    arg1_1.reset();
    output_handles[0] = buf4.release();
} // AOTInductorModel::run_impl

