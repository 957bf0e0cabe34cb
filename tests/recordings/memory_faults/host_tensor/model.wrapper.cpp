

















    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg3_1";
    inputs_info_[1].name = "arg4_1";
    constants_info_[0].name = "inp_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {16, 16};
    constants_info_[0].stride = {16, 1};

    constants_info_[0].original_fqn = "inp.weight";
    constants_info_[1].name = "inp_bias";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cuda;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {16};
    constants_info_[1].stride = {1};

    constants_info_[1].original_fqn = "inp.bias";
    constants_info_[2].name = "table";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].device_type = cached_torch_device_type_cuda;



    constants_info_[2].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Buffer);
    constants_info_[2].shape = {64, 16};
    constants_info_[2].stride = {16, 1};




    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";





















static inline void call_lookup_kernel_0(
    const table_type_& table,
    const ids_type_& ids,
    const out_type_& out,
    int64_t _grid_0,
    int64_t _grid_1,
    int64_t _grid_2,




){
    /*
    async_compile.triton('lookup_kernel', '''








    @triton_heuristics.user_autotune(


        triton_meta={'signature': {'table': '*fp32', 'ids': '*i64', 'out': '*fp32', 'width': 'constexpr'}, 'constants': {'width': 16}},


    )
    @triton.jit
    def lookup_kernel(table, ids, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        col = tl.arange(0, width)
        index = tl.load(ids + row)
        tl.store(out + row * width + col, tl.load(table + index * width + col))

    */
    uint32_t grid_0 = _grid_0;
    uint32_t grid_1 = _grid_1;
    uint32_t grid_2 = _grid_2;


        kernels_.lookup_kernel_0 = loadKernel("/cache/kernel.cubin", "lookup_kernel", 0, cubin_dir_);







    launchKernel(kernels_.lookup_kernel_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_add_addmm_relu_0(
    const in_out_ptr0_type_& in_out_ptr0,
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_addmm_relu_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_addmm_relu_0(in_out_ptr0, in_ptr0, in_ptr1, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = (xindex % 16)
        x2 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
        tmp1 = tl.load(in_out_ptr0 + (x2), xmask)
        tmp5 = tl.load(in_ptr1 + (x2), xmask)
        tmp2 = tmp0 + tmp1
        tmp3 = tl.full([1], 0, tl.int32)
        tmp4 = triton_helpers.maximum(tmp3, tmp2)
        tmp6 = tmp4 + tmp5
        tl.store(in_out_ptr0 + (x2), tmp6, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_addmm_relu_0 = loadKernel("/cache/kernel.cubin", "triton_poi_fused_add_addmm_relu_0", 0, cubin_dir_);








    launchKernel(kernels_.triton_poi_fused_add_addmm_relu_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(



) {}

AOTI_NOINLINE static void check_input_0(






    int32_t arg3_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg3_1_size[0] < 2) {







    if (arg3_1_size[0] > 4096) {







    if (16 != arg3_1_size[1]) {








    if (16 != arg3_1_stride[0]) {







    if (1 != arg3_1_stride[1]) {













        << "expected: " << arg3_1_expected_device_type << "1(cuda), "





AOTI_NOINLINE static void check_input_1(






    int32_t arg4_1_expected_dtype = aoti_torch_dtype_int64();









    if (arg4_1_size[0] < 2) {







    if (arg4_1_size[0] > 4096) {








    if (1 != arg4_1_stride[0]) {













        << "expected: " << arg4_1_expected_device_type << "1(cuda), "











AOTI_NOINLINE static void __check_inputs_outputs(









void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg3_1 = std::move(inputs[0]);
    auto arg4_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& inp_weight = constants_->at(0);
    [[maybe_unused]] auto& inp_bias = constants_->at(1);
    [[maybe_unused]] auto& table = constants_->at(2);

    if ((reinterpret_cast<std::uintptr_t>(arg3_1.data_ptr()) & (16 -1)) != 0) {




    }

    if ((reinterpret_cast<std::uintptr_t>(arg4_1.data_ptr()) & (16 -1)) != 0) {




    }
    auto arg3_1_size = arg3_1.sizes();
    int64_t s23 = arg3_1_size[0];




    const int64_t int_array_0[] = {s23, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));

    // Topologically Sorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] lookup_kernel_0:1
    call_lookup_kernel_0(table, arg4_1, buf0, s23, 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);

    const int64_t int_array_2[] = {s23, 16L};
    static constexpr int64_t int_array_3[] = {16L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));

    // Topologically Sorted Source Nodes: [linear, ], Original ATen: [aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:2
    static constexpr int64_t int_array_4[] = {16L, 16L};
    static constexpr int64_t int_array_5[] = {1L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf2, arg3_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(inp_weight, 2, int_array_4, int_array_5, 0L))));

    auto buf3 = std::move(buf2);  // reuse
    // Topologically Sorted Source Nodes: [, relu, add], Original ATen: [aten.addmm, aten.relu, aten.add]
    // [Provenance debug handles] triton_poi_fused_add_addmm_relu_0:3
    int64_t triton_poi_fused_add_addmm_relu_0_xnumel = 16L*s23;
    call_triton_poi_fused_add_addmm_relu_0(buf3, inp_bias, buf0, triton_poi_fused_add_addmm_relu_0_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);

    output_handles[0] = buf3.release();
} // AOTInductorModel::run_impl

