












    : AOTInductorModelBase(1,





    inputs_info_[0].name = "arg6_1";
    constants_info_[0].name = "norm_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {32};
    constants_info_[0].stride = {1};

    constants_info_[0].original_fqn = "norm.weight";
    constants_info_[1].name = "norm_bias";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cuda;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {32};
    constants_info_[1].stride = {1};

    constants_info_[1].original_fqn = "norm.bias";
    constants_info_[2].name = "qkv_weight";
    constants_info_[2].dtype = cached_torch_dtype_float32;
    constants_info_[2].device_type = cached_torch_device_type_cuda;



    constants_info_[2].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[2].shape = {96, 32};
    constants_info_[2].stride = {32, 1};

    constants_info_[2].original_fqn = "qkv.weight";
    constants_info_[3].name = "qkv_bias";
    constants_info_[3].dtype = cached_torch_dtype_float32;
    constants_info_[3].device_type = cached_torch_device_type_cuda;



    constants_info_[3].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[3].shape = {96};
    constants_info_[3].stride = {1};

    constants_info_[3].original_fqn = "qkv.bias";
    constants_info_[4].name = "out_weight";
    constants_info_[4].dtype = cached_torch_dtype_float32;
    constants_info_[4].device_type = cached_torch_device_type_cuda;



    constants_info_[4].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[4].shape = {32, 32};
    constants_info_[4].stride = {32, 1};

    constants_info_[4].original_fqn = "out.weight";
    constants_info_[5].name = "out_bias";
    constants_info_[5].dtype = cached_torch_dtype_float32;
    constants_info_[5].device_type = cached_torch_device_type_cuda;



    constants_info_[5].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[5].shape = {32};
    constants_info_[5].stride = {1};

    constants_info_[5].original_fqn = "out.bias";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















static inline void call_triton_per_fused_native_layer_norm_0(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const in_ptr2_type_& in_ptr2,
    const out_ptr2_type_& out_ptr2,
    int64_t xnumel,
    int64_t r0_numel,




){
    /*
    async_compile.triton('triton_per_fused_native_layer_norm_0', '''








    @triton_heuristics.persistent_reduction(



        triton_meta={'signature': {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'in_ptr2': '*fp32', 'out_ptr2': '*fp32', 'xnumel': 'i32', 'r0_numel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_per_fused_native_layer_norm_0'}
    )
    @triton.jit
    def triton_per_fused_native_layer_norm_0(in_ptr0, in_ptr1, in_ptr2, out_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr):
        r0_numel = 32
        R0_BLOCK: tl.constexpr = 32
        rnumel = r0_numel
        RBLOCK: tl.constexpr = R0_BLOCK
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
        xmask = xindex < xnumel
        r0_index = tl.arange(0, R0_BLOCK)[None, :]
        r0_offset = 0
        r0_mask = tl.full([R0_BLOCK], True, tl.int1)[None, :]
        roffset = r0_offset
        rindex = r0_index
        r0_1 = r0_index
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (r0_1 + 32*x0), xmask, other=0.0)
        tmp24 = tl.load(in_ptr1 + (r0_1), None, eviction_policy='evict_last')
        tmp26 = tl.load(in_ptr2 + (r0_1), None, eviction_policy='evict_last')
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = tl.where(xmask, tmp1, 0)
        tmp4 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
        tmp6 = tl.where(xmask, tmp4, 0)
        tmp7 = tl.sum(tmp6, 1)[:, None].to(tl.float32)
        tmp8 = tl.full([1, 1], 32, tl.int32)
        tmp9 = tmp8.to(tl.float32)
        tmp10 = (tmp7 / tmp9)
        tmp11 = tmp1 - tmp10
        tmp12 = tmp11 * tmp11
        tmp13 = tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK])
        tmp15 = tl.where(xmask, tmp13, 0)
        tmp16 = tl.sum(tmp15, 1)[:, None].to(tl.float32)
        tmp17 = tmp0 - tmp10
        tmp18 = tl.full([1, 1], 32.0, tl.float32)
        tmp19 = (tmp16 / tmp18)
        tmp20 = tl.full([1, 1], 1e-05, tl.float32)
        tmp21 = tmp19 + tmp20
        tmp22 = libdevice.rsqrt(tmp21)
        tmp23 = tmp17 * tmp22
        tmp25 = tmp23 * tmp24
        tmp27 = tmp25 + tmp26
        tl.store(out_ptr2 + (r0_1 + 32*x0), tmp27, xmask)

    */
    uint32_t grid_0 = ((xnumel + (32 - 1)) / (32));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_per_fused_native_layer_norm_0 = loadKernel("/cache/attention/cticfibd/ca5qq5dj.cubin", "triton_per_fused_native_layer_norm_0", 0, cubin_dir_); 










    launchKernel(kernels_.triton_per_fused_native_layer_norm_0, grid_0, grid_1, grid_2, 2, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_add_addmm_view_1(
    const in_out_ptr0_type_& in_out_ptr0,
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_addmm_view_1', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_add_addmm_view_1'},

    )
    @triton.jit
    def triton_poi_fused_add_addmm_view_1(in_out_ptr0, in_ptr0, in_ptr1, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x2 = xindex
        x0 = (xindex % 32)
        tmp0 = tl.load(in_ptr0 + (x2), xmask)
        tmp1 = tl.load(in_ptr1 + (x0), xmask, eviction_policy='evict_last')
        tmp2 = tl.load(in_out_ptr0 + (x2), xmask)
        tmp3 = tmp1 + tmp2
        tmp4 = tmp0 + tmp3
        tl.store(in_out_ptr0 + (x2), tmp4, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_addmm_view_1 = loadKernel("/cache/attention/cticfibd/cue7faj5.cubin", "triton_poi_fused_add_addmm_view_1", 0, cubin_dir_); 








    launchKernel(kernels_.triton_poi_fused_add_addmm_view_1, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(



) {}

AOTI_NOINLINE static void check_input_0(






    int32_t arg6_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg6_1_size[0] < 2) {







    if (arg6_1_size[0] > 64) {







    if (10 != arg6_1_size[1]) {







    if (32 != arg6_1_size[2]) {








    if (320 != arg6_1_stride[0]) {







    if (32 != arg6_1_stride[1]) {







    if (1 != arg6_1_stride[2]) {













        << "expected: " << arg6_1_expected_device_type << "1(cuda), "











AOTI_NOINLINE static void __check_inputs_outputs(








void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg6_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& norm_weight = constants_->at(0);
    [[maybe_unused]] auto& norm_bias = constants_->at(1);
    [[maybe_unused]] auto& qkv_weight = constants_->at(2);
    [[maybe_unused]] auto& qkv_bias = constants_->at(3);
    [[maybe_unused]] auto& out_weight = constants_->at(4);
    [[maybe_unused]] auto& out_bias = constants_->at(5);

    if ((reinterpret_cast<std::uintptr_t>(arg6_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg6_1_aligned;
        aoti_torch_clone_preserve_strides(arg6_1, &arg6_1_aligned);
        arg6_1 = std::move(RAIIAtenTensorHandle(arg6_1_aligned));
    }
    auto arg6_1_size = arg6_1.sizes();
    int64_t s77 = arg6_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s77, 10L, 32L};
    static constexpr int64_t int_array_1[] = {320L, 32L, 1L};
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(3, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    // Topologically Sorted Source Nodes: [layer_norm], Original ATen: [aten.native_layer_norm]
    // [Provenance debug handles] triton_per_fused_native_layer_norm_0:1
    int64_t triton_per_fused_native_layer_norm_0_xnumel = 10L*s77;
    call_triton_per_fused_native_layer_norm_0(arg6_1, norm_weight, norm_bias, buf3, triton_per_fused_native_layer_norm_0_xnumel, 32L, this->device_idx_, stream, kernels, this->cubin_dir_);
    const int64_t int_array_2[] = {10L*s77, 96L};
    static constexpr int64_t int_array_3[] = {96L, 1L};
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // Topologically Sorted Source Nodes: [layer_norm, linear], Original ATen: [aten.native_layer_norm, aten.view, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_addmm_out:2
    const int64_t int_array_4[] = {10L*s77, 32L};
    static constexpr int64_t int_array_5[] = {32L, 1L};
    static constexpr int64_t int_array_6[] = {32L, 96L};
    static constexpr int64_t int_array_7[] = {1L, 32L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(buf4, qkv_bias, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf3, 2, int_array_4, int_array_5, 0L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(qkv_weight, 2, int_array_6, int_array_7, 0L)), 1L, 1L));
    buf3.reset();
    // Topologically Sorted Source Nodes: [linear, view, permute, unbind, scaled_dot_product_attention], Original ATen: [aten.view, aten.permute, aten.unbind, aten._scaled_dot_product_efficient_attention]
    // [Provenance debug handles] aoti_torch_cuda__scaled_dot_product_efficient_attention:3
    const int64_t int_array_8[] = {s77, 4L, 10L, 8L};
    static constexpr int64_t int_array_9[] = {960L, 8L, 96L, 1L};
    AtenTensorHandle buf6_handle;
    AtenTensorHandle buf7_handle;
    AtenTensorHandle buf8_handle;
    AtenTensorHandle buf9_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda__scaled_dot_product_efficient_attention(wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf4, 4, int_array_8, int_array_9, 0L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf4, 4, int_array_8, int_array_9, 32L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf4, 4, int_array_8, int_array_9, 64L)), nullptr, 0, 0.0, 0, nullptr, &buf6_handle, &buf7_handle, &buf8_handle, &buf9_handle));
    RAIIAtenTensorHandle buf6(buf6_handle);
    RAIIAtenTensorHandle buf7(buf7_handle);
    RAIIAtenTensorHandle buf8(buf8_handle);
    RAIIAtenTensorHandle buf9(buf9_handle);
    buf4.reset();

    const int64_t int_array_10[] = {10L*s77, 32L};
    static constexpr int64_t int_array_11[] = {32L, 1L};
    AtenTensorHandle buf10_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_10, int_array_11, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf10_handle));
    RAIIAtenTensorHandle buf10(buf10_handle);
    // Topologically Sorted Source Nodes: [transpose, reshape, linear_1, ], Original ATen: [aten.transpose, aten.view, aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:4
    static constexpr int64_t int_array_12[] = {32L, 32L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf10, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf6, 2, int_array_4, int_array_5, 0L)), wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(out_weight, 2, int_array_12, int_array_7, 0L))));
    buf6.reset();
    const int64_t int_array_13[] = {s77, 10L, 32L};
    static constexpr int64_t int_array_14[] = {320L, 32L, 1L};
    auto buf11 = wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf10, 3, int_array_13, int_array_14, 0L)); buf10.reset();  // reuse
    // Topologically Sorted Source Nodes: [, linear_1, add], Original ATen: [aten.addmm, aten.view, aten.add]
    // [Provenance debug handles] triton_poi_fused_add_addmm_view_1:5
    int64_t triton_poi_fused_add_addmm_view_1_xnumel = 320L*s77;
    call_triton_poi_fused_add_addmm_view_1(buf11, arg6_1, out_bias, triton_poi_fused_add_addmm_view_1_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg6_1.reset();
    output_handles[0] = buf11.release();
} // AOTInductorModel::run_impl

