"""Constants that a wrapper declares, and where a package stores their values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mcp_server.errors import read_json
from mcp_server.package.defects import Library
from mcp_server.package.members import Member, ModelFiles

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
    """One constant. `fqn` is its name in the model, `bytes` its storage size (CPU: rounded up to 64).

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
    """Parse `constants_info_[i]` in a wrapper's text (torch 2.8-2.15, cpp_wrapper_cpu.py)."""
    start = wrapper.find("constants_info_[")
    end = wrapper.find("const_run_impl(", max(start, 0))
    fields: dict[int, dict[str, str]] = defaultdict(dict)
    for match in _FIELD.finditer(wrapper[start : end if end > 0 else None] if start >= 0 else ""):
        fields[int(match[1])][match[2]] = match[3]
    return tuple(_constant(index, fields[index]) for index in sorted(fields))


def _constant(index: int, fields: dict[str, str]) -> CompiledConstant:
    name = fields.get("name", "").strip('"')
    dtype = fields.get("dtype", "")
    return CompiledConstant(
        index=index,
        name=name,
        fqn=fields.get("original_fqn", name).strip('"'),
        dtype=_ATEN.get(dtype) or dtype.replace("cached_torch_dtype_", ""),
        shape=_integers(fields.get("shape", "")),
        stride=_integers(fields.get("stride", "")),
        bytes=next(iter(_integers(fields.get("data_size", ""))), 0),
        device_type=fields.get("device_type", "").rpartition("_")[2],
        kind=fields.get("type", "").rstrip(")").rpartition("::")[2] or "Unknown",
        folded=fields.get("from_folded") == "true",
    )


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"-?\d{1,19}", text))


Place = Literal["no_weights", "in_library", "appended", "blob", "weight_files", "absent", "unknown"]

_INCLUDED = re.compile(r":\s*AOTInductorModelBase\([^{]*?,\s*(true|false)\)\s*\{", re.S)


@dataclass(frozen=True)
class Weights:
    """Where the weights are stored, and their size in bytes.

    in_library: section `.lrodata` of the .so. appended: after its ELF image, mapped at load
    (`force_mmap_weights`). blob: `*_weights.blob`. weight_files: `data/weights/` (`pickle_weights`).
    absent: the caller must load them before the first run.
    """

    place: Place
    bytes: int = 0
    files: tuple[str, ...] = ()


def included_in_library(wrapper: str) -> bool | None:
    """The last argument of the model's base constructor; None if the wrapper has none."""
    match = _INCLUDED.search(wrapper, max(wrapper.find("AOTInductorModelBase(") - 200, 0))
    return match[1] == "true" if match else None


def weight_files(config: str) -> tuple[str, ...]:
    """File names in a `weights_config.json`: `{fqn: [file, shape, stride, offset]}`. Raises `ValueError`."""
    raw = read_json(config)
    if not isinstance(raw, dict) or not all(isinstance(v, list) and v for v in raw.values()):
        raise ValueError("weights_config.json is not an object of lists")
    return tuple(dict.fromkeys(str(value[0]) for value in raw.values()))


def locate_weights(
    constants: Sequence[CompiledConstant] | None,
    files: ModelFiles,
    library: Library | None,
    included: bool | None,
    listed: tuple[Member, ...] | None,
) -> Weights:
    """Find the weights from the members of a package. `listed` are the members that a weights config names.

    `constants` is None if the wrapper could not be read.
    """
    if constants is not None and all(constant.folded for constant in constants):
        return Weights("no_weights")
    if listed is not None:
        return Weights("weight_files", sum(m.size for m in listed), tuple(m.name for m in listed))
    if files.weights_blob is not None:
        return Weights("blob", files.weights_blob.size, (files.weights_blob.name,))
    if library is None:
        return Weights("unknown")
    if library.mapped_weights_bytes is not None:
        return Weights("appended", library.mapped_weights_bytes)
    if included is not False and library.constants_bytes:
        return Weights("in_library", library.constants_bytes)
    return Weights("absent" if constants is not None else "unknown")
