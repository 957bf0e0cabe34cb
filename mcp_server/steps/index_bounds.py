"""Index tensors of a package and the bounds that its own asserts hold them against."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.package.archive import Package
from mcp_server.package.assertion import Assertion, Candidate, Tracer, generated_line
from mcp_server.package.bounds import plain
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.wrapper import Wrapper

# Beyond copies, conversions and the wrap of negative indices, a value is computed and no longer the tensor's.
_ARITHMETIC = re.compile(r"[*/%&|^]|<<|>>|(?<!\w)-(?!\d)|\b(?:triton_helpers|libdevice)\b")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as `launch` reads it, must lie in [low, high)."""

    name: str
    launch: int
    low: int
    high: int

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}"


def find_bounds(package: Package, wrapper: Wrapper) -> tuple[IndexBound, ...]:
    """Bounds that are numbers, on tensors whose elements are used as indices without arithmetic."""
    tracer = Tracer(wrapper, package.inputs, package.constants)
    found = (_bound(candidate) for candidate in _candidates(tracer, wrapper))
    return tuple(dict.fromkeys(bound for bound in found if bound is not None))


def _candidates(tracer: Tracer, wrapper: Wrapper) -> Iterator[Candidate]:
    for kernel in wrapper.kernels.values():
        for check in find_asserts(kernel.source):
            yield from tracer.trace(
                Assertion(
                    plain(check.text),
                    check.variable,
                    check.lower,
                    check.upper,
                    line=generated_line(kernel, check),
                    kernel=kernel.name,
                )
            )


def _bound(candidate: Candidate) -> IndexBound | None:
    bound = candidate.bound
    if bound is None or bound.value is None or len(candidate.sources) != 1 or candidate.trace.scalars:
        return None
    loads = {load.line for load in candidate.trace.loads}
    computed = [d.value for d in candidate.trace.definitions if d.line not in loads]
    plus = sum("+" in value for value in computed)
    if any(_ARITHMETIC.search(value) for value in computed) or plus > candidate.trace.wraps:
        return None
    if not re.fullmatch(r"-?\d+", candidate.lowest):
        return None
    return IndexBound(candidate.sources[0].tensor, candidate.launch.index, int(candidate.lowest), bound.value)
