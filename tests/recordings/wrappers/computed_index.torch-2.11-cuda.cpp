














    : AOTInductorModelBase(3,





    inputs_info_[0].name = "arg3_1";
    inputs_info_[1].name = "arg4_1";
    inputs_info_[2].name = "arg5_1";
    constants_info_[0].name = "table_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {40, 8};
    constants_info_[0].stride = {8, 1};

    constants_info_[0].original_fqn = "table.weight";
    constants_info_[1].name = "mix_weight";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cuda;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {8, 8};
    constants_info_[1].stride = {8, 1};

    constants_info_[1].original_fqn = "mix.weight";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















static inline void call_triton_poi_fused_add_embedding_mul_0(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t ynumel,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_embedding_mul_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_embedding_mul_0(in_ptr0, in_ptr1, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
        xnumel = 8
        yoffset = tl.program_id(1) * YBLOCK
        yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
        ymask = yindex < ynumel
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
        xmask = xindex < xnumel
        y0 = yindex
        x1 = xindex
        tmp0 = tl.load(in_ptr0 + (y0), ymask, eviction_policy='evict_last')
        tmp1 = tl.full([1, 1], 2, tl.int64)
        tmp2 = tmp0 * tmp1
        tmp3 = tl.full([1, 1], 1, tl.int64)
        tmp4 = tmp2 + tmp3
        tmp5 = tl.full([1, 1], 40, tl.int32)
        tmp6 = tmp4 + tmp5
        tmp7 = tmp4 < 0
        tmp8 = tl.where(tmp7, tmp6, tmp4)
        tl.device_assert(((0 <= tmp8) & (tmp8 < 40)) | ~(ymask), "index out of bounds: 0 <= tmp8 < 40")
        tmp10 = tl.load(in_ptr1 + (x1 + 8*tmp8), xmask & ymask)
        tl.store(out_ptr0 + (x1 + 8*y0), tmp10, xmask & ymask)

    */
    uint32_t grid_0 = ((xnumel + (4 - 1)) / (4));
    uint32_t grid_1 = ((ynumel + (64 - 1)) / (64));
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_embedding_mul_0 = loadKernel("/cache/cg2kio6w.cubin", "triton_poi_fused_add_embedding_mul_0", 0, cubin_dir_);









    launchKernel(kernels_.triton_poi_fused_add_embedding_mul_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
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
        tmp7 = tl.full([1], 0.11696209758520126, tl.float32)
        tmp8 = tl.full([1], 0.35343894362449646, tl.float32)
        tmp9 = tl.where(tmp6, tmp7, tmp8)
        tmp10 = tl.full([1], 3, tl.int64)
        tmp11 = tmp0 < tmp10
        tmp12 = tl.full([1], 0.1833750307559967, tl.float32)
        tmp13 = tl.full([1], 0.2197858691215515, tl.float32)
        tmp14 = tl.where(tmp11, tmp12, tmp13)
        tmp15 = tl.where(tmp4, tmp9, tmp14)
        tmp16 = tl.full([1], 6, tl.int64)
        tmp17 = tmp0 < tmp16
        tmp18 = tl.full([1], 5, tl.int64)
        tmp19 = tmp0 < tmp18
        tmp20 = tl.full([1], -0.12374091148376465, tl.float32)
        tmp21 = tl.full([1], 0.16964463889598846, tl.float32)
        tmp22 = tl.where(tmp19, tmp20, tmp21)
        tmp23 = tl.full([1], 7, tl.int64)
        tmp24 = tmp0 < tmp23
        tmp25 = tl.full([1], 0.04062559828162193, tl.float32)
        tmp26 = tl.full([1], -0.08443467319011688, tl.float32)
        tmp27 = tl.where(tmp24, tmp25, tmp26)
        tmp28 = tl.where(tmp17, tmp22, tmp27)
        tmp29 = tl.where(tmp2, tmp15, tmp28)
        tl.store(out_ptr0 + (x0), tmp29, xmask)

    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_1 = loadKernel("/cache/cmd6b4aa.cubin", "triton_poi_fused_1", 0, cubin_dir_);






    launchKernel(kernels_.triton_poi_fused_1, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}


static inline void call_triton_per_fused_argmax_2(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,
    int64_t r0_numel,




){
    /*
    async_compile.triton('triton_per_fused_argmax_2', '''








    @triton_heuristics.persistent_reduction(



        triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*i64', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},

    )
    @triton.jit
    def triton_per_fused_argmax_2(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr):
        r0_numel = 40
        R0_BLOCK: tl.constexpr = 64
        rnumel = r0_numel
        RBLOCK: tl.constexpr = R0_BLOCK
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
        xmask = xindex < xnumel
        r0_index = tl.arange(0, R0_BLOCK)[None, :]
        r0_offset = 0
        r0_mask = r0_index < r0_numel
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (r0_1 + 40*x0), r0_mask & xmask, other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = tl.where(r0_mask & xmask, tmp1, float("-inf"))
        tmp4 = tl.broadcast_to(rindex, tmp3.shape)
        tmp2_val, tmp2_idx = triton_helpers.max_with_index(tmp3, tmp4, 1)
        tmp2 = tmp2_idx[:, None]
        tmp2 = tmp2.to(tl.float32)
        tl.store(out_ptr0 + (x0), tmp2, xmask)

    */
    uint32_t grid_0 = xnumel;
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_per_fused_argmax_2 = loadKernel("/cache/cfkzv4nb.cubin", "triton_per_fused_argmax_2", 16, cubin_dir_);








    launchKernel(kernels_.triton_per_fused_argmax_2, grid_0, grid_1, grid_2, 2, 16, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const in_ptr2_type_& in_ptr2,
    const in_ptr3_type_& in_ptr3,
    const in_ptr4_type_& in_ptr4,
    const out_ptr0_type_& out_ptr0,
    int64_t ks0,
    int64_t ynumel,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'in_ptr3': '*i64', 'in_ptr4': '*i64', 'out_ptr0': '*fp32', 'ks0': 'i64', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3(in_ptr0, in_ptr1, in_ptr2, in_ptr3, in_ptr4, out_ptr0, ks0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
        xnumel = 8
        yoffset = tl.program_id(1) * YBLOCK
        yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
        ymask = yindex < ynumel
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
        xmask = xindex < xnumel
        y0 = yindex
        x1 = xindex
        tmp0 = tl.load(in_ptr0 + (y0), ymask, eviction_policy='evict_last')
        tmp18 = tl.load(in_ptr3 + (y0), ymask, eviction_policy='evict_last')
        tmp32 = tl.load(in_ptr4 + (ks0*y0), ymask, eviction_policy='evict_last')
        tmp1 = tl.full([1, 1], 1, tl.int64)
        tmp2 = tmp0 - tmp1
        tmp3 = ks0
        tmp4 = tmp2 + tmp3
        tmp5 = tmp2 < 0
        tmp6 = tl.where(tmp5, tmp4, tmp2)
        tl.device_assert(((0 <= tmp6) & (tmp6 < ks0)) | ~(ymask), "index out of bounds: 0 <= tmp6 < ks0")
        tmp8 = tl.load(in_ptr1 + (x1 + 8*tmp6 + 8*ks0*y0), xmask & ymask)
        tmp9 = tl.full([1, 1], 39, tl.int64)
        tmp10 = tmp9 - tmp0
        tmp11 = tl.full([1, 1], 40, tl.int32)
        tmp12 = tmp10 + tmp11
        tmp13 = tmp10 < 0
        tmp14 = tl.where(tmp13, tmp12, tmp10)
        tl.device_assert(((0 <= tmp14) & (tmp14 < 40)) | ~(ymask), "index out of bounds: 0 <= tmp14 < 40")
        tmp16 = tl.load(in_ptr2 + (x1 + 8*tmp14), xmask & ymask)
        tmp17 = tmp8 + tmp16
        tmp19 = tmp18 + tmp11
        tmp20 = tmp18 < 0
        tmp21 = tl.where(tmp20, tmp19, tmp18)
        tl.device_assert(((0 <= tmp21) & (tmp21 < 40)) | ~(ymask), "index out of bounds: 0 <= tmp21 < 40")
        tmp23 = tl.load(in_ptr2 + (x1 + 8*tmp21), xmask & ymask)
        tmp24 = tmp17 + tmp23
        tmp25 = tmp3 - tmp0
        tmp26 = tmp25 + tmp3
        tmp27 = tmp25 < 0
        tmp28 = tl.where(tmp27, tmp26, tmp25)
        tl.device_assert(((0 <= tmp28) & (tmp28 < ks0)) | ~(ymask), "index out of bounds: 0 <= tmp28 < ks0")
        tmp30 = tl.load(in_ptr1 + (x1 + 8*tmp28 + 8*ks0*y0), xmask & ymask)
        tmp31 = tmp24 + tmp30
        tmp33 = tmp0 + tmp32
        tmp34 = tmp33 + tmp11
        tmp35 = tmp33 < 0
        tmp36 = tl.where(tmp35, tmp34, tmp33)
        tl.device_assert(((0 <= tmp36) & (tmp36 < 40)) | ~(ymask), "index out of bounds: 0 <= tmp36 < 40")
        tmp38 = tl.load(in_ptr2 + (x1 + 8*tmp36), xmask & ymask)
        tmp39 = tmp31 + tmp38
        tl.store(out_ptr0 + (x1 + 8*y0), tmp39, xmask & ymask)

    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = ((ynumel + (4 - 1)) / (4));
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3 = loadKernel("/cache/ctgiuheu.cubin", "triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3", 0, cubin_dir_);













    launchKernel(kernels_.triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);




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

    if ((reinterpret_cast<std::uintptr_t>(arg3_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg3_1_aligned;
        aoti_torch_clone_preserve_strides(arg3_1, &arg3_1_aligned);
        arg3_1 = std::move(RAIIAtenTensorHandle(arg3_1_aligned));
    }

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
    auto arg3_1_size = arg3_1.sizes();
    int64_t s2 = arg3_1_size[0];
    int64_t s27 = arg3_1_size[1];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s2, s27, 8L};
    const int64_t int_array_1[] = {8L*s27, 8L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(3, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [mul, add, embedding], Original ATen: [aten.mul, aten.add, aten.embedding]
    // [Provenance debug handles] triton_poi_fused_add_embedding_mul_0:6
    int64_t triton_poi_fused_add_embedding_mul_0_ynumel = s2*s27;
    call_triton_poi_fused_add_embedding_mul_0(arg3_1, table_weight, buf0, triton_poi_fused_add_embedding_mul_0_ynumel, 8L, this->device_idx_, stream, kernels, this->cubin_dir_);
    static constexpr int64_t int_array_2[] = {8L, };
    static constexpr int64_t int_array_3[] = {1L, };
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // Unsorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] triton_poi_fused_1:7
    call_triton_poi_fused_1(buf1, 8L, this->device_idx_, stream, kernels, this->cubin_dir_);
    const int64_t int_array_4[] = {s2*s27, 8L};
    static constexpr int64_t int_array_5[] = {8L, 1L};
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_4, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [mul, add, embedding, linear], Original ATen: [aten.mul, aten.add, aten.embedding, aten.view, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_addmm_out:8
    const int64_t int_array_6[] = {s2*s27, 8L};
    static constexpr int64_t int_array_7[] = {8L, 1L};
    static constexpr int64_t int_array_8[] = {8L, 8L};
    static constexpr int64_t int_array_9[] = {1L, 8L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(buf2, buf1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf0, 2, int_array_6, int_array_7, 0L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(mix_weight, 2, int_array_8, int_array_9, 0L)), 1L, 1L));
    buf0.reset();
    buf1.reset();
    const int64_t int_array_10[] = {s2, };
    static constexpr int64_t int_array_11[] = {1L, };
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_10, int_array_11, cached_torch_dtype_int64, cached_torch_device_type_cuda, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    // Topologically Sorted Source Nodes: [argmax], Original ATen: [aten.argmax]
    // [Provenance debug handles] triton_per_fused_argmax_2:9
    call_triton_per_fused_argmax_2(arg5_1, buf3, s2, 40L, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg5_1.reset();
    const int64_t int_array_12[] = {s2, 8L};
    static constexpr int64_t int_array_13[] = {8L, 1L};
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_12, int_array_13, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // Topologically Sorted Source Nodes: [linear, sub, view, expand, gather, squeeze, rsub, index, add_2, index_1, add_3, arange, rsub_1, index_2, add_4, select, add_1, embedding_1, add_5], Original ATen: [aten.view, aten.sub, aten.expand, aten.gather, aten.squeeze, aten.rsub, aten.index, aten.add, aten.arange, aten.select, aten.embedding]
    // [Provenance debug handles] triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3:10
    call_triton_poi_fused_add_arange_embedding_expand_gather_index_rsub_select_squeeze_sub_view_3(arg4_1, buf2, table_weight, buf3, arg3_1, buf4, s27, s2, 8L, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg3_1.reset();
    arg4_1.reset();
    buf2.reset();
    buf3.reset();
    output_handles[0] = buf4.release();
} // AOTInductorModel::run_impl

