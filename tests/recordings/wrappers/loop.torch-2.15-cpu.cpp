
extern "C"  void  cpp_fused_gt_0(const int64_t* in_ptr0,
                       bool* out_ptr0);
extern "C"  void  cpp_fused_mul_sub_1(float* in_out_ptr0,
                       const int64_t* in_ptr0,
                       int64_t* out_ptr0);
extern "C"  void  cpp_fused_add_2(const float* in_ptr0,
                       float* out_ptr0);




















    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg0_1";
    inputs_info_[1].name = "arg1_1";


    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";





















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
    inputs.clear();

    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg0_1, {8L, 8L}, {8L, 1L}, "input"); }
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(arg1_1, {}, {}, "input"); }
    RAIIAtenTensorHandle buf0_cond_result;
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(arg0_1, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(arg1_1, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    while (1) {
        // subgraph: while_loop_cond_graph_0
        AtenTensorHandle while_loop_cond_graph_0_arg0_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(buf1, &while_loop_cond_graph_0_arg0_1_handle));
        RAIIAtenTensorHandle while_loop_cond_graph_0_arg0_1(while_loop_cond_graph_0_arg0_1_handle);
        AtenTensorHandle while_loop_cond_graph_0_arg1_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(buf2, &while_loop_cond_graph_0_arg1_1_handle));
        RAIIAtenTensorHandle while_loop_cond_graph_0_arg1_1(while_loop_cond_graph_0_arg1_1_handle);
        static constexpr int64_t *int_array_0=nullptr;
        AtenTensorHandle while_loop_cond_graph_0_buf0_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, int_array_0, int_array_0, cached_torch_dtype_bool, cached_torch_device_type_cpu, this->device_idx_, &while_loop_cond_graph_0_buf0_handle));
        RAIIAtenTensorHandle while_loop_cond_graph_0_buf0(while_loop_cond_graph_0_buf0_handle);
        // [Provenance debug handles] cpp_fused_gt_0:1
        cpp_fused_gt_0((const int64_t*)(while_loop_cond_graph_0_arg1_1.data_ptr()), (bool*)(while_loop_cond_graph_0_buf0.data_ptr()));
        while_loop_cond_graph_0_arg1_1.reset();
        buf0_cond_result.reset();
        buf0_cond_result = std::move(while_loop_cond_graph_0_buf0);
        bool buf0_cond_result_scalar;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_item_bool(buf0_cond_result, &buf0_cond_result_scalar));
        if (!buf0_cond_result_scalar) break;
        // subgraph: while_loop_body_graph_0
        AtenTensorHandle while_loop_body_graph_0_arg0_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(buf1, &while_loop_body_graph_0_arg0_1_handle));
        RAIIAtenTensorHandle while_loop_body_graph_0_arg0_1(while_loop_body_graph_0_arg0_1_handle);
        AtenTensorHandle while_loop_body_graph_0_arg1_1_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_assign_tensors_out(buf2, &while_loop_body_graph_0_arg1_1_handle));
        RAIIAtenTensorHandle while_loop_body_graph_0_arg1_1(while_loop_body_graph_0_arg1_1_handle);
        static constexpr int64_t int_array_1[] = {8L, 8L};
        static constexpr int64_t int_array_2[] = {8L, 1L};
        AtenTensorHandle while_loop_body_graph_0_buf0_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_1, int_array_2, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &while_loop_body_graph_0_buf0_handle));
        RAIIAtenTensorHandle while_loop_body_graph_0_buf0(while_loop_body_graph_0_buf0_handle);
        // Unsorted Source Nodes: [while_loop, matmul, t], Original ATen: [aten.mm, aten.t]
        // [Provenance debug handles] aoti_torch_cpu_mm_out:2
        static constexpr int64_t int_array_3[] = {8L, 8L};
        static constexpr int64_t int_array_4[] = {1L, 8L};
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(while_loop_body_graph_0_buf0, while_loop_body_graph_0_arg0_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(while_loop_body_graph_0_arg0_1, 2, int_array_3, int_array_4, 0L))));
        while_loop_body_graph_0_arg0_1.reset();
        auto while_loop_body_graph_0_buf1 = std::move(while_loop_body_graph_0_buf0);  // reuse
        static constexpr int64_t *int_array_5=nullptr;
        AtenTensorHandle while_loop_body_graph_0_buf2_handle;
        AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, int_array_5, int_array_5, cached_torch_dtype_int64, cached_torch_device_type_cpu, this->device_idx_, &while_loop_body_graph_0_buf2_handle));
        RAIIAtenTensorHandle while_loop_body_graph_0_buf2(while_loop_body_graph_0_buf2_handle);
        // [Provenance debug handles] cpp_fused_mul_sub_1:3
        cpp_fused_mul_sub_1((float*)(while_loop_body_graph_0_buf1.data_ptr()), (const int64_t*)(while_loop_body_graph_0_arg1_1.data_ptr()), (int64_t*)(while_loop_body_graph_0_buf2.data_ptr()));
        while_loop_body_graph_0_arg1_1.reset();
        buf1.reset();
        buf1 = std::move(while_loop_body_graph_0_buf1);
        buf2.reset();
        buf2 = std::move(while_loop_body_graph_0_buf2);
    }
    arg0_1.reset();
    arg1_1.reset();
    if (_check_aoti_runtime_check_inputs_env()) { assert_size_stride(buf1, {8L, 8L}, {8L, 1L}, "torch.ops.while_loop", cached_torch_dtype_float32, "torch.float32"); }
    if (_check_aoti_runtime_check_inputs_env()) { assert_alignment(buf1, 16, "torch.ops.while_loop"); }

    static constexpr int64_t int_array_6[] = {8L, 8L};
    static constexpr int64_t int_array_7[] = {8L, 1L};
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_6, int_array_7, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    // [Provenance debug handles] cpp_fused_add_2:4
    cpp_fused_add_2((const float*)(buf1.data_ptr()), (float*)(buf3.data_ptr()));
    output_handles[0] = buf3.release();
} // AOTInductorModel::run_impl

