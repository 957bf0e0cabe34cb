
extern "C"  void  cpp_fused_0(float* out_ptr0);
extern "C"  void  cpp_fused_halve_rows_tanh_1(float* in_out_ptr0,
                       const int64_t ks0);
extern "C"  void  cpp_fused_2(float* out_ptr0);
















    : AOTInductorModelBase(1,





    inputs_info_[0].name = "arg4_1";
    constants_info_[0].name = "inp_weight";
    constants_info_[0].dtype = static_cast<int32_t>(cached_torch_dtype_float32);



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {8, 8};
    constants_info_[0].stride = {8, 1};

    constants_info_[0].original_fqn = "inp.weight";
    constants_info_[1].name = "out_weight";
    constants_info_[1].dtype = static_cast<int32_t>(cached_torch_dtype_float32);



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {4, 8};
    constants_info_[1].stride = {8, 1};

    constants_info_[1].original_fqn = "out.weight";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















void AOTInductorModel::_const_run_impl(





AOTI_NOINLINE static void check_input_0(






    int32_t arg4_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg4_1_size[0] < 4) {





    }

    if (arg4_1_size[0] > 64) {







    if (8 != arg4_1_size[1]) {








    if (8 != arg4_1_stride[0]) {







    if (1 != arg4_1_stride[1]) {













        << "expected: " << arg4_1_expected_device_type << "0(cpu), "











AOTI_NOINLINE static void __check_inputs_outputs(








void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg4_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& inp_weight = constants_->at(0);
    [[maybe_unused]] auto& out_weight = constants_->at(1);
    auto arg4_1_size = arg4_1.sizes();
    int64_t arg4_1_size_0 = arg4_1_size[0];
    int64_t s44 = (1.0/2.0)*arg4_1_size_0;
    inputs.clear();

    static constexpr int64_t int_array_0[] = {8L, };
    static constexpr int64_t int_array_1[] = {1L, };
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // [Provenance debug handles] cpp_fused_0:45
    cpp_fused_0((float*)(buf0.data_ptr()));
    const int64_t int_array_2[] = {2L*s44, 8L};
    static constexpr int64_t int_array_3[] = {8L, 1L};
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm]
    static constexpr int64_t int_array_4[] = {8L, 8L};
    static constexpr int64_t int_array_5[] = {1L, 8L};
    // [Provenance debug handles] aoti_torch_cpu_addmm_out:48
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(buf1, buf0, arg4_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(inp_weight, 2, int_array_4, int_array_5, 0L)), 1L, 1L));
    arg4_1.reset();
    buf0.reset();
    auto buf2 = std::move(buf1);  // reuse
    // [Provenance debug handles] cpp_fused_halve_rows_tanh_1:46
    cpp_fused_halve_rows_tanh_1((float*)(buf2.data_ptr()), s44);
    // Topologically Sorted Source Nodes: [tanh, halve_rows], Original ATen: [aten.tanh, aotizoo.halve_rows]
    AtenTensorHandle buf4_handle;  // output buffer
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_new_uninitialized_tensor(&buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    aoti_torch_proxy_executor_call_function(proxy_executor, 0, 0, std::array<int64_t, 0>{}.data(), 2, std::array<AtenTensorHandle, 2>{buf2, buf4}.data());
    buf2.reset();

    static constexpr int64_t int_array_6[] = {4L, };
    AtenTensorHandle buf5_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_6, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf5_handle));
    RAIIAtenTensorHandle buf5(buf5_handle);
    // [Provenance debug handles] cpp_fused_2:47
    cpp_fused_2((float*)(buf5.data_ptr()));
    const int64_t int_array_7[] = {s44, 4L};
    static constexpr int64_t int_array_8[] = {4L, 1L};
    AtenTensorHandle buf6_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_7, int_array_8, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf6_handle));
    RAIIAtenTensorHandle buf6(buf6_handle);
    // Topologically Sorted Source Nodes: [linear_1], Original ATen: [aten.t, aten.addmm]
    static constexpr int64_t int_array_9[] = {8L, 4L};
    // [Provenance debug handles] aoti_torch_cpu_addmm_out:49
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(buf6, buf5, buf4, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(out_weight, 2, int_array_9, int_array_5, 0L)), 1L, 1L));
    output_handles[0] = buf6.release();
} // AOTInductorModel::run_impl

