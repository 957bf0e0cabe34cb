"""Errors about the inputs of a call, and about the operators and generated code that the model calls.

Texts: generated `check_input_N` and wrapper checks (cpp_wrapper_cpu.py, aoti_runtime/utils.h), interface.cpp,
_tree_utils.py, model_container_runner.cpp, the proxy executor (oss_proxy_executor.cpp), torch/_ops.py,
torch/_library and the dispatcher of torch 2.8-2.15.
"""

from functools import partial

from .kinds import MAIN_GUIDE, SHAPES_GUIDE, Naming, Table

TABLE = Table("call")
_INPUT = Naming("input {input}", "{got} (compiled: {expected})", kind="input")

_checked = partial(TABLE.cause, names=_INPUT, tags="input_check")

# People quote these texts without the leading name.
_HANDLE = r"(?:input_handles\[(?P<input>\d+)\]: )?"

_checked(
    "input_dtype",
    _HANDLE
    + r"unmatched dtype, expected: (?P<expected>\d+)\((?P<expected_name>[^)]*)\), but got: (?P<got>\d+)",
    "input_mismatch",
    "The run-time input check found a different dtype; the numbers are c10::ScalarType (3 int, 4 long, 5 half, 6 float, 7 double).",
    "input_handles[0]: unmatched dtype, expected: 6(at::kFloat), but got: 7",
    sentence="Input {input} is {got}, but the package was compiled for {expected}.",
    fix="pass input {input} as {expected}",
)
_checked(
    "input_static_dim",
    _HANDLE + r"unmatched dim value at (?P<dim>\d+), expected: (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "input_mismatch",
    "The run-time input check found a different size for a static dimension. If the input has a lower rank, the "
    "check reads past the end of its sizes.",
    "input_handles[0]: unmatched dim value at 1, expected: 16, but got: 17",
    not_proven="That the rank is right: ndim is not checked, and a size of 0 may come from memory past the "
    "array.",
    sentence="Input {input} has size {got} in dimension {dim}, but was compiled for {expected}.",
)
_checked(
    "input_range",
    _HANDLE
    + r"dim value is too (?P<side>small|large) at (?P<dim>\d+), expected (?:it )?to be (?P<relation>>=|<=) (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "shape_out_of_range",
    "The run-time input check found a dynamic dimension outside the compiled range.",
    "input_handles[0]: dim value is too large at 0, expected to be <= 256, but got: 512",
    not_proven=(
        "That the call is wrong: `>= 2` also rejects a batch of 1 that the export allowed, and code generation can "
        "tighten an upper bound."
    ),
    sentence="Input {input} has size {got} in dimension {dim}, but was compiled for {relation} {expected}.",
    names=Naming("input {input}", "{got} (compiled: {relation} {expected})", kind="input"),
)
_checked(
    "input_stride",
    _HANDLE
    + r"unmatched stride value at (?P<dim>\d+), expected: (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "input_mismatch",
    "The run-time input check found a different stride; generated code assumes the compiled one.",
    "input_handles[0]: unmatched stride value at 0, expected: 16, but got: 1",
    sentence="Input {input} has stride {got} in dimension {dim}, but was compiled for {expected}.",
)
_checked(
    "input_device",
    _HANDLE
    + r"unmatched device type, expected: (?P<expected>\d+)\((?P<expected_name>\w+)\), but got: (?P<got>\d+)",
    "device_mismatch",
    "The run-time input check found a different device type (0 cpu, 1 cuda); the expected number is printed twice.",
    "input_handles[0]: unmatched device type, expected: 11(cuda), but got: 0",
    not_proven="The device index: it is never checked.",
    sentence="Input {input} is on {got}, but the package was compiled for {expected_name}.",
    fix="move input {input} to {expected_name}",
)
_checked(
    "input_count",
    (
        r"expected inputs vector size to be (?P<expected>\d+), but got (?P<got>\d+)",
        r"Expected (?P<expected>\d+) inputs?,? but got (?P<got>\d+)",
    ),
    "input_mismatch",
    "The number of tensors differs from what the package expects; arguments that are not tensors are "
    "dropped before this check.",
    "expected inputs vector size to be 2, but got 1",
    sentence="The number of tensors is wrong: the package was compiled for {expected}, and the call passed {got}.",
    names=Naming("the call's inputs", "{got} tensors (compiled: {expected})", kind="call"),
    fix="pass the tensors of the exported call, and only these; arguments that are not tensors do not count",
)
TABLE.error(
    "kwarg_names",
    r"Ran into a kwarg keyword mismatch: Got the following keywords (?P<got>\[.*?\]) but expected (?P<expected>\[.*?\])",
    "input_mismatch",
    "The keyword arguments differ from those of the export.",
    "ValueError: Ran into a kwarg keyword mismatch: Got the following keywords ['x'] but expected []",
    names=Naming("keyword arguments {got}", "{got} (exported: {expected})", kind="call"),
    fix="call the package with the keyword arguments {expected}",
)
TABLE.error(
    "input_tree",
    (
        r"treespec\.unflatten\(leaves\): `leaves` has length (?P<got>\d+) but the spec refers to a pytree that holds (?P<expected>\d+) items",
        r"(?:Node arity mismatch|Node type mismatch|Node keys? mismatch|Trying to flatten user inputs with exported input tree spec)(?P<detail>.*)",
    ),
    ("input_mismatch",),
    "The arguments have a different structure from those of the export.",
    "ValueError: treespec.unflatten(leaves): `leaves` has length 7 but the spec refers to a pytree that holds 1 items (*).",
    names=Naming("the call's inputs", "{got} leaves (exported: {expected})", kind="call"),
)
TABLE.cause(
    "size_stride_assert",
    (
        r"expected size (?P<got_size>\d+)==(?P<expected_size>\d+), stride (?P<got_stride>-?\d+)==(?P<expected_stride>-?\d+) at dim=(?P<dim>\d+)",
        r"expected ndim (?P<expected_ndim>\d+) but got (?P<got_ndim>\d+)",
        r"expected dtype (?P<expected_dtype>torch\.\w+) but got dtype code (?P<got_dtype>\d+)",
        r"Expect the tensor to be (?P<bytes>\d+) bytes aligned\. Fail due to (?P<detail>.*)",
    ),
    ("custom_op", "input_mismatch", "shape_out_of_range"),
    "A tensor has different sizes or strides from those the compiler assumed. It is an input, or what an "
    "operator really returned.",
    "expected size 6==4, stride 4==6 at dim=0; expected size 4==6, stride 1==1 at dim=1",
    torch=">=2.13 (AOTI, with AOTI_RUNTIME_CHECK_INPUTS), all (Python wrapper)",
    not_proven="That a fake function is wrong: if `Error in op` names `input`, the caller's tensor is wrong.",
    tags="input_check",
)
TABLE.cause(
    "guard_size",
    r"Expected input at (?P<path>\S+) to be (?P<relation>equal to) (?P<expected>.+?), but got (?P<got>.+)",
    ("input_mismatch", "shape_out_of_range"),
    "The exported program's own check rejects a size. It expects a fixed number, or the size of another "
    "input.",
    "RuntimeError: Expected input at *args[0].shape[0] to be equal to 1, but got 3",
    names=Naming("{path}", "{got} (exported: {expected})", kind="input"),
)
TABLE.cause(
    "guard_range",
    r"Expected input at (?P<path>\S+) to be (?P<relation>>=|<=|of the form) (?P<expected>.+?), but got (?P<got>.+)",
    "shape_out_of_range",
    "The exported program's own check rejects a size of a dynamic dimension.",
    "RuntimeError: Expected input at *args[0].shape[0] to be <= 128, but got 200",
    names=Naming("{path}", "{got} (exported: {relation} {expected})", kind="input"),
)
TABLE.cause(
    "guard_failed",
    r"Guard failed: (?P<guard>.+)",
    ("shape_out_of_range", "input_mismatch"),
    "The exported program's own guard rejects these inputs; the package drops such guards.",
    "AssertionError: Guard failed: x.size()[0] % 100 == 0",
)
TABLE.cause(
    "runtime_assert",
    (
        r"Expected (?P<condition>\S.*?) (?:to be True )?but received (?P<value>-?\d+)",
        r"Runtime assertion failed for expression (?P<condition>.+?)(?: on node|$)",
        r"^(?:RuntimeError: |Error: )(?P<condition>u\d+ (?:>=|<=|<|>|==|!=) \S+)$",
    ),
    ("shape_out_of_range", "input_mismatch"),
    "A size computed at run time violates an assumption of the export.",
    "RuntimeError: Expected u0 <= 5 but received 9",
    sentence="The package expects {condition}, but got {value}.",
    names=Naming("the call's inputs", "{value}, but {condition} is assumed", kind="call"),
)
TABLE.cause(
    "cpu_index_assert",
    (
        # The bound ends with the line, or at a space if words follow. An index that is never negative has
        # only an upper bound.
        r"index out of bounds: (?:(?P<lower>\S{1,80}) <= )?(?P<index>\w+) < "
        r"(?P<bound>(?![^`\n]*[A-Za-z_]\w*\s+[A-Za-z_])[^`\n]{1,160}?)L?\s*$",
        r"index out of bounds: (?:(?P<lower>\S{1,80}) <= )?(?P<index>\w+) < "
        r"(?P<bound>[\w().*+/-]{1,80}?)L?(?=[\s`]|$)",
    ),
    ("index_out_of_bounds", "input_mismatch", "shape_out_of_range"),
    "A CPU kernel found an index outside [0, bound); in a parallel kernel this ends the process.",
    "RuntimeError: index out of bounds: 0 <= tmp27 < 32L",
    not_proven="That the caller sent a bad index: int32 ids read as int64 produce the same text.",
    sentence="A CPU kernel's check {lower} <= {index} < {bound} failed.",
    names=Naming("{kernel}", kind="kernel"),
    tags=("index_assert", "kernel_assert"),
)
TABLE.error(
    "aten_index",
    (
        r"(?P<detail>index out of range in self)",
        r"index (?P<value>-?\d+) is out of bounds for (?:dimension|axis) (?P<dim>\d+) with size (?P<bound>\d+)",
        r"[Dd]imension out of range \(expected to be in range of (?P<range>\[.*?\]), but got (?P<value>-?\d+)\)",
        r"(?P<detail>Target (?P<value>-?\d+) is out of bounds|INDICES element is out of DATA bounds.*)",
        r"(?P<index>offsets)\[0\] has to be (?P<bound>0), .* However, got (?P<value>-?\d+)",
        r"(?P<index>offsets)\[-1\] can not be greater than input's length (?P<bound>\d+) but got offsets\[-1\] of (?P<value>\d+)",
        r"Expected (?P<detail>(?P<index>\w+) < (?P<bound>index_size|\w+_size|num_\w+) to be true)",
        r"[Ii]ndex (?P<at>\d+) of \w+ takes value (?P<value>-?\d+) which is not in the valid range \[-?\d+, (?P<bound>\d+)\)",
        r"(?P<detail>index_\w+\(\): (?:self indexing axis )?(?:index )?out of (?:range|bounds).*|indices? (?:element )?(?:is )?out of (?:range|bounds).*)",
    ),
    ("index_out_of_bounds",),
    "An ATen operator rejected an index.",
    "IndexError: index out of range in self",
    tags=("operand", "fake_operand"),
)
TABLE.error(
    "matrix_values",
    r"(?<!\w)(?P<call>(?:linalg\.)?\w{1,40}): (?:\(Batch element \d+\): )?(?:U\[|The (?:diagonal element|solver failed|factorization could not|algorithm failed|least squares solution could not))",
    "nan_or_inf",
    "An operator of linear algebra rejected the values of its matrix: it is singular, not positive definite, or "
    "not finite.",
    "linalg.inv: The diagonal element 3 is zero, the inversion could not be completed because the input matrix is singular.",
    not_proven="Which of its inputs makes the matrix so.",
    sentence="{call} rejected the values of its matrix: it is singular, not positive definite, or not finite.",
    names=Naming("{call}", kind="op"),
    fix="correct what makes the matrix: with fewer samples than columns, two equal rows or a variance of 0 it is "
    "singular. If such data are allowed, add a small multiple of the identity (for a covariance: shrinkage), or "
    "use a method for any rank, as torch.linalg.pinv",
)
TABLE.cause(
    "nan_check",
    r"At least one (?P<kind>NaN|INF) in (?P<buffer>\w+)",
    "nan_or_inf",
    "The compiled-in check found a non-finite value in this buffer, after the launch that uses it (or in an input, from 2.13).",
    "RuntimeError: At least one NaN in buf8",
    not_proven="That the kernel before the check produced the value: kernels without a check (C++, extern) "
    "are skipped; INF in a mask is normal.",
    sentence="{kind} in {buffer}.",
)
TABLE.error(
    "matrix_shapes",
    (
        r"mat1 and mat2 shapes cannot be multiplied \((?P<left>\w+) and (?P<right>\w+)\)",
        r"The size of tensor a \((?P<left>\d+)\) must match the size of tensor b \((?P<right>\d+)\) at non-singleton dimension (?P<dim>\d+)",
        r"shape '(?P<shape>\[.*?\])' is invalid for input of size (?P<size>\d+)",
        r"[Ss]izes of tensors must match except in dimension (?P<dim>\d+)",
        r"Given groups=\d+, weight of size (?P<weight>\[.*?\]), expected input(?P<input>\[.*?\])",
        r"size mismatch, (?:got|tensors)(?P<detail>.*)",
    ),
    ("input_mismatch", "shape_out_of_range", "custom_op", "script_error"),
    "An operator's operands do not fit together; a package checks no input shapes by default.",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x17 and 16x32)",
    tags=("operand", "fake_operand"),
)
TABLE.error(
    "operand_dtypes",
    (
        r"must have the same dtype, but got (?P<left>\w+) and (?P<right>\w+)",
        r"expected (?:m1 and m2|scalar type|mat1 and mat2) (?:to have the same dtype, but got: )?(?P<expected>\w+) (?:but found|!=) (?P<got>[\w:]+)",
        r"Expected tensor for argument #(?P<argument>\d+) '(?P<name>\w+)' to have (?:one of the following )?scalar types?:? (?P<expected>[^;]+); but got (?P<got>\S+) instead",
    ),
    ("input_mismatch", "custom_op", "constants", "script_error"),
    "An operator's operands have different dtypes.",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
    tags=("operand", "fake_operand"),
)
TABLE.error(
    "kernel_division",
    r"(?P<detail>cpp_prefix\.h:\d+, ZeroDivisionError|RuntimeError: ZeroDivisionError)",
    ("input_mismatch", "script_error"),
    "A kernel of the package divided an integer by zero.",
    "Error: inductor_cpu_throw_if_integer_div_error, /torch/csrc/inductor/cpp_prefix.h:827, ZeroDivisionError",
    not_proven="Whether an input contains the zero, or the model computes it.",
)
TABLE.error(
    "int_division",
    r"(?P<detail>Integer floor division by zero|ZeroDivisionError|integer division or modulo by zero)",
    ("shape_out_of_range", "input_mismatch", "script_error"),
    "A size or scalar of zero was divided by.",
    "RuntimeError: Integer floor division by zero",
    tags=("operand", "fake_operand"),
)
TABLE.error(
    "scalar_input",
    r"Expected a proper Tensor but got None \(or an undefined Tensor in C\+\+\) for argument #(?P<argument>\d+) '(?P<name>\w+)'",
    ("input_mismatch", "compile_failure"),
    "A tensor argument is undefined. One possible cause is a dynamic integer input, which AOTInductor does not "
    "support.",
    "RuntimeError: Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #1 'other'",
    fix="pass the number as a tensor at the export and in each call (torch.tensor(n)), or leave its dynamic shape out: the export then fixes its value",
)
TABLE.error(
    "operator_refused",
    (),
    ("input_mismatch", "shape_out_of_range", "custom_op"),
    "An operator inside the package rejected its operands; a package checks no input shapes by default.",
    "RuntimeError: mat1 must be a matrix, got 1-D tensor",
    not_proven="Whether the caller's tensors, or what an earlier operator returned, do not fit.",
    tags="open_refusal",
)
TABLE.error(
    "operator_raised",
    (),
    ("custom_op", "input_mismatch", "script_error"),
    "A Python operator that the package calls raised an exception.",
    "ValueError: table not loaded",
)
TABLE.noise(
    "misaligned_input",
    r"Input (?P<input>\d+) was compiled as (?P<bytes>\d+)-bytes aligned, but it is not aligned at run time",
    ("input_mismatch",),
    "This is a warning: the input is copied to an aligned tensor, which gives correct results but is slower.",
    "Input 0 was compiled as 16-bytes aligned, but it is not aligned at run time. Copying to an aligned tensor",
)
TABLE.error(
    "proxy_executor",
    r"Unable to find a proxy executor to run custom ops",
    ("invalid_package", "custom_op"),
    "The description of the custom operators (wrapper.json) is not in the directory of the library.",
    "Unable to find a proxy executor to run custom ops. Please check if there is a json file generated",
    stage="load",
    guide=SHAPES_GUIDE,
)
TABLE.error(
    "op_not_registered",
    (
        r"Cou[nl]d not find schema for (?P<op>\w+::?\w+(?:\.\w+)?)",
        r"Could not find (?:any similar ops to|the operator) (?P<op>[\w.]+::[\w.]+)",
        r"No such operator (?P<op>[\w.]+::[\w.]+)",
        r"'_OpNamespace' '(?P<namespace>\w+)' object has no attribute '(?P<op>\w+)'",
        r"Tried to access or call an operator with a wrong signature\.\s+operator: (?P<op>[\w.]+::\w+)",
    ),
    "custom_op",
    "The custom operator is not registered in this process, because packages do not contain custom "
    "operators.",
    "RuntimeError: Could not find schema for mylib::plus1. Custom operators created via torch.library.custom_op cannot be run",
    stage="load",
    advice="check_package",
    not_proven="That the op exists anywhere. Import the module that defines it before loading.",
    sentence="The operator {op} is not registered in this process.",
    fix="before the package is loaded, import the module that registers {op}, or load its library with "
    "torch.ops.load_library",
)
TABLE.error(
    "custom_op_call",
    (
        r"ProxyExecutor does not have a custom object named (?P<name>\S+)",
        r"Mismatch between tensors consumed and num of input tensor(?P<detail>.*)",
        r"NYI: Unsupported return type for schema: (?P<schema>.+)",
        r"(?<!\w)(?P<op>(?!aten::|prims::)\w+::\w+(?:\.\w+)?)\(\) (?:Expected|expected|is missing value)(?P<detail>.*)",
        r"There was no fake impl registered for <CustomOpDef\((?P<op>[\w:.]+)\)>",
        r"(?<![\w.])(?P<op>[\w.]+::[\w.]+): attempted to run this operator with Meta tensors",
        r"(?<!\S)(?P<op>\S+) \(with implementation in .+?\): The output of this custom operator .*(?:alias|must not)",
    ),
    "custom_op",
    "A custom operator cannot be called in the way that the package or the compiler calls it.",
    "NYI: Unsupported return type for schema: mylib::f(Tensor x) -> (Tensor, SymInt)",
    advice="check_package",
    stage="any",
    fix="give the operator a fake function (register_fake) that returns new tensors with the layout of the real result",
)
TABLE.noise(
    "opcheck",
    r"(?P<detail>opcheck\(op, \.\.\.\)|This error most often comes from an? incorrect fake \(aka meta\) kernel for a custom op)",
    "custom_op",
    "This is a hint about fake functions of custom operators. If the error is about an input, the hint is misleading.",
    "This error most often comes from a incorrect fake (aka meta) kernel for a custom op.",
    stage="load",
    advice="read_cause",
)
TABLE.generic(
    "generic_api_call",
    r"(?P<call>run_func_|create_func_|delete_func_|update_constant_buffer_func_|update_inactive_constant_buffer_func_|run_const_fold_func_|swap_constant_buffer_func_|(?<!\w)\w+_func_)\(.*API call failed at (?P<file>\S+), line (?P<line>\d+)",
    ("input_mismatch", "index_out_of_bounds", "device_mismatch", "illegal_memory_access", "out_of_memory"),
    "The line only says that the package's call failed; the cause is another line, mostly on standard error (`Error: …`).",
    "RuntimeError: run_func_( container_handle_, input_handles.data() ) API call failed at /pytorch/torch/csrc/inductor/aoti_runner/model_container_runner.cpp, line 144",
    advice="read_cause",
    not_proven="Anything: up to 2.12 every failed run prints it, and in every release a failed load or "
    "constant update, which hides out-of-memory and driver errors.",
    guide=MAIN_GUIDE,
    torch="<=2.12 for run errors; all for load and constant errors",
    tags=("native_stack", "stageless", "bare_status"),
)
TABLE.generic(
    "shim_call",
    r"(?:Error: )?(?P<call>(?:aoti_torch|at::|torch::)\w[\w:]*)\((?P<arguments>.*)\) API call failed at (?P<file>\S+?), line (?P<line>\d+)",
    ("input_mismatch", "index_out_of_bounds", "illegal_memory_access", "custom_op"),
    "The operator call of the generated code that reported the error; file and line are in the generated wrapper.",
    "Error: aoti_torch_cuda_mm_out(buf11, buf10, w) API call failed at /c/ab.wrapper.cpp, line 1508",
    advice="read_cause",
    guide=MAIN_GUIDE,
    tags="bare_status",
)
