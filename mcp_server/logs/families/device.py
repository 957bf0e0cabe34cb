"""Errors of the device: asserts, bad accesses, launches, streams, memory, drivers. CUDA comes first.

Texts: torch 2.8-2.15 (c10/cuda, ATen/cuda, aoti_runtime/device_utils.h, model_base.h), the CUDA driver and
its Xid lines (docs.nvidia.com/deploy/xid-errors).
"""

from mcp_server.model import Category

from .kinds import BUILD_GUIDE, HANG_GUIDE, INDEX_GUIDE, MEMORY_GUIDE, Naming, Table

TABLE = Table("call")

_ACCESS: tuple[Category, ...] = (
    *("illegal_memory_access", "device_mismatch", "input_mismatch", "shape_out_of_range"),
)
_SITE = (
    r"(?<![^\s:])(?P<file>[^\s:]+):(?P<line>\d+): (?P<function>[^:]+(?:::[^:]+)*): "
    r"block: \[(?P<block>[\d,]+)\], thread: \[(?P<thread>[\d,]+)\] "
)

TABLE.error(
    "autotune_device_fault",
    r"Failed to run autotuning code block: (?P<detail>.*(?:device-side assert|illegal memory|invalid argument|CUDA error).*)",
    ("compile_failure", "index_out_of_bounds", "illegal_memory_access"),
    "A kernel failed while the compiler benchmarked it on synthetic tensors; the user's inputs were not involved.",
    "Failed to run autotuning code block: Triton Error [CUDA]: device-side assert triggered",
    guide=INDEX_GUIDE,
    stage="compile",
    not_proven="That the model is wrong: synthetic index tensors can be out of range although real ones are not.",
)
TABLE.cause(
    "triton_resources",
    (
        r"OutOfResources: out of resource: (?P<status>[^,]+), Required: (?P<required>\d+), Hardware limit: (?P<limit>\d+)",
        r"out of resource: (?P<kernel>\w+) Required: (?P<required>\d+) Hardware limit: ?(?P<limit>\d+)",
    ),
    "compile_failure",
    "A kernel's configuration (block sizes, stages) needs more shared memory or registers than this GPU has.",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing",
    stage="compile",
    sentence="A kernel needs {required} of {status}; this GPU has {limit} (shared memory is counted in bytes).",
    names=(
        Naming("{kernel}", "{required} needed, {limit} available", kind="kernel"),
        Naming("a Triton kernel", "{required} of {status} needed, {limit} available", kind="kernel"),
    ),
    fix="give the kernel smaller blocks or fewer stages (num_stages)",
)
TABLE.cause(
    "aten_assert",
    _SITE.replace(r"<file>[^\s:]+", r"<file>[^\s:]*aten/src/[^\s:]+", 1)
    + r"Assertion `(?P<assertion>[^`]*(?:index|Index|idx|indices|n_classes|num_classes|cur_target)[^`]*)` failed",
    ("index_out_of_bounds", "input_mismatch", "script_error"),
    "A kernel of ATen found an index outside its bound. Inductor did not write this kernel: it belongs to "
    "an operator that the package calls, or to the program's own code around the package.",
    "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.",
    advice="run_again",
    not_proven="Whether the package or the program called the operator: the line that waits for the device "
    "is not the line that called the operator.",
    late=True,
    tags="index_assert",
)
TABLE.cause(
    "device_assert_index",
    (
        _SITE
        + r"Assertion `(?P<assertion>index out of bounds: (?P<lower>.+?) <= (?P<index>\w+|tl\.broadcast_to\(\w+, [^)]*\)) < (?P<bound>.+?))` failed",
        _SITE
        + r"Assertion `(?P<assertion>[^`]*(?:srcIndex|index out of bounds|idx_dim|dstIndex)[^`]*)` failed",
    ),
    ("index_out_of_bounds", "input_mismatch", "device_mismatch", "shape_out_of_range"),
    "A kernel loaded an index outside [0, bound) and stopped the device; it prints one line per failing "
    "thread.",
    "/c/mf/cmf.py:43: unknown: block: [12,0,0], thread: [0,0,0] Assertion `index out of bounds: 0 <= tmp7 < 1000` failed.",
    not_proven=(
        "That the caller sent a bad index: int32 ids read as int64, an input on another device, a size of "
        "the wrong dimension or an index computed by an earlier kernel produce the same text."
    ),
    late=True,
    sentence="A kernel's check {lower} <= {index} < {bound} failed at {file}:{line}.",
    names=Naming("{kernel}", kind="kernel"),
    tags=("index_assert", "kernel_assert"),
)
TABLE.cause(
    "device_assert_nan",
    _SITE
    + r"Assertion `(?P<assertion>[^`]*(?:NaN or Inf found|contains either `inf`, `nan`)[^\n]*?)` failed",
    ("nan_or_inf",),
    "A value of a kernel is NaN or infinite.",
    "/c/ab.py:31: unknown: block: [0,0,0], thread: [1,0,0] Assertion `NaN or Inf found` failed.",
    not_proven="That this kernel produced the value: it may have received it; infinite attention masks are "
    "normal.",
    late=True,
    tags="nan",
)
TABLE.cause(
    "device_assert",
    _SITE + r"Assertion `(?P<assertion>.+)` failed",
    ("index_out_of_bounds", "input_mismatch", "illegal_memory_access"),
    "An assertion inside a kernel failed and stopped the device.",
    "/c/ab.py:31: unknown: block: [0,0,0], thread: [3,0,0] Assertion `sizes must be positive` failed.",
    late=True,
)
TABLE.consequence(
    "cuda_assert_status",
    (
        r"(?:CUDA|Triton|driver)[^\n]*?(?P<status>device-side assert triggered)",
        r"(?P<status>cudaErrorAssert|CUDA_ERROR_ASSERT)",
    ),
    ("index_out_of_bounds", "input_mismatch", "illegal_memory_access"),
    "A kernel's assertion failed earlier; its own lines, with file, line and condition, are elsewhere in the output.",
    "torch.AcceleratorError: CUDA error: device-side assert triggered",
    advice="run_again",
    not_proven="Which assertion failed. Keep all of standard error, because the assertion lines may come after "
    "this one.",
    late=True,
    sites="assert",
)
TABLE.error(
    "stream_capture",
    r"(?P<status>operation not permitted when stream is capturing|cudaErrorStreamCapture(?!Invalidated)\w+|operation would make the legacy stream depend on a capturing blocking stream)",
    ("concurrency",),
    "The package was called inside a CUDA graph capture; its default run path queries events, which a capture forbids.",
    "Error: The model did not finish successfully. Error: operation not permitted when stream is capturing",
    fix="load the package with run_single_threaded=True, and call it once before the capture",
    not_proven="That another operation of the captured region is allowed in a capture.",
    names=Naming("the call inside a CUDA graph capture", kind="call"),
)
TABLE.consequence(
    "capture_invalidated",
    (
        r"(?P<status>operation failed due to a previous error during capture)",
        r"(?P<status>cudaErrorStreamCaptureInvalidated)",
    ),
    ("concurrency", "illegal_memory_access"),
    "A CUDA graph capture was invalidated by an earlier error.",
    "torch.AcceleratorError: CUDA error: operation failed due to a previous error during capture",
    late=True,
)
TABLE.noise(
    "cuda_teardown",
    r"Failed to (?:destroy CUDA event|free GPU memory|unload CUDA module) in AOTInductor model: (?P<status>.+)",
    ("illegal_memory_access", "index_out_of_bounds"),
    "The line is printed by a process that ends after a device fault. Only the exit status shows which kind of fault it "
    "was.",
    "Failed to destroy CUDA event in AOTInductor model: an illegal memory access was encountered",
    stage="teardown",
    late=True,
)
TABLE.symptom(
    "cuda_illegal_access",
    (
        r"(?P<status>an illegal memory access was encountered|misaligned address|"
        r"operation not supported on global/shared address space|unspecified launch failure|invalid address space|"
        r"an illegal instruction was encountered|hardware stack error|invalid program counter)",
        r"(?P<status>cudaErrorIllegalAddress|cudaErrorMisalignedAddress|cudaErrorInvalidAddressSpace|"
        r"CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_MISALIGNED_ADDRESS|CUDA_ERROR_LAUNCH_FAILED)",
    ),
    (*_ACCESS, "custom_op", "index_out_of_bounds"),
    "A kernel accessed memory outside its buffers. CUDA reports this late, so the operation that raises the error is often not the faulty one.",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    not_proven="Which kernel, and whether it is at fault: a host pointer, a wrong dtype, stride or size, or "
    "a bad index from an earlier kernel produce the same error.",
    late=True,
)
TABLE.error(
    "device_out_of_memory",
    (
        r"CUDA out of memory(?:\. Tried to allocate (?P<asked>[\d.]+ \w+))?(?:\. GPU (?P<device>\d+) has a total capac\w+ of (?P<total>[\d.]+ \w+))?",
        r"CUDA[^\n]*?(?:error|Error[^\n]*?): out of memory",
        r"(?P<status>OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED)",
    ),
    ("out_of_memory",),
    "The device has too little free memory for the request. PyTorch's memory statistics do not count a package's weights; run nvidia-smi to see all memory that is in use.",
    "RuntimeError: CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 23.69 GiB",
    not_proven="Who holds the memory: another process, PyTorch's cache or this model.",
    names=(
        Naming("memory of GPU {device}", "{asked} requested, {total} in total"),
        Naming("device memory", "{asked} asked for"),
    ),
    fix="use a smaller batch; or free device memory before the call: end other processes on this GPU, drop unused "
    "tensors and loaders, then call torch.cuda.empty_cache()",
)
TABLE.consequence(
    "cublas_status",
    r"(?P<status>CU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_\w+)(?: when calling `?(?P<call>[^`\n(]+))?",
    ("illegal_memory_access", "index_out_of_bounds", "device_mismatch", "input_mismatch", "out_of_memory"),
    "A library call found the device already broken (or out of memory); the fault is usually in an earlier kernel.",
    "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
    not_proven="That the matrix product or its operands are wrong.",
    late=True,
    tags="bare_status",
)
TABLE.error(
    "no_kernel_image",
    r"(?P<status>no kernel image is available for execution on the device|no binary for GPU|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU|PTX was compiled with an unsupported toolchain|unsupported PTX version|invalid device function|invalid kernel file|cudaErrorInvalidDeviceFunction)",
    ("arch_mismatch",),
    "A kernel was compiled for another GPU architecture (compute capability): usually a kernel of the package, sometimes one of torch. The error appears at the first launch, not at load.",
    "CUDA driver error: no kernel image is available for execution on the device",
    fix="compile the package again on this kind of GPU; for one package that also runs on newer GPUs, add "
    'inductor_configs={{"aot_inductor.emit_multi_arch_kernel": True}}. If `torch.ones(1).cuda() + 1` fails too, '
    "install a torch that was built for this GPU",
)
TABLE.noise(
    "torch_without_arch",
    r"^\s*(?P<gpu>\S.*) with CUDA capability (?P<arch>sm_\d+\w?) is not compatible with the current PyTorch installation",
    ("arch_mismatch",),
    "This build of torch has no kernels for this GPU, whatever package it runs.",
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
    advice="check_machine",
    names=Naming("torch", "has no kernels for {gpu} ({arch})", kind="environment"),
    fix="install a build of torch whose torch.cuda.get_arch_list() contains {arch}",
)
TABLE.error(
    "kernel_file_missing",
    r"^(?!.*(?:InductorError|BackendCompilerFailed|autotuning)).*CUDA driver error: (?P<status>file not found)",
    "invalid_package",
    "A kernel file (.cubin) is not at the path that is stored in the package; kernels load at their first "
    "launch. A bare .so names the directory in which it was compiled.",
    "Error: CUDA driver error: file not found",
    fix="load a .pt2 of torch._inductor.aoti_compile_and_package, which contains them; a bare .so needs its .cubin files where it was compiled",
)
TABLE.error(
    "kernel_image_invalid",
    r"CUDA (?:driver )?error: (?P<status>device kernel image is invalid|named symbol not found|file not found|a PTX JIT compilation failed)",
    ("invalid_package", "arch_mismatch"),
    "A kernel file (.cubin) of the package is missing, damaged or for another architecture; kernels load at "
    "their first launch.",
    "Error: CUDA driver error: device kernel image is invalid",
)
TABLE.error(
    "launch_invalid_argument",
    r"(?:CUDA (?:driver )?error|Triton Error \[CUDA\]|Error): (?P<status>invalid argument|invalid configuration argument|too many resources requested for launch|out of resource)",
    ("shape_out_of_range", "device_mismatch", "compile_failure"),
    "A launch was rejected: a grid of zero or more than 65535 blocks in y or z, too many resources, or a "
    "pointer that does not belong to the device.",
    "RuntimeError: CUDA driver error: invalid argument",
    not_proven="Which of these reasons applies.",
)
TABLE.error(
    "host_pointer",
    r"The specified pointer resides on host memory and is not registered with any CUDA device",
    ("device_mismatch",),
    "A tensor in host memory was given where device memory is needed.",
    "The specified pointer resides on host memory and is not registered with any CUDA device.",
)
TABLE.error(
    "old_driver",
    r"(?P<status>CUDA driver version is insufficient for CUDA runtime version|The NVIDIA driver on your system is too old)",
    ("environment",),
    "The installed torch was built for a newer CUDA than the NVIDIA driver supports.",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    stage="any",
    names=Naming("CUDA driver", "{status}"),
    fix="update the NVIDIA driver, or install a torch built for an older CUDA. `nvidia-smi` shows the newest CUDA that "
    "the driver supports (such as `CUDA Version: 12.4`); `torch.version.cuda` shows the CUDA that torch was built for",
)
TABLE.error(
    "no_driver",
    (
        r"(?P<status>Found no NVIDIA driver|no CUDA-capable device is detected|"
        r"CUDA driver initialization failed|No CUDA GPUs are available|CUDA unknown error|"
        r"initialization error|forward compatibility was attempted|system not yet initialized|driver/library version mismatch|"
        r"0 active drivers)",
    ),
    ("environment",),
    "CUDA cannot be used in this process: no driver, no visible device, or a driver that does not fit.",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    stage="any",
    names=Naming("CUDA driver", "{status}"),
)
TABLE.error(
    "bad_device_index",
    (
        r"(?P<status>invalid device ordinal)",
        r"Attempting to deserialize object on CUDA device (?P<index>\d+) but torch\.cuda\.device_count\(\) is (?P<count>\d+)",
        r"Specified device (?P<specified>\S+) does not match device of data (?P<actual>\S+)",
        r"Invalid device: (?P<device>\S+)",
        r"[Dd]evice index (?P<index>-?\d+)[^\n]*(?:out of range|must be|available)",
    ),
    ("device_mismatch",),
    "The device index does not exist on this machine, or constants and data are on different devices.",
    "RuntimeError: CUDA error: invalid device ordinal",
    advice="check_machine",
    guide=BUILD_GUIDE,
    stage="any",
    names=(
        Naming("device {specified}", "the data is on {actual}", kind="call"),
        Naming("device {index}", "{count} devices", kind="call"),
    ),
    fix="load the package, its weights and the inputs on one device, not on {specified} and {actual}",
)
TABLE.error(
    "two_devices",
    (
        r"Expected all tensors to be on the same device, but (?:found|got|expected)(?P<detail>.*)",
        r"Expected (?:out )?tensor to have device (?P<expected>\S+), but got (?P<got>\S+) instead",
        r"tensors? (?:is|are) on (?P<got>\S+?),? but expected them to be on GPU",
    ),
    ("device_mismatch", "input_mismatch"),
    "An operation received tensors on different devices.",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    tags="fake_operand",
)
TABLE.consequence(
    "nccl_timeout",
    r"(?P<status>Watchdog caught collective operation timeout)(?:: WorkNCCL\(.*?OpType=(?P<collective>\w+).*?Timeout\(ms\)=(?P<limit_ms>\d+))?",
    ("hang", "environment", "concurrency"),
    "A collective operation did not end in time: another rank did not take part, or the network failed.",
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=46, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
    advice="run_again",
    not_proven="Which rank is at fault: it is a rank that died, hangs or took another path, rarely the one "
    "that reports this.",
    tags="bare_status",
)
TABLE.consequence(
    "nccl",
    r"(?P<status>NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ProcessGroupNCCL)",
    ("environment", "hang", "illegal_memory_access"),
    "A collective operation failed or timed out; it often only reports another rank's fault.",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error",
    advice="run_again",
    guide=HANG_GUIDE,
    tags="bare_status",
)

