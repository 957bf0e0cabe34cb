"""Writes a tensor as a safetensors file, piece by piece, without the package of that name.

Format: 8 bytes little-endian length of a JSON header, the header (padded with spaces to 8 bytes), the values
in row-major order. The header maps the tensor's name to dtype, shape and byte range, `__metadata__` to text.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any

import torch

CHUNK = 1 << 24  # elements in host memory at a time
LONGEST = {"kernel": 120, "name": 60}  # characters in a file's name, which may have 255 bytes

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def stem(launch: int, kernel: str, name: str, phase: str) -> str:
    """`<launch>-<kernel>-<arg>-<before|after>`, with nothing in it that a file's name cannot hold."""
    return "{}-{}-{}-{}".format(
        launch, _safe(kernel)[: LONGEST["kernel"]], _safe(name)[: LONGEST["name"]], phase
    )


def _safe(text: str) -> str:
    return "".join(char if char.isalnum() or char in "_." else "_" for char in text)


def write(directory: str, stem: str, name: str, tensor: torch.Tensor, facts: "dict[str, Any]") -> str:
    """Write `tensor` under `name` to a new file and return its path; `facts` become the metadata.

    A file that is there is left alone: the same launch again, in a loop or a later call, gets `.2`, `.3`.
    Complex values are written as pairs. Raises `KeyError` for a dtype that the format does not have.
    """
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    dtype = _NAMES[str(flat.dtype).replace("torch.", "")]
    size = flat.numel() * flat.element_size()
    entry = {"dtype": dtype, "shape": list(flat.shape), "data_offsets": [0, size]}
    told = {key: str(value) for key, value in facts.items()}
    header = json.dumps({"__metadata__": told, name: entry}).encode()
    header += b" " * (-len(header) % 8)
    path, file = _new(directory, stem)
    with os.fdopen(file, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for part in flat.detach().reshape(-1).split(CHUNK) if size else ():
            host = part.resolve_neg().cpu().contiguous()
            out.write(ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()))
    return path


def _new(directory: str, stem: str) -> "tuple[str, int]":
    """The first of the names that is free, opened."""
    turn = 1
    while True:
        suffix = "" if turn == 1 else ".{}".format(turn)
        path = os.path.join(directory, stem + suffix + ".safetensors")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            turn += 1
