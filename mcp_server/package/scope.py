"""What a reader of a function body knows so far: tensors, symbols, arrays, and what it did not understand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp_server.package.buffers import BufferTable
from mcp_server.package.expressions import Reference, View, braced, read_reference
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import TENSORS, Argument, ArgumentKind, Launch, Notes, Transfer
from mcp_server.package.shims import Role
from mcp_server.package.statements import Block
from mcp_server.package.symbols import Symbol, names_in

_BUFFER_KINDS: dict[str, ArgumentKind] = {"input": "input", "constant": "constant"}
_CONTEXT = frozenset({"stream", "kernels", "proxy_executor", "this->device_idx_", "this->cubin_dir_"})


# Only a tensor is made by these: a name in them that is not known is not understood.
_TENSOR_MADE = re.compile(r"reinterpret_tensor_wrapper\(|RAIIAtenTensorHandle\(|\.data_ptr\(|_handle\b")


@dataclass(frozen=True, slots=True)
class Problem:
    """A place that was not understood: what, and the 1-based line."""

    what: str
    line: int
    text: str = ""


@dataclass
class Scope:
    """Names in sight, and the results of reading. One per function."""

    text: str
    kernels: Mapping[str, Kernel]
    function: str
    buffers: BufferTable = field(default_factory=BufferTable)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)
    pointers: dict[str, str] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    outputs: dict[int, str] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)
    exits: dict[Block, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    def array(self, expression: str) -> tuple[str, ...]:
        """The elements of an `int_array_N` variable or of a braced list."""
        known = self.arrays.get(expression)
        return braced(expression) if known is None else known

    def kind_of(self, name: str) -> ArgumentKind:
        """What a variable is."""
        buffer = self.buffers.get(name)
        if buffer:
            return _BUFFER_KINDS.get(buffer.kind, "buffer")
        if name in self.symbols:
            return "symbol"
        if name in self.arrays:
            return "sizes"
        if name in self.scalars:
            return "scalar"
        return "unknown"

    def argument(
        self, position: int, place: tuple[int, int], name: str, role: Role, type_: str = ""
    ) -> list[Argument]:
        """The argument at `place`; an inline array becomes one argument for each element."""
        start, end = place
        if self.text[start:end] in _CONTEXT:
            return [Argument(position, name, self.text[start:end], start, end, "context", None, "read")]
        reference = read_reference(self.text, start, end)
        if reference.array is not None and "AtenTensorHandle" in reference.type:
            return [
                self._one(
                    position,
                    inner,
                    read_reference(self.text, *inner),
                    f"{name or position}[{i}]",
                    role,
                    reference.type,
                    i,
                )
                for i, inner in enumerate(reference.array)
            ]
        return [self._one(position, place, reference, name, role, type_, None)]

    def _one(
        self,
        position: int,
        place: tuple[int, int],
        reference: Reference,
        name: str,
        role: Role,
        type_: str,
        element: int | None,
    ) -> Argument:
        start, end = place
        expression = self.text[start:end]
        target = self._target(reference)
        kind = self._kind(expression, reference, target)
        view = self._view(reference)
        return Argument(
            position,
            name,
            expression,
            start,
            end,
            kind,
            target if kind not in ("scalar", "context", "null") or target in self.scalars else None,
            role if kind in TENSORS or kind == "unknown" else "read",
            type_ or reference.type,
            view,
            element,
        )

    def _target(self, reference: Reference) -> str | None:
        name = reference.name
        if name is None:
            return None
        if name in self.pointers:
            return self.pointers[name]
        if reference.address and name.endswith("_handle") and name not in self.buffers:
            return name.removesuffix("_handle")
        return name

    def _kind(self, expression: str, reference: Reference, target: str | None) -> ArgumentKind:
        if expression == "nullptr":
            return "null"
        if expression in _CONTEXT or expression.startswith(("this->", "cached_torch_")):
            return "context"
        if reference.array is not None:
            return "sizes"
        if target is not None:
            return self._named(reference, target)
        known = any(name in self.buffers for name in names_in(expression))
        return "unknown" if known or _TENSOR_MADE.search(expression) else "scalar"

    def _named(self, reference: Reference, target: str) -> ArgumentKind:
        if reference.address and target not in self.buffers and reference.name != target:
            return "buffer"
        if target in ("true", "false"):
            return "scalar"
        kind = self.kind_of(target)
        return "scalar" if reference.address and kind == "symbol" else kind

    def _view(self, reference: Reference) -> View | None:
        if reference.view is None:
            return None
        sizes, strides, offset = reference.view
        return View(self.array(sizes), self.array(strides), offset)

    def problem(self, what: str, line: int, text: str = "") -> None:
        self.problems.append(Problem(what, line, text[:200]))
