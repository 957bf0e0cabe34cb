extern "C"  void  cpp_fused_exp_mul_unsqueeze_0(const float* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       float* out_ptr1);

extern "C"  void  cpp_fused_relu_1(float* in_out_ptr0);


















    : AOTInductorModelBase(1,





    inputs_info_[0].name = "arg3_1";
    constants_info_[0].name = "weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cpu;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {32, 32};
    constants_info_[0].stride = {32, 1};


    constants_info_[1].name = "scale";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cpu;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {32};
    constants_info_[1].stride = {1};


    constants_info_[2].name = "other";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].device_type = cached_torch_device_type_cpu;



    constants_info_[2].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[2].shape = {32, 32};
    constants_info_[2].stride = {32, 1};


    constants_info_[3].name = "_FOLDED_CONST_permute";
    constants_info_[3].dtype = cached_torch_dtype_float32;
    constants_info_[3].device_type = cached_torch_device_type_cpu;


    constants_info_[3].from_folded = true;
    constants_info_[3].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::FoldedConstant);
    constants_info_[3].shape = {32, 32};





    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";




















    folded_constants_map["_FOLDED_CONST_permute"] = output_handles[0];








void AOTInductorModel::_const_run_impl(



) {
    [[maybe_unused]] auto& weight = constants_->at(0);
    [[maybe_unused]] auto& scale = constants_->at(1);
    [[maybe_unused]] auto& other = constants_->at(2);

    static constexpr int64_t int_array_0[] = {32L, };
    static constexpr int64_t int_array_1[] = {1L, };

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));

    static constexpr int64_t int_array_2[] = {32L, 32L};
    static constexpr int64_t int_array_3[] = {32L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));

    // [Provenance debug handles] cpp_fused_exp_mul_unsqueeze_0:1
    cpp_fused_exp_mul_unsqueeze_0((const float*)(scale.data_ptr()), (const float*)(weight.data_ptr()), (float*)(buf0.data_ptr()), (float*)(buf1.data_ptr()));


    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf2_handle));

    // Topologically Sorted Source Nodes: [exp, unsqueeze, mul, matmul], Original ATen: [aten.exp, aten.unsqueeze, aten.mul, aten.mm]
    // [Provenance debug handles] aoti_torch_cpu_mm_out:2
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf2, buf1, other));
    static constexpr int64_t int_array_4[] = {1L, 32L};
    auto var_0 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf2, 2, int_array_2, int_array_4, 0L));
    output_handles[0] = var_0.release();
} // AOTInductorModel::_const_run_impl

AOTI_NOINLINE static void check_input_0(






    int32_t arg3_1_expected_dtype = aoti_torch_dtype_float32();
















































        << "expected: " << arg3_1_expected_device_type << "0(cpu), "











AOTI_NOINLINE static void __check_inputs_outputs(








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

