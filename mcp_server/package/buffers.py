"""Tensors of a wrapper: who allocates them, what they are views of, which of them share memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mcp_server.package.digits import whole_number

BufferKind = Literal[
    "input", "constant", "allocated", "pool", "returned", "view", "alias", "moved", "assigned", "declared"
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor variable of the wrapper.

    Buffers of equal `storage` share memory. `sizes` and `strides` (in elements) and `offset` are C++
    expressions; None means that the wrapper does not say. `base` is the buffer it was made from, `position`
    the index of an input or a constant. `line` is 1-based in wrapper.cpp.
    """

    name: str
    kind: BufferKind
    storage: int
    line: int
    base: str | None = None
    sizes: tuple[str, ...] | None = None
    strides: tuple[str, ...] | None = None
    offset: str | None = None
    dtype: str | None = None
    device: str | None = None
    position: int | None = None
    reused: bool = False


def shifted(base: str | None, offset: str) -> str:
    """The offset in its storage of a view at `offset` of a tensor at `base`.

    `reinterpret_tensor_wrapper` adds its offset to that of the tensor it is given (torch 2.8-2.15).
    """
    if base in (None, "0", "0L"):
        return offset
    first, second = whole_number(str(base).rstrip("L")), whole_number(offset.rstrip("L"))
    if first is not None and second is not None:
        return f"{first + second}L"
    return f"{base} + {offset}"


class BufferTable:
    """The buffers known so far, by name; later definitions of a name replace earlier ones."""

    def __init__(self) -> None:
        self.by_name: dict[str, Buffer] = {}
        self._storages = 0

    def __contains__(self, name: str | None) -> bool:
        return name in self.by_name

    def get(self, name: str | None) -> Buffer | None:
        return self.by_name.get(name) if name else None

    def add(self, name: str, kind: BufferKind, line: int, *, position: int | None = None) -> Buffer:
        """A buffer with memory of its own."""
        self._storages += 1
        return self._keep(Buffer(name, kind, self._storages, line, position=position))

    def allocate(
        self,
        name: str,
        line: int,
        sizes: tuple[str, ...] | None,
        strides: tuple[str, ...] | None,
        dtype: str,
        device: str,
    ) -> Buffer:
        """A fresh, uninitialised buffer."""
        self._storages += 1
        return self._keep(
            Buffer(
                name,
                "allocated",
                self._storages,
                line,
                sizes=sizes,
                strides=strides,
                offset="0",
                dtype=dtype,
                device=device,
            )
        )

    def derive(self, name: str, base: str, kind: BufferKind, line: int) -> Buffer | None:
        """A second name for the memory of `base`, of the same shape; None when `base` is not known."""
        old = self.by_name.get(base)
        if old is None:
            return None
        return self._keep(replace(old, name=name, kind=kind, line=line, base=base, reused=kind == "moved"))

    def view(
        self,
        name: str,
        base: str,
        line: int,
        sizes: tuple[str, ...] | None,
        strides: tuple[str, ...] | None,
        offset: str,
        *,
        reused: bool = False,
    ) -> Buffer | None:
        """Another shape over the memory of `base`."""
        old = self.by_name.get(base)
        if old is None:
            return None
        return self._keep(
            replace(
                old,
                name=name,
                kind="view",
                line=line,
                base=base,
                sizes=sizes,
                strides=strides,
                offset=shifted(old.offset, offset),
                reused=reused,
            )
        )

    def rename(self, old: str, new: str) -> None:
        """A handle becomes an owning variable: same buffer, new name."""
        self.by_name[new] = replace(self.by_name.pop(old), name=new)

    def shape(self, name: str, sizes: tuple[str, ...], strides: tuple[str, ...]) -> None:
        """Fill in what the wrapper asserts of a buffer whose allocation it does not show."""
        old = self.by_name[name]
        if old.sizes is None:
            self.by_name[name] = replace(old, sizes=sizes, strides=strides)

    def _keep(self, buffer: Buffer) -> Buffer:
        self.by_name[buffer.name] = buffer
        return buffer
