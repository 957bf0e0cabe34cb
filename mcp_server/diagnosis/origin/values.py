"""Reads single elements of the tensors that launch probes saved.

A file has the elements of one argument in row-major order (a `place`). A kernel counts elements from the
pointer of the argument, by strides (an `offset`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Literal

from mcp_server.errors import read_json
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.mismatch import contiguous_strides
from mcp_server.package.terms.sizes import index_at
from mcp_server.package.terms.term import Scalar
from mcp_server.tools.kernel_io import ArgumentValues, LaunchValues

Phase = Literal["before", "after"]
_CODES = {
    "F64": "d",
    "F32": "f",
    "F16": "e",
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
    "BF16": "H",
}
_LARGEST_HEADER = 1 << 20


@dataclass(frozen=True)
class Tensor:
    """A tensor with saved elements. `at` takes a place in row-major order."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    at: Callable[[int], Scalar | None]
    dtype: str = ""

    @property
    def count(self) -> int:
        return prod(self.shape)

    def offset(self, index: tuple[int, ...]) -> int:
        return sum(i * stride for i, stride in zip(index, self.stride, strict=True))

    def index(self, offset: int) -> tuple[int, ...] | None:
        """The index at an offset from the pointer. None if no element is there."""
        return index_at(offset, self.shape, self.stride)

    def value(self, index: tuple[int, ...]) -> Scalar | None:
        """The element at an index. None if outside or unknown."""
        place = 0
        for i, size in zip(index, self.shape, strict=True):
            if not 0 <= i < size:
                return None
            place = place * size + i
        return self.at(place)

    def value_at(self, offset: int) -> Scalar | None:
        index = self.index(offset)
        return None if index is None else self.value(index)

    def indices(self) -> Iterator[tuple[int, ...]]:
        for place in range(self.count):
            yield self.unraveled(place)

    def reshaped(self, shape: tuple[int, ...]) -> Tensor | None:
        """The same elements in another shape; None if order or number would differ."""
        if shape == self.shape:
            return self
        alike = self.stride == contiguous_strides(self.shape) and prod(shape) == self.count
        return replace(self, shape=shape, stride=contiguous_strides(shape)) if alike else None

    def unraveled(self, place: int) -> tuple[int, ...]:
        """The index for a place in row-major order."""
        found = []
        for size in reversed(self.shape):
            place, i = divmod(place, size)
            found.append(i)
        return tuple(reversed(found))


@dataclass
class ProbedValues:
    """What `dump_kernel_io` saved of a failing call. The last run of a repeated launch counts."""

    launches: Iterable[LaunchValues]
    _read: dict[Path, _File] = field(default_factory=dict)

    @cached_property
    def _seen(self) -> dict[tuple[int, str, str], ArgumentValues]:
        found: dict[tuple[int, str, str], ArgumentValues] = {}
        for launch in self.launches:
            for each in launch.arguments:
                if launch.launch is not None:
                    found[launch.launch, each.parameter, each.when] = each
                    found[launch.launch, each.name, each.when] = each
        return found

    def tensor(self, launch: int, argument: Argument, when: Phase) -> Tensor | None:
        """The tensor of an argument just before or after the launch. None if no probe saved it."""
        names = filter(None, (argument.name, argument.target))  # arguments of operators have no name
        seen = next(filter(None, (self._seen.get((launch, name, when)) for name in names)), None)
        if seen is None or seen.uninitialised or seen.saved is None or seen.shape is None:
            return None
        path = Path(seen.saved.path)
        if path not in self._read:
            self._read[path] = _File(path)
        shape, stride = tuple(seen.shape), tuple(seen.stride or ())
        return Tensor(shape, stride, self._read[path].element, seen.dtype.removeprefix("torch."))

    def scalars(self, launch: Launch) -> Mapping[str, int]:
        """A launch's scalar arguments by parameter: the values seen, or the wrapper's numbers."""
        found: dict[str, int] = {}
        for argument in launch.arguments:
            known = self._seen.get((launch.index, argument.name, "before"))
            literal = argument.expression.rstrip("L")
            for text in (known.value if known is not None else "", literal if len(literal) < 20 else ""):
                if not argument.is_tensor and text.lstrip("-").isdigit():
                    found.setdefault(argument.name, int(text))
        return found


class _File:
    """A safetensors file with one tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _content(self) -> tuple[str, bytes]:
        """The type of the elements and their bytes; both empty if the file cannot be read."""
        try:
            with self.path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = read_json(stream.read(min(length, _LARGEST_HEADER)).decode())
                (entry,) = (v for k, v in header.items() if k != "__metadata__")
                begin, end = entry["data_offsets"]
                stream.seek(8 + length + begin)
                return entry["dtype"], stream.read(end - begin)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, struct.error):
            return "", b""

    def element(self, place: int) -> Scalar | None:
        """The element at a place in row-major order. None if not in the file."""
        dtype, data = self._content
        code = "<" + _CODES.get(dtype, "B")
        size = struct.calcsize(code)
        if dtype not in _CODES or (place + 1) * size > len(data):
            return None
        value: Scalar = struct.unpack_from(code, data, place * size)[0]
        if dtype == "BF16":
            value = struct.unpack("<f", struct.pack("<I", int(value) << 16))[0]
        return value
