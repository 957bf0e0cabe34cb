"""The texts that say only which call into a package, or of its generated code, failed.

Texts: model_container_runner.cpp and the checks of generated wrappers (aoti_runtime/utils.h) of torch 2.8-2.15.
"""

from __future__ import annotations

from .kinds import SHAPES_GUIDE, Defaults, Family, Rank

_table = Defaults(stage="load", advice="check_package")
_add = _table.add

_add(
    "generic_api_call",
    r"(?P<call>run_func_|create_func_|delete_func_|update_constant_buffer_func_|update_inactive_constant_buffer_func_|run_const_fold_func_|swap_constant_buffer_func_|(?<!\w)\w+_func_)\(.*API call failed at (?P<file>\S+), line (?P<line>\d+)",
    "API call failed at",
    ("input_mismatch", "index_out_of_bounds", "device_mismatch", "illegal_memory_access", "out_of_memory"),
    "Only says that the package's call failed; the cause is another line, mostly on standard error (`Error: …`).",
    "RuntimeError: run_func_( container_handle_, input_handles.data() ) API call failed at /pytorch/torch/csrc/inductor/aoti_runner/model_container_runner.cpp, line 144",
    stage="call",
    rank=Rank.GENERIC,
    advice="read_cause",
    torch="<=2.12 for run errors; all for load and constant errors",
)
_add(
    "shim_call",
    r"(?:Error: )?(?P<call>(?:aoti_torch|at::|torch::)\w[\w:]*)\((?P<arguments>.*)\) API call failed at (?P<file>\S+?), line (?P<line>\d+)",
    "API call failed at",
    ("input_mismatch", "index_out_of_bounds", "illegal_memory_access", "custom_op"),
    "The operator call of the generated code that reported the error; file and line are in the generated wrapper.",
    "Error: aoti_torch_cuda_mm_out(buf11, buf10, w) API call failed at /c/ab.wrapper.cpp, line 1508",
    stage="call",
    rank=Rank.GENERIC,
    advice="read_cause",
)

FAMILIES: tuple[Family, ...] = tuple(_table.rows)

_last = Defaults(stage="call", guide=SHAPES_GUIDE, advice="check_inputs")
_last.add(
    "shim_exception",
    r"Exception in aoti_torch: (?P<detail>.+)",
    "Exception in aoti_torch: ",
    ("input_mismatch", "shape_out_of_range", "custom_op", "index_out_of_bounds"),
    "An operator that the generated code called raised: this line is all that tells, where its error is not checked.",
    "[E1121 06:44:01.0 shim_common.cpp:271] Exception in aoti_torch: mat1 must be a matrix, got 1-D tensor",
    torch="<=2.12",
    not_proven="Whether the call ended there: up to 2.12 the package goes on after an error of a custom operator.",
)

# Behind every other row: what the operator said may have a family of its own.
LAST: tuple[Family, ...] = tuple(_last.rows)
