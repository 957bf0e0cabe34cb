"""The weights of a package as a safetensors file: found in the library, the blob or the files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mcp_server.package.archive import CompiledConstant, Package
from mcp_server.package.terms.sizes import reached
from mcp_server.package.terms.term import itemsize_of

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""What safetensors calls a type."""
_ALIGNED = 64  # bytes to which the header is rounded up
_PIECE = 1 << 22


def write_weights(package: Package, path: Path) -> dict[str, str]:
    """Write all constants that the package holds; why a constant is missing, by its name in the wrapper."""
    missing: dict[str, str] = {}
    found: list[tuple[CompiledConstant, Callable[[BinaryIO], None]]] = []
    for constant, copy in _sources(package):
        if copy is None:
            missing[constant.name] = "the package does not hold it"
        elif constant.dtype not in CODES:
            missing[constant.name] = f"its type {constant.dtype} has no code in safetensors"
        else:
            found.append((constant, copy))
    found.sort(key=lambda each: -itemsize_of(each[0].dtype))  # so that each is aligned for its type
    header, at = {}, 0
    for constant, _ in found:
        size = reached(constant.shape, constant.stride)[1] * itemsize_of(constant.dtype)
        shape = [reached(constant.shape, constant.stride)[1]]
        header[constant.fqn] = {
            "dtype": CODES[constant.dtype],
            "shape": shape,
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    with path.open("xb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, copy in found:
            copy(out)
    return missing


def _sources(package: Package) -> Iterator[tuple[CompiledConstant, Callable[[BinaryIO], None] | None]]:
    """Each constant that is not folded, with what copies its bytes."""
    constants = [each for each in package.constants if not each.folded]
    place, library, files = package.weights.place, package.library, package.files
    member, at = files.library, 0
    if place == "blob":
        member = files.weights_blob
    elif place == "appended" and library is not None and member is not None:
        at = member.size - (library.mapped_weights_bytes or 0)
    elif place == "in_library" and library is not None:
        at = library.constants_offset or 0
    elif place != "no_weights":
        member = None
    for constant in constants:
        size = reached(constant.shape, constant.stride)[1] * itemsize_of(constant.dtype)
        yield constant, _copied(package, member.name, at, size) if member is not None else None
        at += constant.bytes  # as the loader steps: rounded up to 64, but not where all are on CUDA


def _copied(package: Package, member: str, at: int, size: int) -> Callable[[BinaryIO], None]:
    def copy(out: BinaryIO) -> None:
        with package.container.open(member) as stream:
            stream.seek(at)
            left = size
            while left:
                piece = stream.read(min(left, _PIECE))
                if not piece:
                    raise EOFError(f"{member} ends in the middle of the weights")
                out.write(piece)
                left -= len(piece)

    return copy
