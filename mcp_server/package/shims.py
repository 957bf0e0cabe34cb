"""What is known of the C functions that a wrapper calls: which are launches, their parameters, what they
write.

Source: torch/csrc/inductor/aoti_torch/c/shim.h and generated/c_shim_{cpu,cuda}.h of torch 2.13.
"""

from __future__ import annotations

import re
from typing import Literal

Role = Literal["read", "written", "read_write", "unknown"]

PREFIX = "aoti_torch_"
PROXY = "aoti_torch_proxy_executor_call_function"

# Calls that compute nothing: properties, guards, handles, debug printing. Not launches.
QUIET = frozenset(
    PREFIX + name
    for name in [
        "check_inf_and_nan",
        "create_cuda_guard",
        "create_cuda_stream_guard",
        "create_device_guard",
        "delete_tensor_object",
        "get_current_cuda_stream",
        "get_current_device_index",
        "get_data_ptr",
        "get_device_index",
        "get_device_type",
        "get_dim",
        "get_dtype",
        "get_layout",
        "get_numel",
        "get_size",
        "get_sizes",
        "get_storage_numel",
        "get_storage_offset",
        "get_storage_size",
        "get_stride",
        "get_strides",
        "grad_mode_set_enabled",
        "int64_to_ivalue",
        "is_contiguous",
        "is_defined",
        "new_uninitialized_tensor",
        "print_tensor_handle",
        "save_tensor_handle",
        "str_to_ivalue",
        "strlist_to_ivalue",
        "tensor_to_ivalue",
        "warn",
        "check",
        "delete_c10_value_object",
    ]
)

# Calls that move or set bytes without being a kernel of the graph: (written, read) argument positions.
TRANSFERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    PREFIX + "copy_": ((0,), (1,)),
    PREFIX + "tensor_copy_": ((1,), (0,)),
    PREFIX + "zero_": ((0,), ()),
    PREFIX + "clone": ((1,), (0,)),
}

# Parameter names where the position alone says little; the rest is numbered.
_PARAMETERS = {
    "addmm_out": "out self mat1 mat2 beta alpha",
    "baddbmm_out": "out self batch1 batch2 beta alpha",
    "mm_out": "out self mat2",
    "bmm_out": "out self mat2",
    "_int_mm_out": "out self mat2",
    "mm_dtype_out": "out self mat2 out_dtype",
    "_scaled_mm_out": "out self mat2 scale_a scale_b bias scale_result out_dtype use_fast_accum",
    "scatter_src_out": "out self dim index src",
    "scatter_value_out": "out self dim index value",
    "scatter_reduce_two_out": "out self dim index src reduce include_self",
    "index_put_out": "out self indices num_indices values accumulate",
    "convolution": (
        "input weight bias stride stride_len padding padding_len dilation dilation_len transposed "
        "output_padding output_padding_len groups ret0"
    ),
    "_embedding_bag": (
        "weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset "
        "padding_idx ret0 ret1 ret2 ret3"
    ),
    "topk": "self k dim largest sorted ret0 ret1",
    "sort_stable": "self stable dim descending ret0 ret1",
    "nonzero": "self ret0",
    "cumsum": "self dim dtype ret0",
    "index_Tensor": "self indices indices_len ret0",
    "repeat_interleave_Tensor": "repeats output_size ret0",
    "masked_scatter": "self mask source ret0",
    "_scaled_dot_product_flash_attention_for_cpu": (
        "query key value dropout_p is_causal attn_mask scale ret0 ret1"
    ),
    "_scaled_dot_product_flash_attention": (
        "query key value dropout_p is_causal return_debug_mask scale "
        "ret0 ret1 ret2 ret3 ret4 ret5 ret6 ret7 ret8"
    ),
    "_scaled_dot_product_efficient_attention": (
        "query key value attn_bias compute_log_sumexp dropout_p is_causal scale ret0 ret1 ret2 ret3"
    ),
}
_DEVICE = re.compile(r"aoti_torch_(?:(?:cpu|cuda|xpu|mps|aten)_)?(.*)")
_OVERLOAD = re.compile(r".*__(?:Scalar|Tensor|float|source_Tensor|source_Storage)$")


def operator_name(shim: str) -> str:
    """`addmm_out` of `aoti_torch_cuda_addmm_out`."""
    match = _DEVICE.fullmatch(shim)
    return match[1] if match else shim


def parameter_names(shim: str) -> tuple[str, ...]:
    """Names of the parameters of a shim call, empty where the table has none."""
    return tuple(_PARAMETERS.get(operator_name(shim), "").split())


def tensor_role(shim: str, position: int) -> Role:
    """What a shim does to the tensor handed in at `position`.

    `*_out` shims write their first tensor; scatter and index_put are called with `out` equal to `self`, so
    the old content counts. A trailing underscore (or an in-place overload such as `fill__Scalar`) mutates
    the first.
    """
    name = operator_name(shim)
    if position:
        return "read"
    if name.endswith("_out"):
        return "read_write" if name.startswith(("scatter", "index_put")) else "written"
    return "read_write" if name.endswith("_") or _OVERLOAD.fullmatch(name) else "read"
