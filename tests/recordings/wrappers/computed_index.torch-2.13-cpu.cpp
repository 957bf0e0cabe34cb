extern "C"  void  cpp_fused_add_embedding_mul_0(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0,
                       const int64_t ks1);
extern "C"  void  cpp_fused_add_arange_argmax_embedding_expand_gather_index_rsub_select_squeeze_sub_view_1(const float* in_ptr0,
                       const int64_t* in_ptr1,
                       const float* in_ptr2,
                       const float* in_ptr3,
                       const int64_t* in_ptr4,
                       int64_t* out_ptr0,
                       float* out_ptr1,
                       const int64_t ks0,
                       const int64_t ks1);



















    : AOTInductorModelBase(3,





    inputs_info_[0].name = "arg3_1";
    inputs_info_[1].name = "arg4_1";
    inputs_info_[2].name = "arg5_1";
    constants_info_[0].name = "table_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cpu;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {40, 8};
    constants_info_[0].stride = {8, 1};

    constants_info_[0].original_fqn = "table.weight";
    constants_info_[1].name = "mix_weight";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cpu;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {8, 8};
    constants_info_[1].stride = {8, 1};

    constants_info_[1].original_fqn = "mix.weight";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















void AOTInductorModel::_const_run_impl(



) {}









































































































































































































AOTI_NOINLINE static void __check_inputs_outputs(










void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {

    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 3);
    auto arg3_1 = std::move(inputs[0]);
    auto arg4_1 = std::move(inputs[1]);
    auto arg5_1 = std::move(inputs[2]);
    [[maybe_unused]] auto& table_weight = constants_->at(0);
    [[maybe_unused]] auto& mix_weight = constants_->at(1);
    auto arg3_1_size = arg3_1.sizes();
    int64_t s2 = arg3_1_size[0];
    int64_t s52 = s2;
    int64_t s68 = s2;
    int64_t s27 = arg3_1_size[1];
    inputs.clear();

    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg3_1, {s2, s27}, {s27, 1L}, "input"); }
    const int64_t int_array_0[] = {s2, s27, 8L};
    const int64_t int_array_1[] = {8L*s27, 8L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(3, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    static constexpr int64_t int_array_2[] = {8L, };
    static constexpr int64_t int_array_3[] = {1L, };
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // [Provenance debug handles] cpp_fused_add_embedding_mul_0:1
    cpp_fused_add_embedding_mul_0((const int64_t*)(arg3_1.data_ptr()), (const float*)(table_weight.data_ptr()), (float*)(buf0.data_ptr()), (float*)(buf1.data_ptr()), s2, s27);
    const int64_t int_array_4[] = {s2*s27, 8L};
    static constexpr int64_t int_array_5[] = {8L, 1L};
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_4, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [mul, add, embedding, linear], Original ATen: [aten.mul, aten.add, aten.embedding, aten.view, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cpu_addmm_out:2
    const int64_t int_array_6[] = {s2*s27, 8L};
    static constexpr int64_t int_array_7[] = {8L, 1L};
    static constexpr int64_t int_array_8[] = {8L, 8L};
    static constexpr int64_t int_array_9[] = {1L, 8L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_addmm_out(buf2, buf1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 2, int_array_6, int_array_7, 0L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(mix_weight, 2, int_array_8, int_array_9, 0L)), 1L, 1L));
    buf0.reset();
    buf1.reset();
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg5_1, {s2, 40L}, {40L, 1L}, "input"); }
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg4_1, {s2, }, {1L, }, "input"); }
    const int64_t int_array_10[] = {s2, };
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_10, int_array_3, cached_torch_dtype_int64, cached_torch_device_type_cpu, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    const int64_t int_array_11[] = {s2, 8L};
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_11, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // [Provenance debug handles] cpp_fused_add_arange_argmax_embedding_expand_gather_index_rsub_select_squeeze_sub_view_1:3
    cpp_fused_add_arange_argmax_embedding_expand_gather_index_rsub_select_squeeze_sub_view_1((const float*)(arg5_1.data_ptr()), (const int64_t*)(arg4_1.data_ptr()), (const float*)(buf2.data_ptr()), (const float*)(table_weight.data_ptr()), (const int64_t*)(arg3_1.data_ptr()), (int64_t*)(buf3.data_ptr()), (float*)(buf4.data_ptr()), s2, s27);
    arg3_1.reset();
    arg4_1.reset();
    arg5_1.reset();
    output_handles[0] = buf4.release();
} // AOTInductorModel::run_impl

