"""The constants (weights, buffers, folded tensors) that a wrapper declares."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

_FIELD = re.compile(r"constants_info_\[(\d{1,6})\]\.(\w+) = (.*?);\s*$", re.M)
_ATEN = {
    "at::kFloat": "float32",
    "at::kDouble": "float64",
    "at::kHalf": "float16",
    "at::kBFloat16": "bfloat16",
    "at::kLong": "int64",
    "at::kInt": "int32",
    "at::kShort": "int16",
    "at::kChar": "int8",
    "at::kByte": "uint8",
    "at::kBool": "bool",
}


@dataclass(frozen=True)
class CompiledConstant:
    """One constant. `fqn` is its name in the user's model, `bytes` its storage (CPU: rounded up to 64).

    `kind` is Parameter, Buffer, TensorConstant, FoldedConstant or Unknown.
    """

    index: int
    name: str
    fqn: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    bytes: int
    device_type: str
    kind: str
    folded: bool


def read_constants(wrapper: str) -> tuple[CompiledConstant, ...]:
    """The `constants_info_[i]` of a wrapper's text (torch 2.8-2.15, cpp_wrapper_cpu.py)."""
    start = wrapper.find("constants_info_[")
    end = wrapper.find("const_run_impl(", max(start, 0))
    fields: dict[int, dict[str, str]] = defaultdict(dict)
    for match in _FIELD.finditer(wrapper[start : end if end > 0 else None] if start >= 0 else ""):
        fields[int(match[1])][match[2]] = match[3]
    return tuple(_constant(index, fields[index]) for index in sorted(fields))


def _constant(index: int, fields: dict[str, str]) -> CompiledConstant:
    name = fields.get("name", "").strip('"')
    return CompiledConstant(
        index=index,
        name=name,
        fqn=fields.get("original_fqn", name).strip('"'),
        dtype=_dtype(fields.get("dtype", "")),
        shape=_integers(fields.get("shape", "")),
        stride=_integers(fields.get("stride", "")),
        bytes=next(iter(_integers(fields.get("data_size", ""))), 0),
        device_type=fields.get("device_type", "").rpartition("_")[2],
        kind=fields.get("type", "").rstrip(")").rpartition("::")[2] or "Unknown",
        folded=fields.get("from_folded") == "true",
    )


def _dtype(text: str) -> str:
    return _ATEN.get(text) or text.replace("cached_torch_dtype_", "")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d{1,19}", text))
