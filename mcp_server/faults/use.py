"""What one generated line does with memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_server.faults.linear import Sum, Term
from mcp_server.package.kernels import Kernel


@dataclass(frozen=True)
class LineAccess:
    """One access on a line: `code` is the call, `address` what its pointer expression adds up to.

    `parameters` are the pointer parameters that the address starts at; `masked` tells whether the access has
    a mask at all.
    """

    direction: str
    code: str
    line: int
    parameters: tuple[str, ...]
    address: Sum
    masked: bool = False

    @property
    def loads(self) -> tuple[Term, ...]:
        """Loaded values in the address: indices."""
        return self.address.of("load")

    @property
    def scalars(self) -> tuple[Term, ...]:
        return self.address.of("scalar")


@dataclass(frozen=True)
class KernelUse:
    """A kernel at one launch; `values` are its scalars as far as they are known, and its own constants."""

    kernel: Kernel
    tensors: frozenset[str]
    scalars: frozenset[str]
    values: Mapping[str, int]
