"""Errors about what the model was called with.

Texts: generated `check_input_N` (cpp_wrapper_cpu.py), aoti_runtime/utils.h, interface.cpp, _tree_utils.py.
"""

from __future__ import annotations

from .kinds import INDEX_GUIDE, NAN_GUIDE, SHAPES_GUIDE, Defaults, Family, Rank

_table = Defaults(stage="call", guide=SHAPES_GUIDE, advice="check_inputs")
_add = _table.add

# People quote these texts without the name in front.
_HANDLE = r"(?:input_handles\[(?P<input>\d+)\]: )?"

_add(
    "input_dtype",
    _HANDLE
    + r"unmatched dtype, expected: (?P<expected>\d+)\((?P<expected_name>[^)]*)\), but got: (?P<got>\d+)",
    "unmatched dtype",
    "input_mismatch",
    "The run-time input check found another dtype; the numbers are c10::ScalarType.",
    "input_handles[0]: unmatched dtype, expected: 6(at::kFloat), but got: 7",
    rank=Rank.CAUSE,
)
_add(
    "input_static_dim",
    _HANDLE + r"unmatched dim value at (?P<dim>\d+), expected: (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "unmatched dim value",
    "input_mismatch",
    "The run-time input check found another size for a static dimension. It reads past the sizes of an input of lower rank.",
    "input_handles[0]: unmatched dim value at 1, expected: 16, but got: 17",
    rank=Rank.CAUSE,
    not_proven="That the rank is right: ndim is not checked, and a size of 0 may be memory past the array.",
)
_add(
    "input_range",
    _HANDLE
    + r"dim value is too (?P<side>small|large) at (?P<dim>\d+), expected (?:it )?to be (?P<relation>>=|<=) (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "dim value is too",
    "shape_out_of_range",
    "The run-time input check found a dynamic dimension outside the compiled range.",
    "input_handles[0]: dim value is too large at 0, expected to be <= 256, but got: 512",
    rank=Rank.CAUSE,
    not_proven=(
        "That the call is wrong: `>= 2` also rejects a batch of 1 that the export allowed, and code generation can "
        "tighten an upper bound."
    ),
)
_add(
    "input_stride",
    _HANDLE
    + r"unmatched stride value at (?P<dim>\d+), expected: (?P<expected>-?\d+), but got: (?P<got>-?\d+)",
    "unmatched stride value",
    "input_mismatch",
    "The run-time input check found another stride; generated code assumes the compiled one.",
    "input_handles[0]: unmatched stride value at 0, expected: 16, but got: 1",
    rank=Rank.CAUSE,
)
_add(
    "input_device",
    _HANDLE
    + r"unmatched device type, expected: (?P<expected>\d+)\((?P<expected_name>\w+)\), but got: (?P<got>\d+)",
    "unmatched device type",
    "device_mismatch",
    "The run-time input check found another device type (0 cpu, 1 cuda); the expected number is printed twice.",
    "input_handles[0]: unmatched device type, expected: 11(cuda), but got: 0",
    rank=Rank.CAUSE,
    not_proven="The device index: it is never checked.",
)
_add(
    "input_count",
    (
        r"expected inputs vector size to be (?P<expected>\d+), but got (?P<got>\d+)",
        r"Expected (?P<expected>\d+) inputs?,? but got (?P<got>\d+)",
    ),
    ("inputs vector size", " inputs"),
    "input_mismatch",
    "The number of tensors is not that of the package; arguments that are not tensors are dropped before this check.",
    "expected inputs vector size to be 2, but got 1",
    rank=Rank.CAUSE,
)
_add(
    "kwarg_names",
    r"Ran into a kwarg keyword mismatch: Got the following keywords (?P<got>\[.*?\]) but expected (?P<expected>\[.*?\])",
    "kwarg keyword mismatch",
    "input_mismatch",
    "The keyword arguments are not those of the export.",
    "ValueError: Ran into a kwarg keyword mismatch: Got the following keywords ['x'] but expected []",
)
_add(
    "input_tree",
    (
        r"treespec\.unflatten\(leaves\): `leaves` has length (?P<got>\d+) but the spec refers to a pytree that holds (?P<expected>\d+) items",
        r"(?:Node arity mismatch|Node type mismatch|Node keys? mismatch|Trying to flatten user inputs with exported input tree spec)(?P<detail>.*)",
    ),
    ("treespec.unflatten", "mismatch", "exported input tree spec"),
    ("input_mismatch",),
    "The structure of the arguments is not that of the export.",
    "ValueError: treespec.unflatten(leaves): `leaves` has length 7 but the spec refers to a pytree that holds 1 items (*).",
)
_add(
    "size_stride_assert",
    (
        r"expected size (?P<got_size>\d+)==(?P<expected_size>\d+), stride (?P<got_stride>-?\d+)==(?P<expected_stride>-?\d+) at dim=(?P<dim>\d+)",
        r"expected ndim (?P<expected_ndim>\d+) but got (?P<got_ndim>\d+)",
        r"expected dtype (?P<expected_dtype>torch\.\w+) but got dtype code (?P<got_dtype>\d+)",
        r"Expect the tensor to be (?P<bytes>\d+) bytes aligned\. Fail due to (?P<detail>.*)",
    ),
    ("expected size ", "expected ndim ", "expected dtype torch", "bytes aligned. Fail"),
    ("custom_op", "input_mismatch", "shape_out_of_range"),
    "A tensor has other sizes or strides than the compiler was told: of an input, or of what an operator really returned.",
    "expected size 6==4, stride 4==6 at dim=0; expected size 4==6, stride 1==1 at dim=1",
    rank=Rank.CAUSE,
    torch=">=2.13 (AOTI, with AOTI_RUNTIME_CHECK_INPUTS), all (Python wrapper)",
    not_proven="That a fake function is wrong, when `Error in op` names `input`: then the caller's tensor is.",
)
_add(
    "guard_size",
    r"Expected input at (?P<path>\S+) to be (?P<relation>equal to) (?P<expected>.+?), but got (?P<got>.+)",
    "Expected input at ",
    ("input_mismatch", "shape_out_of_range"),
    "The exported program's own check rejects a size, which it takes as fixed, or as that of another input.",
    "RuntimeError: Expected input at *args[0].shape[0] to be equal to 1, but got 3",
    rank=Rank.CAUSE,
)
_add(
    "guard_range",
    r"Expected input at (?P<path>\S+) to be (?P<relation>>=|<=|of the form) (?P<expected>.+?), but got (?P<got>.+)",
    "Expected input at ",
    "shape_out_of_range",
    "The exported program's own check rejects a size of a dynamic dimension.",
    "RuntimeError: Expected input at *args[0].shape[0] to be <= 128, but got 200",
    rank=Rank.CAUSE,
)
_add(
    "guard_failed",
    r"Guard failed: (?P<guard>.+)",
    "Guard failed: ",
    ("shape_out_of_range", "input_mismatch"),
    "The exported program's own guard rejects these inputs; the package drops such guards.",
    "AssertionError: Guard failed: x.size()[0] % 100 == 0",
    rank=Rank.CAUSE,
)
_add(
    "runtime_assert",
    (
        r"Expected (?P<condition>\S.*?) (?:to be True )?but received (?P<value>-?\d+)",
        r"Runtime assertion failed for expression (?P<condition>.+?)(?: on node|$)",
        r"^(?:RuntimeError: |Error: )(?P<condition>u\d+ (?:>=|<=|<|>|==|!=) \S+)$",
    ),
    ("but received ", "Runtime assertion failed", " u", "Error: u"),
    ("shape_out_of_range", "input_mismatch"),
    "A size computed at run time breaks an assumption of the export.",
    "RuntimeError: Expected u0 <= 5 but received 9",
    rank=Rank.CAUSE,
)
_add(
    "cpu_index_assert",
    (
        # An expression to the end of the line; before words that follow it, one without a space.
        r"index out of bounds: (?P<lower>\S{1,80}) <= (?P<index>\w+) < "
        r"(?P<bound>(?![^`\n]*[A-Za-z_]\w*\s+[A-Za-z_])[^`\n]{1,160}?)L?\s*$",
        r"index out of bounds: (?P<lower>\S{1,80}) <= (?P<index>\w+) < (?P<bound>[\w().*+/-]{1,80}?)L?(?=[\s`]|$)",
    ),
    "index out of bounds: ",
    ("index_out_of_bounds", "input_mismatch", "shape_out_of_range"),
    "A CPU kernel met an index outside [0, bound); in a parallel kernel this ends the process.",
    "RuntimeError: index out of bounds: 0 <= tmp27 < 32L",
    rank=Rank.CAUSE,
    guide=INDEX_GUIDE,
    advice="trace_index",
    not_proven="That the caller sent a bad index: int32 ids read as int64 give the same text.",
)
_add(
    "aten_index",
    (
        r"(?P<detail>index out of range in self)",
        r"index (?P<value>-?\d+) is out of bounds for (?:dimension|axis) (?P<dim>\d+) with size (?P<bound>\d+)",
        r"[Dd]imension out of range \(expected to be in range of (?P<range>\[.*?\]), but got (?P<value>-?\d+)\)",
        r"(?P<detail>Target (?P<value>-?\d+) is out of bounds|offsets\[0\] has to be 0.*|INDICES element is out of DATA bounds.*)",
        r"Expected (?P<detail>(?P<index>\w+) < (?P<bound>index_size|\w+_size|num_\w+) to be true)",
        r"[Ii]ndex (?P<at>\d+) of \w+ takes value (?P<value>-?\d+) which is not in the valid range \[-?\d+, (?P<bound>\d+)\)",
        r"(?P<detail>index_\w+\(\): (?:self indexing axis )?(?:index )?out of (?:range|bounds).*|indices? (?:element )?(?:is )?out of (?:range|bounds).*)",
    ),
    (
        "index out of range",
        "is out of bounds",
        "imension out of range",
        "offsets[0]",
        "INDICES element",
        " to be true",
        "valid range [",
        "out of range",
        "out of bounds",
    ),
    ("index_out_of_bounds",),
    "An ATen operator refused an index.",
    "IndexError: index out of range in self",
    guide=INDEX_GUIDE,
    advice="trace_index",
)
_add(
    "nan_check",
    r"At least one (?P<kind>NaN|INF) in (?P<buffer>\w+)",
    "At least one ",
    "nan_or_inf",
    "The compiled-in check found a non-finite value in this buffer, after the launch that uses it (or in an input, from 2.13).",
    "RuntimeError: At least one NaN in buf8",
    rank=Rank.CAUSE,
    guide=NAN_GUIDE,
    advice="find_nan",
    not_proven="That the kernel before the check made the value: kernels without a check (C++, extern) are passed over; INF in a mask is normal.",
)
_add(
    "matrix_shapes",
    (
        r"mat1 and mat2 shapes cannot be multiplied \((?P<left>\w+) and (?P<right>\w+)\)",
        r"The size of tensor a \((?P<left>\d+)\) must match the size of tensor b \((?P<right>\d+)\) at non-singleton dimension (?P<dim>\d+)",
        r"shape '(?P<shape>\[.*?\])' is invalid for input of size (?P<size>\d+)",
        r"[Ss]izes of tensors must match except in dimension (?P<dim>\d+)",
        r"Given groups=\d+, weight of size (?P<weight>\[.*?\]), expected input(?P<input>\[.*?\])",
        r"size mismatch, (?:got|tensors)(?P<detail>.*)",
    ),
    ("cannot be multiplied", "must match", "is invalid for input of size", "Given groups=", "size mismatch"),
    ("input_mismatch", "shape_out_of_range", "custom_op", "script_error"),
    "An operator's operands do not fit together; a package checks no input shapes by default.",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x17 and 16x32)",
)
_add(
    "operand_dtypes",
    (
        r"must have the same dtype, but got (?P<left>\w+) and (?P<right>\w+)",
        r"expected (?:m1 and m2|scalar type|mat1 and mat2) (?:to have the same dtype, but got: )?(?P<expected>\w+) (?:but found|!=) (?P<got>[\w:]+)",
        r"Expected tensor for argument #(?P<argument>\d+) '(?P<name>\w+)' to have (?:one of the following )?scalar types?:? (?P<expected>[^;]+); but got (?P<got>\S+) instead",
    ),
    ("the same dtype", "but found", "scalar type"),
    ("input_mismatch", "custom_op", "constants", "script_error"),
    "An operator's operands have different dtypes.",
    "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
)
_add(
    "kernel_division",
    r"(?P<detail>cpp_prefix\.h:\d+, ZeroDivisionError|RuntimeError: ZeroDivisionError)",
    ("ZeroDivisionError",),
    ("input_mismatch", "script_error"),
    "A kernel of the package divided a whole number by zero.",
    "Error: inductor_cpu_throw_if_integer_div_error, /torch/csrc/inductor/cpp_prefix.h:827, ZeroDivisionError",
    not_proven="Whether an input holds the zero, or the model computes it.",
)
_add(
    "int_division",
    r"(?P<detail>Integer floor division by zero|ZeroDivisionError|integer division or modulo by zero)",
    ("ivision by zero", "ZeroDivision", "modulo by zero"),
    ("shape_out_of_range", "input_mismatch", "script_error"),
    "A size or scalar of zero was divided by.",
    "RuntimeError: Integer floor division by zero",
)
_add(
    "scalar_input",
    r"Expected a proper Tensor but got None \(or an undefined Tensor in C\+\+\) for argument #(?P<argument>\d+) '(?P<name>\w+)'",
    "proper Tensor but got None",
    ("input_mismatch", "compile_failure"),
    "A missing tensor; a dynamic integer input is not supported by AOTInductor.",
    "RuntimeError: Expected a proper Tensor but got None (or an undefined Tensor in C++) for argument #1 'other'",
)
_add(
    "operator_refused",
    (),
    (),
    ("input_mismatch", "shape_out_of_range", "custom_op", "index_out_of_bounds"),
    "An operator inside the package refused its operands; a package checks no input shapes by default.",
    "RuntimeError: mat1 must be a matrix, got 1-D tensor",
    not_proven="Whether the caller's tensors, or what an earlier operator returned, do not fit.",
)
_add(
    "operator_raised",
    (),
    (),
    ("custom_op", "input_mismatch", "script_error"),
    "A Python operator that the package calls raised an exception.",
    "ValueError: table not loaded",
)
_add(
    "misaligned_input",
    r"Input (?P<input>\d+) was compiled as (?P<bytes>\d+)-bytes aligned, but it is not aligned at run time",
    "bytes aligned, but it is not",
    ("input_mismatch",),
    "A warning: the input is copied to an aligned tensor, which is right but slower.",
    "Input 0 was compiled as 16-bytes aligned, but it is not aligned at run time. Copying to an aligned tensor",
    rank=Rank.NOISE,
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)
