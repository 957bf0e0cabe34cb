class AOTInductorModelKernels : public AOTInductorModelKernelsBase {
  public:
    CUfunction spread_kernel_0{nullptr};
    CUfunction triton_poi_fused_addmm_tanh_3{nullptr};
    CUfunction triton_poi_fused_mul_sigmoid_1{nullptr};
    CUfunction triton_poi_fused_mul_sigmoid_2{nullptr};
    CUfunction triton_poi_fused_zeros_0{nullptr};
};








    : AOTInductorModelBase(2,
                           1,
                           1,
                           device_str,
                           std::move(cubin_dir),
                           true) {
    inputs_info_[0].name = "arg2_1";
    inputs_info_[1].name = "arg3_1";
    constants_info_[0].name = "out_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;
    constants_info_[0].offset = 0;
    constants_info_[0].data_size = 256;

    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {4, 16};
    constants_info_[0].stride = {16, 1};

    constants_info_[0].original_fqn = "out.weight";


    in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, "context": null, "children_spec": []}, {"type": null, "context": null, "children_spec": []}]}, {"type": "builtins.dict", "context": "[]", "children_spec": []}]}])";
    out_spec_ = R"([1, {"type": null, "context": null, "children_spec": []}])";
    outputs_info_[0].name = "output0";

}

std::unordered_map<std::string, AtenTensorHandle> AOTInductorModel::const_run_impl(
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor,
    bool initialization
) {





    return {};
}



