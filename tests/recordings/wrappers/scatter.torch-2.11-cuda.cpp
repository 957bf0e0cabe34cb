














    : AOTInductorModelBase(2,





    inputs_info_[0].name = "arg0_1";
    inputs_info_[1].name = "arg1_1";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]},{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";





















static inline void call_triton_poi_fused_ones_scatter_reduce_0(
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_ones_scatter_reduce_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_ones_scatter_reduce_0(out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 12
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.full([1], 1.0, tl.float32)
        tl.store(out_ptr0 + (x0), tmp0, xmask)

    */
    uint32_t grid_0 = ((xnumel + (16 - 1)) / (16));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_ones_scatter_reduce_0 = loadKernel("/cache/scatter/catszlbf/cf5bwtuq.cubin", "triton_poi_fused_ones_scatter_reduce_0", 0, cubin_dir_);






    launchKernel(kernels_.triton_poi_fused_ones_scatter_reduce_0, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_zeros_1(
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_zeros_1', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_zeros_1(out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 12
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.full([1], 0.0, tl.float32)
        tl.store(out_ptr0 + (x0), tmp0, xmask)

    */
    uint32_t grid_0 = ((xnumel + (16 - 1)) / (16));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_zeros_1 = loadKernel("/cache/scatter/catszlbf/cg4o3nmx.cubin", "triton_poi_fused_zeros_1", 0, cubin_dir_);






    launchKernel(kernels_.triton_poi_fused_zeros_1, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_index_put_zeros_2(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_index_put_zeros_2', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*i64', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_index_put_zeros_2(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp6 = tl.load(in_ptr1 + (x0), xmask)
        tmp1 = tl.full([XBLOCK], 12, tl.int32)
        tmp2 = tmp0 + tmp1
        tmp3 = tmp0 < 0
        tmp4 = tl.where(tmp3, tmp2, tmp0)
        tl.device_assert(((0 <= tmp4) & (tmp4 < 12)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 12")
        tl.atomic_add(out_ptr0 + (tl.broadcast_to(tmp4, [XBLOCK])), tmp6, xmask, sem='relaxed')

    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_index_put_zeros_2 = loadKernel("/cache/scatter/catszlbf/c7gzxmhc.cubin", "triton_poi_fused_index_put_zeros_2", 0, cubin_dir_);








    launchKernel(kernels_.triton_poi_fused_index_put_zeros_2, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_add_3(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_add_3', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*fp32', 'in_ptr1': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_add_3(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 12
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp1 = tl.load(in_ptr1 + (x0), xmask)
        tmp2 = tmp0 + tmp1
        tl.store(out_ptr0 + (x0), tmp2, xmask)

    */
    uint32_t grid_0 = ((xnumel + (16 - 1)) / (16));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_add_3 = loadKernel("/cache/scatter/catszlbf/cd7d2cxf.cubin", "triton_poi_fused_add_3", 0, cubin_dir_);








    launchKernel(kernels_.triton_poi_fused_add_3, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(



) {}

AOTI_NOINLINE static void check_input_0(






    int32_t arg0_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg0_1_size[0] < 2) {







    if (arg0_1_size[0] > 64) {








    if (1 != arg0_1_stride[0]) {



















AOTI_NOINLINE static void check_input_1(






    int32_t arg1_1_expected_dtype = aoti_torch_dtype_int64();









    if (arg1_1_size[0] < 2) {







    if (arg1_1_size[0] > 64) {








    if (1 != arg1_1_stride[0]) {

























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

    if ((reinterpret_cast<std::uintptr_t>(arg0_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg0_1_aligned;
        aoti_torch_clone_preserve_strides(arg0_1, &arg0_1_aligned);
        arg0_1 = std::move(RAIIAtenTensorHandle(arg0_1_aligned));
    }

    if ((reinterpret_cast<std::uintptr_t>(arg1_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg1_1_aligned;
        aoti_torch_clone_preserve_strides(arg1_1, &arg1_1_aligned);
        arg1_1 = std::move(RAIIAtenTensorHandle(arg1_1_aligned));
    }
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    static constexpr int64_t int_array_0[] = {12L, };
    static constexpr int64_t int_array_1[] = {1L, };
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [ones, scatter_reduce], Original ATen: [aten.ones, aten.scatter_reduce]
    // [Provenance debug handles] triton_poi_fused_ones_scatter_reduce_0:1
    call_triton_poi_fused_ones_scatter_reduce_0(buf0, 12L, this->device_idx_, stream, kernels, this->cubin_dir_);
    aoti_torch_cuda_scatter_reduce_two_out(buf0, buf0,0,arg1_1,arg0_1, "prod",1);
    static constexpr int64_t int_array_2[] = {12L, };
    static constexpr int64_t int_array_3[] = {1L, };
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [zeros], Original ATen: [aten.zeros]
    // [Provenance debug handles] triton_poi_fused_zeros_1:2
    call_triton_poi_fused_zeros_1(buf2, 12L, this->device_idx_, stream, kernels, this->cubin_dir_);
    // Topologically Sorted Source Nodes: [zeros, index_put], Original ATen: [aten.zeros, aten.index_put]
    // [Provenance debug handles] triton_poi_fused_index_put_zeros_2:3
    call_triton_poi_fused_index_put_zeros_2(arg1_1, arg0_1, buf2, s77, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg0_1.reset();
    arg1_1.reset();
    static constexpr int64_t int_array_4[] = {12L, };
    static constexpr int64_t int_array_5[] = {1L, };
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_4, int_array_5, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
    // [Provenance debug handles] triton_poi_fused_add_3:4
    call_triton_poi_fused_add_3(buf0, buf2, buf4, 12L, this->device_idx_, stream, kernels, this->cubin_dir_);
    buf0.reset();
    buf2.reset();
    output_handles[0] = buf4.release();
} // AOTInductorModel::run_impl

