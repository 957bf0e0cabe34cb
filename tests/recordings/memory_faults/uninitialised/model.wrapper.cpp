

















    : AOTInductorModelBase(1,





    inputs_info_[0].name = "arg0_1";
























static inline void call_triton_poi_fused_sin_0(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_sin_0', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_sin_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp1 = tl_math.sin(tmp0)
        tl.store(out_ptr0 + (x0), tmp1, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_sin_0 = loadKernel("/cache/kernel.cubin", "triton_poi_fused_sin_0", 0, cubin_dir_);







    launchKernel(kernels_.triton_poi_fused_sin_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}


static inline void call_half_kernel_0(
    const x_type_& x,
    const out_type_& out,
    int64_t count,
    int64_t _grid_0,
    int64_t _grid_1,
    int64_t _grid_2,




){
    /*
    async_compile.triton('half_kernel', '''








    @triton_heuristics.user_autotune(


        triton_meta={'signature': {'x': '*fp32', 'out': '*fp32', 'count': 'i32', 'block': 'constexpr'}, 'constants': {'block': 128}},


    )
    @triton.jit
    def half_kernel(x, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + at, tl.load(x + at), mask=at < count // 2)

    */
    uint32_t grid_0 = _grid_0;
    uint32_t grid_1 = _grid_1;
    uint32_t grid_2 = _grid_2;


        kernels_.half_kernel_0 = loadKernel("/cache/kernel.cubin", "half_kernel", 0, cubin_dir_);







    launchKernel(kernels_.half_kernel_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}


static inline void call_triton_poi_fused_cos_1(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){
    /*
    async_compile.triton('triton_poi_fused_cos_1', '''








    @triton_heuristics.pointwise(


        triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'constants': {}},


    )
    @triton.jit
    def triton_poi_fused_cos_1(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp1 = tl_math.cos(tmp0)
        tl.store(out_ptr0 + (x0), tmp1, xmask)

    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;


        kernels_.triton_poi_fused_cos_1 = loadKernel("/cache/kernel.cubin", "triton_poi_fused_cos_1", 0, cubin_dir_);







    launchKernel(kernels_.triton_poi_fused_cos_1, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);




void AOTInductorModel::_const_run_impl(



) {}













































































AOTI_NOINLINE static void __check_inputs_outputs(








void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);

    if ((reinterpret_cast<std::uintptr_t>(arg0_1.data_ptr()) & (16 -1)) != 0) {




    }
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];




    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));

    const int64_t int_array_2[] = {s77, 16L};
    static constexpr int64_t int_array_3[] = {16L, 1L};

    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf1_handle));

    // Topologically Sorted Source Nodes: [sin, ], Original ATen: [aten.sin]
    // [Provenance debug handles] triton_poi_fused_sin_0:1
    int64_t triton_poi_fused_sin_0_xnumel = 16L*s77;
    call_triton_poi_fused_sin_0(arg0_1, buf1, triton_poi_fused_sin_0_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);

    // Topologically Sorted Source Nodes: [sin, ], Original ATen: [aten.sin]
    // [Provenance debug handles] half_kernel_0:2
    call_half_kernel_0(buf1, buf0, 16L*s77, c10::div_floor_integer(static_cast<int64_t>(127L + 16L*s77), static_cast<int64_t>(128L)), 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);
    auto buf3 = std::move(buf1);  // reuse
    // Topologically Sorted Source Nodes: [cos], Original ATen: [aten.cos]
    // [Provenance debug handles] triton_poi_fused_cos_1:3
    int64_t triton_poi_fused_cos_1_xnumel = 16L*s77;
    call_triton_poi_fused_cos_1(buf0, buf3, triton_poi_fused_cos_1_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);

    output_handles[0] = buf3.release();
} // AOTInductorModel::run_impl

