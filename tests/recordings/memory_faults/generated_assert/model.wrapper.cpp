























































































    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg3_1";
    inputs_info_[1].name = "arg4_1";
    constants_info_[0].name = "head_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {4, 16};
    constants_info_[0].stride = {16, 1};

    constants_info_[0].original_fqn = "head.weight";
    constants_info_[1].name = "table";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cuda;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Buffer);
    constants_info_[1].shape = {64, 16};
    constants_info_[1].stride = {16, 1};


























static inline void call_triton_poi_fused_add_index_sin_0(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const in_ptr2_type_& in_ptr2,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_index_sin_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_index_sin_0(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x1 = xindex // 16
        x0 = (xindex % 16)
        x2 = xindex
        tmp0 = tl.load(in_ptr0 + (x1), xmask, eviction_policy='evict_last')
        tmp8 = tl.load(in_ptr2 + (x2), xmask)
        tmp1 = tl.full([XBLOCK], 64, tl.int32)
        tmp2 = tmp0 + tmp1
        tmp3 = tmp0 < 0
        tmp4 = tl.where(tmp3, tmp2, tmp0)
        tl.device_assert(((0 <= tmp4) & (tmp4 < 64)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 64")
        tmp6 = tl.load(in_ptr1 + (x0 + 16*tmp4), xmask)
        tmp7 = tl_math.sin(tmp6)
        tmp9 = tmp7 + tmp8
        tl.store(out_ptr0 + (x2), tmp9, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_index_sin_0 = loadKernel("/cache/kernel.cubin", "triton_poi_fused_add_index_sin_0", 0, cubin_dir_);









    launchKernel(kernels_.triton_poi_fused_add_index_sin_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
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
        xnumel = 4
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = x0
        tmp1 = tl.full([1], 2, tl.int64)
        tmp2 = tmp0 < tmp1
        tmp3 = tl.full([1], 1, tl.int64)
        tmp4 = tmp0 < tmp3
        tmp5 = tl.full([1], 0.13724300265312195, tl.float32)
        tmp6 = tl.full([1], -0.031554341316223145, tl.float32)
        tmp7 = tl.where(tmp4, tmp5, tmp6)
        tmp8 = tl.full([1], 3, tl.int64)
        tmp9 = tmp0 < tmp8
        tmp10 = tl.full([1], 0.009545385837554932, tl.float32)
        tmp11 = tl.full([1], 0.057926177978515625, tl.float32)
        tmp12 = tl.where(tmp9, tmp10, tmp11)
        tmp13 = tl.where(tmp2, tmp7, tmp12)
        tl.store(out_ptr0 + (x0), tmp13, xmask)

    */
    uint32_t grid_0 = ((xnumel + (4 - 1)) / (4));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_1 = loadKernel("/cache/kernel.cubin", "triton_poi_fused_1", 0, cubin_dir_);






    launchKernel(kernels_.triton_poi_fused_1, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);




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
    auto arg3_1 = std::move(inputs[0]);
    auto arg4_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& head_weight = constants_->at(0);
    [[maybe_unused]] auto& table = constants_->at(1);

    if ((reinterpret_cast<std::uintptr_t>(arg3_1.data_ptr()) & (16 -1)) != 0) {




    }

    if ((reinterpret_cast<std::uintptr_t>(arg4_1.data_ptr()) & (16 -1)) != 0) {




    }
    auto arg3_1_size = arg3_1.sizes();
    int64_t s23 = arg3_1_size[0];




    const int64_t int_array_0[] = {s23, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));

    // Topologically Sorted Source Nodes: [index, sin, add], Original ATen: [aten.index, aten.sin, aten.add]
    // [Provenance debug handles] triton_poi_fused_add_index_sin_0:1
    int64_t triton_poi_fused_add_index_sin_0_xnumel = 16L*s23;
    call_triton_poi_fused_add_index_sin_0(arg4_1, table, arg3_1, buf0, triton_poi_fused_add_index_sin_0_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);


    static constexpr int64_t int_array_2[] = {4L, };
    static constexpr int64_t int_array_3[] = {1L, };

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf1_handle));

    // Unsorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] triton_poi_fused_1:2
    call_triton_poi_fused_1(buf1, 4L, this->device_idx_, stream, kernels, this->cubin_dir_);
    const int64_t int_array_4[] = {s23, 4L};
    static constexpr int64_t int_array_5[] = {4L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_4, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));

    // Topologically Sorted Source Nodes: [index, sin, add, linear], Original ATen: [aten.index, aten.sin, aten.add, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_addmm_out:3
    static constexpr int64_t int_array_6[] = {16L, 4L};
    static constexpr int64_t int_array_7[] = {1L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(buf2, buf1, buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(head_weight, 2, int_array_6, int_array_7, 0L)), 1L, 1L));


    output_handles[0] = buf2.release();
} // AOTInductorModel::run_impl