template <typename out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_zeros_0(
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_zeros_0', '''








    @triton_heuristics.pointwise(
        size_hints={'x': 512}, 
        filename=__file__,
        triton_meta={'signature': {'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_zeros_0'},
        min_elem_per_thread=0
    )
    @triton.jit
    def triton_poi_fused_zeros_0(out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 512
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.full([1], 0.0, tl.float32)
        tl.store(out_ptr0 + (x0), tmp0, xmask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (256 - 1)) / (256));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;

    if (kernels_.triton_poi_fused_zeros_0 == nullptr) {
        kernels_.triton_poi_fused_zeros_0 = loadKernel("/cache/cy27exsyjouirmqdrdvsxazhtusz7enyh2uq2cbzyv33tx4ohjcx.cubin", "triton_poi_fused_zeros_0", 0, cubin_dir_); 
    }
    CUdeviceptr var_0 = reinterpret_cast<CUdeviceptr>(out_ptr0.data_ptr());
    int32_t var_1 = xnumel;


    void* kernel_args_[] = {&var_0, &var_1, &global_scratch_scratch_2, &profile_scratch_scratch_3};
    launchKernel(kernels_.triton_poi_fused_zeros_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}

template <typename in_ptr0_type_, typename out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_mul_sigmoid_1(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_mul_sigmoid_1', '''








    @triton_heuristics.pointwise(
        size_hints={'x': 128}, 
        filename=__file__,
        triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_mul_sigmoid_1'},
        min_elem_per_thread=0
    )
    @triton.jit
    def triton_poi_fused_mul_sigmoid_1(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp1 = tl.sigmoid(tmp0)
        tl.store(out_ptr0 + (x0), tmp1, xmask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;

    if (kernels_.triton_poi_fused_mul_sigmoid_1 == nullptr) {
        kernels_.triton_poi_fused_mul_sigmoid_1 = loadKernel("/cache/cfl57ypfllx3rwyne4r43onjha6xwtq347ea5thbnudisookzvdu.cubin", "triton_poi_fused_mul_sigmoid_1", 0, cubin_dir_); 
    }
    CUdeviceptr var_4 = reinterpret_cast<CUdeviceptr>(in_ptr0.data_ptr());
    CUdeviceptr var_5 = reinterpret_cast<CUdeviceptr>(out_ptr0.data_ptr());
    int32_t var_6 = xnumel;


    void* kernel_args_[] = {&var_4, &var_5, &var_6, &global_scratch_scratch_7, &profile_scratch_scratch_8};
    launchKernel(kernels_.triton_poi_fused_mul_sigmoid_1, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}

template <typename in_ptr0_type_, typename out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_mul_sigmoid_2(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_mul_sigmoid_2', '''








    @triton_heuristics.pointwise(
        size_hints={'x': 8}, 
        filename=__file__,
        triton_meta={'signature': {'in_ptr0': '*i64', 'out_ptr0': '*i64', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_mul_sigmoid_2'},
        min_elem_per_thread=0
    )
    @triton.jit
    def triton_poi_fused_mul_sigmoid_2(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = xindex
        tmp0 = tl.load(in_ptr0 + (x0), xmask)
        tmp1 = tl.full([1], 2, tl.int64)
        tmp2 = tmp0 * tmp1
        tl.store(out_ptr0 + (x0), tmp2, xmask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (8 - 1)) / (8));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;

    if (kernels_.triton_poi_fused_mul_sigmoid_2 == nullptr) {
        kernels_.triton_poi_fused_mul_sigmoid_2 = loadKernel("/cache/cok4xeeiauutse2bku3gb53mjpgfffypuyolur3rkxl3ks7xq5b6.cubin", "triton_poi_fused_mul_sigmoid_2", 0, cubin_dir_); 
    }
    CUdeviceptr var_9 = reinterpret_cast<CUdeviceptr>(in_ptr0.data_ptr());
    CUdeviceptr var_10 = reinterpret_cast<CUdeviceptr>(out_ptr0.data_ptr());
    int32_t var_11 = xnumel;


    void* kernel_args_[] = {&var_9, &var_10, &var_11, &global_scratch_scratch_12, &profile_scratch_scratch_13};
    launchKernel(kernels_.triton_poi_fused_mul_sigmoid_2, grid_0, grid_1, grid_2, 1, 0, kernel_args_, stream_);
}

template <typename x_type_, typename slots_type_, typename out_type_, typename kernels_type_>
static inline void call_spread_kernel_0(
    const x_type_& x,
    const slots_type_& slots,
    const out_type_& out,
    int64_t _grid_0,
    int64_t _grid_1,
    int64_t _grid_2,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('spread_kernel', '''








    @triton_heuristics.user_autotune(
        configs=[],
        inductor_meta={'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'kernel_name': 'spread_kernel_0'},
        triton_meta={'signature': {'x': '*fp32', 'slots': '*i64', 'out': '*fp32', 'width': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {'width': 16}},
        filename=__file__,
        custom_kernel=True,
    )
    @triton.jit
    def spread_kernel(x, slots, out, width: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        col = tl.arange(0, width)
        slot = tl.load(slots + row)
        tl.store(out + slot * width + col, tl.load(x + row * width + col))
    ''', device_str='cuda')
    */
    uint32_t grid_0 = _grid_0;
    uint32_t grid_1 = _grid_1;
    uint32_t grid_2 = _grid_2;

    if (kernels_.spread_kernel_0 == nullptr) {
        kernels_.spread_kernel_0 = loadKernel("/cache/c4hj677zg2ijyuc3fx3k5swzlw2s7aidgjdjcumgoc5lsnjrnxxk.cubin", "spread_kernel", 0, cubin_dir_); 
    }
    CUdeviceptr var_14 = reinterpret_cast<CUdeviceptr>(x.data_ptr());
    CUdeviceptr var_15 = reinterpret_cast<CUdeviceptr>(slots.data_ptr());
    CUdeviceptr var_16 = reinterpret_cast<CUdeviceptr>(out.data_ptr());


    void* kernel_args_[] = {&var_14, &var_15, &var_16, &global_scratch_scratch_17, &profile_scratch_scratch_18};
    launchKernel(kernels_.spread_kernel_0, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}

template <typename in_out_ptr0_type_, typename kernels_type_>
static inline void call_triton_poi_fused_addmm_tanh_3(
    const in_out_ptr0_type_& in_out_ptr0,
    int64_t xnumel,
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){
    /*
    async_compile.triton('triton_poi_fused_addmm_tanh_3', '''








    @triton_heuristics.pointwise(
        size_hints={'x': 128}, 
        filename=__file__,
        triton_meta={'signature': {'in_out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda', index=0, cc=90), 'constants': {}},
        inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_addmm_tanh_3'},
        min_elem_per_thread=0
    )
    @triton.jit
    def triton_poi_fused_addmm_tanh_3(in_out_ptr0, xnumel, XBLOCK : tl.constexpr):
        xnumel = 128
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        x0 = (xindex % 4)
        x2 = xindex
        tmp14 = tl.load(in_out_ptr0 + (x2), xmask)
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
        tmp15 = tmp13 + tmp14
        tmp16 = libdevice.tanh(tmp15)
        tl.store(in_out_ptr0 + (x2), tmp16, xmask)
    ''', device_str='cuda')
    */
    uint32_t grid_0 = ((xnumel + (128 - 1)) / (128));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;

    if (kernels_.triton_poi_fused_addmm_tanh_3 == nullptr) {
        kernels_.triton_poi_fused_addmm_tanh_3 = loadKernel("/cache/cuhlbmjtbih6zdhh5zmiiqmqqgwc7uursbmiyd57oacg3sou4x7c.cubin", "triton_poi_fused_addmm_tanh_3", 0, cubin_dir_); 
    }
    CUdeviceptr var_19 = reinterpret_cast<CUdeviceptr>(in_out_ptr0.data_ptr());
    int32_t var_20 = xnumel;


    void* kernel_args_[] = {&var_19, &var_20, &global_scratch_scratch_21, &profile_scratch_scratch_22};
    launchKernel(kernels_.triton_poi_fused_addmm_tanh_3, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}

namespace torch::aot_inductor {

void AOTInductorModel::_const_run_impl(
    std::vector<AtenTensorHandle>& output_handles,
    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {}

AOTI_NOINLINE static void check_input_0(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg2_1 = ConstantHandle(input_handles[0]);
    int32_t arg2_1_dtype;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(arg2_1, &arg2_1_dtype));

    int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();
    if (arg2_1_expected_dtype != arg2_1_dtype) {

        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg2_1_expected_dtype << "(at::kFloat), "
           << "but got: " << arg2_1_dtype << "\n";

    }
    auto arg2_1_size = arg2_1.sizes();

    if (arg2_1_size[0] < 2) {

        ss << "input_handles[0]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
           << arg2_1_size[0] << "\n";

    }

    if (arg2_1_size[0] > 64) {

        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 64, " << "but got: "
           << arg2_1_size[0] << "\n";

    }

    if (16 != arg2_1_size[1]) {

        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 16, " << "but got: " << arg2_1_size[1]
           << "\n";

    }
    auto arg2_1_stride = arg2_1.strides();

    if (16 != arg2_1_stride[0]) {

        ss << "input_handles[0]: unmatched stride value at 0, "
           << "expected: 16, " << "but got: " << arg2_1_stride[0]
           << "\n";

    }

    if (1 != arg2_1_stride[1]) {

        ss << "input_handles[0]: unmatched stride value at 1, "
           << "expected: 1, " << "but got: " << arg2_1_stride[1]
           << "\n";

    }
    int32_t arg2_1_device_type;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(arg2_1, &arg2_1_device_type));

    int32_t arg2_1_expected_device_type = 1;
    if (arg2_1_expected_device_type != arg2_1_device_type) {

        ss << "input_handles[0]: unmatched device type, "
        << "expected: " << arg2_1_expected_device_type << "1(cuda), "
        << "but got: " << arg2_1_device_type << "\n";

    }
}

AOTI_NOINLINE static void check_input_1(
    AtenTensorHandle* input_handles
) {
    ConstantHandle arg3_1 = ConstantHandle(input_handles[1]);
    int32_t arg3_1_dtype;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(arg3_1, &arg3_1_dtype));

    int32_t arg3_1_expected_dtype = aoti_torch_dtype_int64();
    if (arg3_1_expected_dtype != arg3_1_dtype) {

        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << arg3_1_expected_dtype << "(at::kLong), "
           << "but got: " << arg3_1_dtype << "\n";

    }
    auto arg3_1_size = arg3_1.sizes();

    if (arg3_1_size[0] < 2) {

        ss << "input_handles[1]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
           << arg3_1_size[0] << "\n";

    }

    if (arg3_1_size[0] > 64) {

        ss << "input_handles[1]: dim value is too large at 0, "
           << "expected to be <= 64, " << "but got: "
           << arg3_1_size[0] << "\n";

    }
    auto arg3_1_stride = arg3_1.strides();

    if (1 != arg3_1_stride[0]) {

        ss << "input_handles[1]: unmatched stride value at 0, "
           << "expected: 1, " << "but got: " << arg3_1_stride[0]
           << "\n";

    }
    int32_t arg3_1_device_type;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(arg3_1, &arg3_1_device_type));

    int32_t arg3_1_expected_device_type = 1;
    if (arg3_1_expected_device_type != arg3_1_device_type) {

        ss << "input_handles[1]: unmatched device type, "
        << "expected: " << arg3_1_expected_device_type << "1(cuda), "
        << "but got: " << arg3_1_device_type << "\n";

    }
}

static bool _check_aoti_runtime_check_inputs_env() {



}

AOTI_NOINLINE static void __check_inputs_outputs(
    AtenTensorHandle* input_handles,
    AtenTensorHandle* output_handles) {
    if (!_check_aoti_runtime_check_inputs_env()){
        return;
    }
    check_input_0(input_handles);
    check_input_1(input_handles);
}

void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,


    DeviceStreamType stream,
    AOTIProxyExecutorHandle proxy_executor
) {
    __check_inputs_outputs(input_handles, output_handles);

    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 2);
    auto arg2_1 = std::move(inputs[0]);
    auto arg3_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& out_weight = constants_->at(0);

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
    int64_t s55 = arg2_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    static constexpr int64_t int_array_0[] = {32L, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [spread], Original ATen: [aten.zeros]
    // [Provenance debug handles] triton_poi_fused_zeros_0:1
    call_triton_poi_fused_zeros_0(buf0, 512L, this->device_idx_, stream, kernels, this->cubin_dir_);
    const int64_t int_array_2[] = {s55, 16L};
    static constexpr int64_t int_array_3[] = {16L, 1L};
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    // Topologically Sorted Source Nodes: [sigmoid, mul, ], Original ATen: [aten.sigmoid, aten.mul]
    // [Provenance debug handles] triton_poi_fused_mul_sigmoid_1:2
    int64_t triton_poi_fused_mul_sigmoid_1_xnumel = 16L*s55;
    call_triton_poi_fused_mul_sigmoid_1(arg2_1, buf1, triton_poi_fused_mul_sigmoid_1_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg2_1.reset();
    const int64_t int_array_4[] = {s55, };
    static constexpr int64_t int_array_5[] = {1L, };
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_4, int_array_5, cached_torch_dtype_int64, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [sigmoid, mul, ], Original ATen: [aten.sigmoid, aten.mul]
    // [Provenance debug handles] triton_poi_fused_mul_sigmoid_2:3
    call_triton_poi_fused_mul_sigmoid_2(arg3_1, buf2, s55, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg3_1.reset();
    // Topologically Sorted Source Nodes: [sigmoid, mul, ], Original ATen: [aten.sigmoid, aten.mul]
    // [Provenance debug handles] spread_kernel_0:4
    call_spread_kernel_0(buf1, buf2, buf0, s55, 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);
    buf1.reset();
    buf2.reset();
    static constexpr int64_t int_array_6[] = {32L, 4L};
    static constexpr int64_t int_array_7[] = {4L, 1L};
    AtenTensorHandle buf4_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_6, int_array_7, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf4_handle));
    RAIIAtenTensorHandle buf4(buf4_handle);
    // Topologically Sorted Source Nodes: [linear, ], Original ATen: [aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_mm_out:5
    static constexpr int64_t int_array_8[] = {16L, 4L};
    static constexpr int64_t int_array_9[] = {1L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf4, buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(out_weight, 2, int_array_8, int_array_9, 0L))));
    buf0.reset();
    auto buf5 = std::move(buf4);  // reuse
    // Topologically Sorted Source Nodes: [, tanh], Original ATen: [aten.addmm, aten.tanh]
    // [Provenance debug handles] triton_poi_fused_addmm_tanh_3:6
    call_triton_poi_fused_addmm_tanh_3(buf5, 128L, this->device_idx_, stream, kernels, this->cubin_dir_);
    output_handles[0] = buf5.release();
} // AOTInductorModel::run_impl

