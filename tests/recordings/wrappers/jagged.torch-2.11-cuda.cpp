













    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg2_1";
    inputs_info_[1].name = "arg3_1";
    constants_info_[0].name = "head_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {4, 8};
    constants_info_[0].stride = {8, 1};

    constants_info_[0].original_fqn = "head.weight";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";




















template <typename in_ptr0_type_, typename in_ptr1_type_, typename out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_index_mul_0(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t ks0,
    int64_t ynumel,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_index_mul_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'ks0': 'i64', 'ynumel': 'i32', 'xnumel': 'i32', 'YBLOCK': 'constexpr', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_index_mul_0(in_ptr0, in_ptr1, out_ptr0, ks0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
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
        tmp1 = ks0
        tmp2 = tmp0 + tmp1
        tmp3 = tmp0 < 0
        tmp4 = tl.where(tmp3, tmp2, tmp0)
        tl.device_assert(((0 <= tmp4) & (tmp4 < ks0)) | ~(ymask), "index out of bounds: 0 <= tmp4 < ks0")
        tmp6 = tl.load(in_ptr1 + (x1 + 8*tmp4), xmask & ymask)
        tmp7 = tl.full([1, 1], 2.0, tl.float32)
        tmp8 = tmp6 * tmp7
        tl.store(out_ptr0 + (x1 + 8*y0), tmp8, xmask & ymask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = ((ynumel + (4 - 1)) / (4));
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_index_mul_0 = loadKernel("/cache/cwehx2e3.cubin", "triton_poi_fused_index_mul_0", 0, cubin_dir_);

    CUdeviceptr var_0 = reinterpret_cast<CUdeviceptr>(in_ptr0.data_ptr());
    CUdeviceptr var_1 = reinterpret_cast<CUdeviceptr>(in_ptr1.data_ptr());
    CUdeviceptr var_2 = reinterpret_cast<CUdeviceptr>(out_ptr0.data_ptr());
    int64_t var_3 = ks0;
    int32_t var_4 = ynumel;
    int32_t var_5 = xnumel;



    launchKernel(kernels_.triton_poi_fused_index_mul_0, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}


static inline void call_triton_red_fused_mean_1(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,
    int64_t r0_numel,




){
    /*
    async_compile.triton('triton_red_fused_mean_1', '''








    @triton_heuristics.reduction(



        triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}, 'constants': {}},

    )
    @triton.jit
    def triton_red_fused_mean_1(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
        xnumel = 8
        rnumel = r0_numel
        RBLOCK: tl.constexpr = R0_BLOCK
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
        xmask = xindex < xnumel
        r0_base = tl.arange(0, R0_BLOCK)[None, :]
        rbase = r0_base
        x0 = xindex
        _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
        for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
            r0_index = r0_offset + r0_base
            r0_mask = r0_index < r0_numel
            roffset = r0_offset
            rindex = r0_index
            r0_1 = r0_index
            tmp0 = tl.load(in_ptr0 + (x0 + 8*r0_1), r0_mask & xmask, eviction_policy='evict_first', other=0.0)
            tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
            tmp3 = _tmp2 + tmp1
            _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
        tmp2 = tl.sum(_tmp2, 1)[:, None]
        tl.store(out_ptr0 + (x0), tmp2, xmask)

    */
    uint32_t grid_0 = ((xnumel + (2 - 1)) / (2));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_red_fused_mean_1 = loadKernel("/cache/c5wtu4jt.cubin", "triton_red_fused_mean_1", 16, cubin_dir_);








    launchKernel(kernels_.triton_red_fused_mean_1, grid_0, grid_1, grid_2, 2, 16, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_add_addmm_mean_slice_2(
    const in_out_ptr0_type_& in_out_ptr0,
    const in_ptr0_type_& in_ptr0,
    int64_t ks0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_addmm_mean_slice_2', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'ks0': 'i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_addmm_mean_slice_2(in_out_ptr0, in_ptr0, ks0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = (xindex % 4)
        x2 = xindex
        tmp14 = tl.load(in_out_ptr0 + (x2), xmask)
        tmp16 = tl.load(in_ptr0 + (x0), xmask, eviction_policy='evict_last')
        tmp0 = x0
        tmp1 = tl.full([1], 2, tl.int64)
        tmp2 = tmp0 < tmp1
        tmp3 = tl.full([1], 1, tl.int64)
        tmp4 = tmp0 < tmp3
        tmp5 = tl.full([1], -0.22916610538959503, tl.float32)
        tmp6 = tl.full([1], -0.16275224089622498, tl.float32)
        tmp7 = tl.where(tmp4, tmp5, tmp6)
        tmp8 = tl.full([1], 3, tl.int64)
        tmp9 = tmp0 < tmp8
        tmp10 = tl.full([1], -0.24700669944286346, tl.float32)
        tmp11 = tl.full([1], -0.33112430572509766, tl.float32)
        tmp12 = tl.where(tmp9, tmp10, tmp11)
        tmp13 = tl.where(tmp2, tmp7, tmp12)
        tmp15 = tmp13 + tmp14
        tmp17 = ks0
        tmp18 = tmp17.to(tl.float32)
        tmp19 = (tmp16 / tmp18)
        tmp20 = tmp15 + tmp19
        tl.store(in_out_ptr0 + (x2), tmp20, xmask)

    */
    uint32_t grid_0 = ((xnumel + (32 - 1)) / (32));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_addmm_mean_slice_2 = loadKernel("/cache/ci6ps3jd.cubin", "triton_poi_fused_add_addmm_mean_slice_2", 0, cubin_dir_);








    launchKernel(kernels_.triton_poi_fused_add_addmm_mean_slice_2, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(



) {}

AOTI_NOINLINE static void check_input_0(






    int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg2_1_size[0] < 2) {







    if (arg2_1_size[0] > 512) {







    if (8 != arg2_1_size[1]) {








    if (8 != arg2_1_stride[0]) {







    if (1 != arg2_1_stride[1]) {



















AOTI_NOINLINE static void check_input_1(






    int32_t arg3_1_expected_dtype = aoti_torch_dtype_int64();









    if (arg3_1_size[0] < 2) {







    if (arg3_1_size[0] > 64) {








    if (1 != arg3_1_stride[0]) {

























AOTI_NOINLINE static void __check_inputs_outputs(









void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg2_1 = std::move(inputs[0]);
    auto arg3_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& head_weight = constants_->at(0);

    if ((reinterpret_cast<std::uintptr_t>(arg2_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg2_1_aligned;
        aoti_torch_clone_preserve_strides(arg2_1, &arg2_1_aligned);
        arg2_1 = std::move(RAIIAtenTensorHandle(arg2_1_aligned));
    }

    if ((reinterpret_cast<std::uintptr_t>(arg3_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg3_1_aligned;
        aoti_torch_clone_preserve_strides(arg3_1, &arg3_1_aligned);
        arg3_1 = std::move(RAIIAtenTensorHandle(arg3_1_aligned));
    }
    auto arg2_1_size = arg2_1.sizes();
    int64_t s59 = arg2_1_size[0];
    auto arg3_1_size = arg3_1.sizes();
    int64_t s95 = arg3_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s95, 8L};
    static constexpr int64_t int_array_1[] = {8L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [index, mul], Original ATen: [aten.index, aten.mul]
    // [Provenance debug handles] triton_poi_fused_index_mul_0:1
    call_triton_poi_fused_index_mul_0(arg3_1, arg2_1, buf0, s59, s95, 8L, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg3_1.reset();
    const int64_t int_array_2[] = {s95, 4L};
    static constexpr int64_t int_array_3[] = {4L, 1L};
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // Topologically Sorted Source Nodes: [index, mul, linear, ], Original ATen: [aten.index, aten.mul, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:2
    static constexpr int64_t int_array_4[] = {8L, 4L};
    static constexpr int64_t int_array_5[] = {1L, 8L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf1, buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(head_weight, 2, int_array_4, int_array_5, 0L))));
    buf0.reset();
    static constexpr int64_t int_array_6[] = {8L, };
    static constexpr int64_t int_array_7[] = {1L, };
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_6, int_array_7, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [mean], Original ATen: [aten.mean]
    // [Provenance debug handles] triton_red_fused_mean_1:3
    call_triton_red_fused_mean_1(arg2_1, buf2, 8L, s59, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg2_1.reset();
    auto buf3 = std::move(buf1);  // reuse
    // Topologically Sorted Source Nodes: [, mean, slice_1, add], Original ATen: [aten.addmm, aten.mean, aten.slice, aten.add]
    // [Provenance debug handles] triton_poi_fused_add_addmm_mean_slice_2:4
    int64_t triton_poi_fused_add_addmm_mean_slice_2_xnumel = 4L*s95;
    call_triton_poi_fused_add_addmm_mean_slice_2(buf3, buf2, s59, triton_poi_fused_add_addmm_mean_slice_2_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    buf2.reset();
    output_handles[0] = buf3.release();
} // AOTInductorModel::run_impl