_XID = r"NVRM: Xid \([^)]*\): "

TABLE.symptom(
    "gpu_page_fault",
    (_XID + r"(?P<xid>13|31|43|45), (?P<detail>.*)",),
    (*_ACCESS, "index_out_of_bounds"),
    "A kernel touched memory that is not mapped on the device.",
    "NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS",
    not_proven="Which kernel, and whether it is at fault: a bad index or a host pointer may have been given to it.",
    late=True,
)
TABLE.cause(
    "device_lost",
    (
        r"(?P<status>uncorrectable ECC error encountered|GPU is lost|has fallen off the bus|devices? (?:is|are) busy or unavailable|cudaErrorECCUncorrectable|cudaErrorDevicesUnavailable)",
        _XID + r"(?P<xid>48|62|63|64|74|79|9[2-5]|119|120), (?P<detail>.*)",
    ),
    "environment",
    "The GPU itself failed, or another process holds it. No program can use it in this state.",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    stage="any",
)
TABLE.symptom(
    "device_reset",
    r"(?P<status>cudaErrorLaunchTimeout|the launch timed out and was terminated)",
    ("hang", "illegal_memory_access", "environment"),
    "The driver reset the device: a kernel ran longer than the driver allows, or did something that the "
    "hardware cannot handle.",
    "RuntimeError: CUDA error: the launch timed out and was terminated",
    advice="check_machine",
    not_proven="Which kernel, and whether it or the driver is at fault.",
    late=True,
)
TABLE.consequence(
    "device_status",
    (
        r"\b(?P<backend>CUDA)(?: driver| runtime)? error: (?P<status>[A-Za-z].*)",
        r"\b(?P<call>cuda[A-Z]\w{2,40})\b.{0,60}? failed(?: with error)?: (?P<status>.+)",
    ),
    ("environment", "illegal_memory_access", "device_mismatch", "input_mismatch"),
    "The device or its driver rejected or aborted some work; the call that raises the error is rarely at "
    "fault.",
    "RuntimeError: CUDA error: operation not supported",
    advice="run_again",
    guide=MEMORY_GUIDE,
    not_proven="What the device rejected. A run with blocking launches shows it.",
    late=True,
    tags="bare_status",
)
