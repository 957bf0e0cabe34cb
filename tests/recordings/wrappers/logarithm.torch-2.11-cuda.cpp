












    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg4_1";
    inputs_info_[1].name = "arg5_1";
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
    constants_info_[2].name = "out_weight";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].device_type = cached_torch_device_type_cuda;



    constants_info_[2].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[2].shape = {8, 16};
    constants_info_[2].stride = {16, 1};

    constants_info_[2].original_fqn = "out.weight";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";
    out_spec_ = R"([1,{"type":null,"context":null,"children_spec":[]}])";




















static inline void call_triton_poi_fused_addmm_log_mul_sigmoid_0(
    const in_out_ptr0_type_& in_out_ptr0,
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_addmm_log_mul_sigmoid_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_addmm_log_mul_sigmoid_0(in_out_ptr0, in_ptr0, in_ptr1, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = (xindex % 16)
        x2 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
        tmp1 = tl.load(in_out_ptr0 + (x2), xmask)
        tmp4 = tl.load(in_ptr1 + (x2), xmask)
        tmp2 = tmp0 + tmp1
        tmp3 = tl.sigmoid(tmp2)
        tmp5 = tl_math.log(tmp4)
        tmp6 = tmp3 * tmp5
        tl.store(in_out_ptr0 + (x2), tmp6, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_addmm_log_mul_sigmoid_0 = loadKernel("/cache/logarithm/clg2flmx/cw4pdpbt.cubin", "triton_poi_fused_addmm_log_mul_sigmoid_0", 0, cubin_dir_);








    launchKernel(kernels_.triton_poi_fused_addmm_log_mul_sigmoid_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_1(
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_1', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_1(out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 8
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = x0
        tmp1 = tl.full([1], 4, tl.int64)
        tmp2 = tmp0 < tmp1
        tmp3 = tl.full([1], 2, tl.int64)
        tmp4 = tmp0 < tmp3
        tmp5 = tl.full([1], 1, tl.int64)
        tmp6 = tmp0 < tmp5
        tmp7 = tl.full([1], 0.15987223386764526, tl.float32)
        tmp8 = tl.full([1], 0.0185835063457489, tl.float32)
        tmp9 = tl.where(tmp6, tmp7, tmp8)
        tmp10 = tl.full([1], 3, tl.int64)
        tmp11 = tmp0 < tmp10
        tmp12 = tl.full([1], -0.11803382635116577, tl.float32)
        tmp13 = tl.full([1], 0.22976195812225342, tl.float32)
        tmp14 = tl.where(tmp11, tmp12, tmp13)
        tmp15 = tl.where(tmp4, tmp9, tmp14)
        tmp16 = tl.full([1], 6, tl.int64)
        tmp17 = tmp0 < tmp16
        tmp18 = tl.full([1], 5, tl.int64)
        tmp19 = tmp0 < tmp18
        tmp20 = tl.full([1], 0.10223516821861267, tl.float32)
        tmp21 = tl.full([1], -0.18978634476661682, tl.float32)
        tmp22 = tl.where(tmp19, tmp20, tmp21)
        tmp23 = tl.full([1], 7, tl.int64)
        tmp24 = tmp0 < tmp23
        tmp25 = tl.full([1], 0.23927071690559387, tl.float32)
        tmp26 = tl.full([1], 0.18984344601631165, tl.float32)
        tmp27 = tl.where(tmp24, tmp25, tmp26)
        tmp28 = tl.where(tmp17, tmp22, tmp27)
        tmp29 = tl.where(tmp2, tmp15, tmp28)
        tl.store(out_ptr0 + (x0), tmp29, xmask)

    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_1 = loadKernel("/cache/logarithm/clg2flmx/c2zfsfig.cubin", "triton_poi_fused_1", 0, cubin_dir_);






    launchKernel(kernels_.triton_poi_fused_1, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(





AOTI_NOINLINE static void check_input_0(






    int32_t arg4_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg4_1_size[0] < 2) {





    }

    if (arg4_1_size[0] > 64) {







    if (16 != arg4_1_size[1]) {








    if (16 != arg4_1_stride[0]) {







    if (1 != arg4_1_stride[1]) {













        << "expected: " << arg4_1_expected_device_type << "1(cuda), "





AOTI_NOINLINE static void check_input_1(






    int32_t arg5_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg5_1_size[0] < 2) {







    if (arg5_1_size[0] > 64) {







    if (16 != arg5_1_size[1]) {








    if (16 != arg5_1_stride[0]) {







    if (1 != arg5_1_stride[1]) {













        << "expected: " << arg5_1_expected_device_type << "1(cuda), "











AOTI_NOINLINE static void __check_inputs_outputs(









void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg4_1 = std::move(inputs[0]);
    auto arg5_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& inp_weight = constants_->at(0);
    [[maybe_unused]] auto& inp_bias = constants_->at(1);
    [[maybe_unused]] auto& out_weight = constants_->at(2);

    if ((reinterpret_cast<std::uintptr_t>(arg4_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg4_1_aligned;
        aoti_torch_clone_preserve_strides(arg4_1, &arg4_1_aligned);
        arg4_1 = std::move(RAIIAtenTensorHandle(arg4_1_aligned));
    }

    if ((reinterpret_cast<std::uintptr_t>(arg5_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg5_1_aligned;
        aoti_torch_clone_preserve_strides(arg5_1, &arg5_1_aligned);
        arg5_1 = std::move(RAIIAtenTensorHandle(arg5_1_aligned));
    }
    auto arg4_1_size = arg4_1.sizes();
    int64_t s77 = arg4_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [linear, ], Original ATen: [aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:1
    static constexpr int64_t int_array_2[] = {16L, 16L};
    static constexpr int64_t int_array_3[] = {1L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf0, arg4_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(inp_weight, 2, int_array_2, int_array_3, 0L))));
    arg4_1.reset();
    auto buf1 = std::move(buf0);  // reuse
    // Topologically Sorted Source Nodes: [, sigmoid, log, mul], Original ATen: [aten.addmm, aten.sigmoid, aten.log, aten.mul]
    // [Provenance debug handles] triton_poi_fused_addmm_log_mul_sigmoid_0:2
    int64_t triton_poi_fused_addmm_log_mul_sigmoid_0_xnumel = 16L*s77;
    call_triton_poi_fused_addmm_log_mul_sigmoid_0(buf1, inp_bias, arg5_1, triton_poi_fused_addmm_log_mul_sigmoid_0_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg5_1.reset();
    static constexpr int64_t int_array_4[] = {8L, };
    static constexpr int64_t int_array_5[] = {1L, };
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_4, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Unsorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] triton_poi_fused_1:3
    call_triton_poi_fused_1(buf2, 8L, this->device_idx_, stream, kernels, this->cubin_dir_);
    const int64_t int_array_6[] = {s77, 8L};
    static constexpr int64_t int_array_7[] = {8L, 1L};
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_6, int_array_7, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    // Topologically Sorted Source Nodes: [, sigmoid, log, mul, linear_1], Original ATen: [aten.addmm, aten.sigmoid, aten.log, aten.mul, aten.t]
    // [Provenance debug handles] aoti_torch_cuda_addmm_out:4
    static constexpr int64_t int_array_8[] = {16L, 8L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(buf3, buf2, buf1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(out_weight, 2, int_array_8, int_array_3, 0L)), 1L, 1L));
    buf1.reset();
    buf2.reset();
    output_handles[0] = buf3.release();
} // AOTInductorModel::run_impl

