"""Inputs that a call copies when their address is no multiple of what the code was compiled for.

A model for a GPU does so at the top of `run_impl` (`codegen_inputs` in torch/_inductor/codegen,
cpp_wrapper_gpu.py, 2.8-2.15), and works on the copy from then on: what it writes in place the caller does not
get.
"""

from __future__ import annotations

import re

_COPY = re.compile(
    r"if \(\(reinterpret_cast<std::uintptr_t>\((?P<name>\w+)\.data_ptr\(\)\)"
    r" & \((?P<bytes>\d{1,4}) ?- ?1\)\) != 0\) \{"
    r"[^{}]*aoti_torch_clone_preserve_strides\((?P=name), &(?P<copy>\w+)\);"
    r"\s*(?P=name) = std::move\(RAIIAtenTensorHandle\((?P=copy)\)\);"
)


def copied_when_misaligned(wrapper: str) -> dict[str, int]:
    """Bytes by the name of each such input."""
    return {found["name"]: int(found["bytes"]) for found in _COPY.finditer(wrapper)}
