





#define TRITON_POI_FUSED_SIN_0_CUBIN_PATH "/cache/ab/cab.cubin"
#define TRITON_POI_FUSED_SIN_0_MANGLED_NAME "triton_poi_fused_sin_0"
#define TRITON_POI_FUSED_SIN_0_NUM_WARPS 4
#define TRITON_POI_FUSED_SIN_0_SHARED_MEM 0
#define TRITON_POI_FUSED_SIN_0_XBLOCKS {128}












#define SHIFT_KERNEL_0_CUBIN_PATH "/cache/cd/ccd.cubin"
#define SHIFT_KERNEL_0_MANGLED_NAME "shift_kernel"
#define SHIFT_KERNEL_0_NUM_WARPS 4
#define SHIFT_KERNEL_0_SHARED_MEM 0













#define TRITON_POI_FUSED_ADD_1_CUBIN_PATH "/cache/ef/cef.cubin"
#define TRITON_POI_FUSED_ADD_1_MANGLED_NAME "triton_poi_fused_add_1"
#define TRITON_POI_FUSED_ADD_1_NUM_WARPS 4
#define TRITON_POI_FUSED_ADD_1_SHARED_MEM 0
#define TRITON_POI_FUSED_ADD_1_XBLOCKS {128}



























static __attribute__((noinline)) void call_triton_poi_fused_sin_0(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){

        kernels_.triton_poi_fused_sin_0 = loadKernel(
            triton_poi_fused_sin_0_result.cubin_path,
            triton_poi_fused_sin_0_result.mangled_name,




    uint32_t grid_0 = ((xnumel + (triton_poi_fused_sin_0_result.xblocks[0] - 1)) / (triton_poi_fused_sin_0_result.xblocks[0]));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;













    launchKernel(kernels_.triton_poi_fused_sin_0, grid_0, grid_1, grid_2, triton_poi_fused_sin_0_result.num_warps, triton_poi_fused_sin_0_result.shared_mem, kernel_args_, stream_, false);
















};

static __attribute__((noinline)) void call_shift_kernel_0(
    const x_type_& x,
    const out_type_& out,
    int64_t count,
    int64_t shift,
    int64_t _grid_0,
    int64_t _grid_1,
    int64_t _grid_2,




){

        kernels_.shift_kernel_0 = loadKernel(
            shift_kernel_0_result.cubin_path,
            shift_kernel_0_result.mangled_name,


            &kernels_.loaded_modules_);

    uint32_t grid_0 = _grid_0;
    uint32_t grid_1 = _grid_1;
    uint32_t grid_2 = _grid_2;














    launchKernel(kernels_.shift_kernel_0, grid_0, grid_1, grid_2, shift_kernel_0_result.num_warps, shift_kernel_0_result.shared_mem, kernel_args_, stream_, false);
}
static LazyKernelCompileResult triton_poi_fused_add_1_result = {
















static __attribute__((noinline)) void call_triton_poi_fused_add_1(
    const in_ptr0_type_& in_ptr0,
    const in_ptr1_type_& in_ptr1,
    const out_ptr0_type_& out_ptr0,
    int64_t xnumel,




){

        kernels_.triton_poi_fused_add_1 = loadKernel(
            triton_poi_fused_add_1_result.cubin_path,
            triton_poi_fused_add_1_result.mangled_name,




    uint32_t grid_0 = ((xnumel + (triton_poi_fused_add_1_result.xblocks[0] - 1)) / (triton_poi_fused_add_1_result.xblocks[0]));
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;














    launchKernel(kernels_.triton_poi_fused_add_1, grid_0, grid_1, grid_2, triton_poi_fused_add_1_result.num_warps, triton_poi_fused_add_1_result.shared_mem, kernel_args_, stream_, false);
















    : AOTInductorModelBase(1,





    inputs_info_[0].name = "arg2_1";
    constants_info_[0].name = "mix_weight";
    constants_info_[0].dtype = cached_torch_dtype_float32;
    constants_info_[0].device_type = cached_torch_device_type_cuda;



    constants_info_[0].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[0].shape = {16, 16};
    constants_info_[0].stride = {16, 1};

    constants_info_[0].original_fqn = "mix.weight";
    constants_info_[1].name = "mix_bias";
    constants_info_[1].dtype = cached_torch_dtype_float32;
    constants_info_[1].device_type = cached_torch_device_type_cuda;



    constants_info_[1].type = static_cast<int32_t>(torch::aot_inductor::ConstantType::Parameter);
    constants_info_[1].shape = {16};
    constants_info_[1].stride = {1};

    constants_info_[1].original_fqn = "mix.bias";


    in_spec_ = R"([1,{"type":"builtins.tuple","context":"null","children_spec":[{"type":"builtins.tuple","context":"null","children_spec":[{"type":null,"context":null,"children_spec":[]}]},{"type":"builtins.dict","context":"[]","children_spec":[]}]}])";




















AOTI_NOINLINE static void check_input_0(






    int32_t arg2_1_expected_dtype = aoti_torch_dtype_float32();









    if (arg2_1_size[0] < 2) {







    if (arg2_1_size[0] > 64) {







    if (16 != arg2_1_size[1]) {








    if (16 != arg2_1_stride[0]) {







    if (1 != arg2_1_stride[1]) {













        << "expected: " << arg2_1_expected_device_type << "1(cuda), "











AOTI_NOINLINE static void __check_inputs_outputs(








void AOTInductorModel::run_impl(
    AtenTensorHandle*
        input_handles,

    AtenTensorHandle*
        output_handles,




) {


    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg2_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& mix_weight = constants_->at(0);
    [[maybe_unused]] auto& mix_bias = constants_->at(1);

    if ((reinterpret_cast<std::uintptr_t>(arg2_1.data_ptr()) & (16 -1)) != 0) {

        AtenTensorHandle arg2_1_aligned;
        aoti_torch_clone_preserve_strides(arg2_1, &arg2_1_aligned);
        arg2_1 = std::move(RAIIAtenTensorHandle(arg2_1_aligned));
    }
    auto arg2_1_size = arg2_1.sizes();
    int64_t s77 = arg2_1_size[0];
    inputs.clear();


    AOTICudaStreamGuard stream_guard(stream, this->device_idx_);
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    // Topologically Sorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] shift_kernel_0:1
    call_shift_kernel_0(arg2_1, buf0, 16L*s77, 0, c10::div_floor_integer(static_cast<int64_t>(127L + 16L*s77), static_cast<int64_t>(128L)), 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);
    arg2_1.reset();
    const int64_t int_array_2[] = {s77, 16L};
    static constexpr int64_t int_array_3[] = {16L, 1L};
    AtenTensorHandle buf2_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_2, int_array_3, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf2_handle));
    RAIIAtenTensorHandle buf2(buf2_handle);
    // Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm]
    // [Provenance debug handles] aoti_torch_cuda_addmm_out:2
    static constexpr int64_t int_array_4[] = {16L, 16L};
    static constexpr int64_t int_array_5[] = {1L, 16L};
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_addmm_out(buf2, mix_bias, buf0, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(mix_weight, 2, int_array_4, int_array_5, 0L)), 1L, 1L));
    const int64_t int_array_6[] = {s77, 16L};
    static constexpr int64_t int_array_7[] = {16L, 1L};
    AtenTensorHandle buf3_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_6, int_array_7, cached_torch_dtype_float32, cached_torch_device_type_cuda, this->device_idx_, &buf3_handle));
    RAIIAtenTensorHandle buf3(buf3_handle);
    // Topologically Sorted Source Nodes: [], Original ATen: []
    // [Provenance debug handles] shift_kernel_0:3
    call_shift_kernel_0(buf2, buf3, 16L*s77, 0, c10::div_floor_integer(static_cast<int64_t>(127L + 16L*s77), static_cast<int64_t>(128L)), 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);
    auto buf6 = std::move(buf2);  // reuse
    // Topologically Sorted Source Nodes: [sin, ], Original ATen: [aten.sin]
    // [Provenance debug handles] triton_poi_fused_sin_0:4
    int64_t triton_poi_fused_sin_0_xnumel = 16L*s77;
    call_triton_poi_fused_sin_0(buf3, buf6, triton_poi_fused_sin_0_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    auto buf5 = std::move(buf3);  // reuse
    // Topologically Sorted Source Nodes: [sin, ], Original ATen: [aten.sin]
    // [Provenance debug handles] shift_kernel_0:5
    call_shift_kernel_0(buf6, buf5, 16L*s77, (-8000000L) + 1000000L*s77, c10::div_floor_integer(static_cast<int64_t>(127L + 16L*s77), static_cast<int64_t>(128L)), 1L, 1L, this->device_idx_, stream, kernels, this->cubin_dir_);
    auto buf8 = std::move(buf6);  // reuse
    // Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
    // [Provenance debug handles] triton_poi_fused_add_1:6
    int64_t triton_poi_fused_add_1_xnumel = 16L*s77;
    call_triton_poi_fused_add_1(buf5, buf0, buf8, triton_poi_fused_add_1_xnumel, this->device_idx_, stream, kernels, this->cubin_dir_);
    buf0.reset();
    buf5.reset();
    output_handles[0] = buf8.release();
} // AOTInductorModel::run_impl

