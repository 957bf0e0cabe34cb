"""The types of a compiled signature: inputs with their dimensions, symbols, outputs."""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.package.treespec import TreeNode


@dataclass(frozen=True)
class CompiledDim:
    """One dimension: a static `size` in elements, or an `expression` with the compiled range.

    `expression` is None when the wrapper does not say which symbol a dynamic dimension is (torch <= 2.12
    names a symbol only where it is first seen). `lower` and `upper` are inclusive, None when unchecked. They
    are what code generation knew, which may be tighter than the range that the user gave.
    """

    index: int
    size: int | None = None
    expression: str | None = None
    lower: int | None = None
    upper: int | None = None

    def __str__(self) -> str:
        return str(self.size) if self.size is not None else self.expression or "?"


@dataclass(frozen=True)
class CompiledInput:
    """One flat input tensor. `name` is the wrapper's, `path` the caller's (None when it cannot be told).

    `strides` in elements; an expression as text, or None, where the stride is symbolic.
    """

    index: int
    name: str
    path: str | None = None
    dtype: str | None = None
    dims: tuple[CompiledDim, ...] = ()
    strides: tuple[int | str | None, ...] = ()
    device_type: str | None = None

    @property
    def label(self) -> str:
        """The name for a person: the caller's where known."""
        return f"input {self.index} ({self.path or self.name})"

    @property
    def described(self) -> bool:
        """Whether its check was found, so that `dims` says the rank."""
        return self.dtype is not None

    @property
    def shape(self) -> str:
        return f"[{', '.join(str(dim) for dim in self.dims)}]"


@dataclass(frozen=True)
class SymbolDefinition:
    """`symbol` is read from the size (or stride) of input `name` at `dim`.

    `solution` is the C++ expression over `<name>_size_<dim>` where the dimension is no bare symbol.
    """

    symbol: str
    name: str
    what: str
    dim: int
    solution: str | None = None


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and symbols of a model.

    `problems` says what could not be read, with a line; `notes` what no reading can tell. It is `known`
    how many inputs there are only where the wrapper is there and lists as many as it declares; else `inputs`
    may lack some, or all.
    """

    inputs: tuple[CompiledInput, ...] = ()
    output_count: int | None = None
    output_paths: tuple[str, ...] = ()
    in_spec: TreeNode | None = None
    out_spec: TreeNode | None = None
    symbols: tuple[SymbolDefinition, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    known: bool = True

    def definition(self, name: str, dim: int) -> SymbolDefinition | None:
        """The symbol that is read from the size of input `name` at `dim`."""
        return next(
            (s for s in self.symbols if (s.name, s.what, s.dim) == (name, "size", dim)),
            None,
        )
