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

_WHOLE = re.compile(r"(?:static_cast<int64_t>\(|\()*[a-z]\w*\)*")
# `| ~(tmp4 & xmask)` of Triton; masks of the iteration space alone leave no element out.
_CONDITION = re.compile(r"~\((?!(?:[xyzr]\d*_?mask(?: & )?)+\))")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as `launch` reads it, must lie in [low, high).

    `size` names the launch's argument that holds the upper bound when it is known at run time only; then
    `high` is None, and `low` is 0, or None for minus that size (negative indices count from the end).
    """

    name: str
    launch: int
    low: int | None
    high: int | None
    size: str = ""

    def at(self, value: int) -> IndexBound:
        """The bound with the size as the call had it."""
        return IndexBound(self.name, self.launch, -value if self.low is None else self.low, value, self.size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(package: Package, wrapper: Wrapper) -> tuple[IndexBound, ...]:
    """Bounds on tensors whose elements make indices, from the kernels' asserts."""
    tracer = Tracer(wrapper, package.inputs, package.constants)
    found = (_bound(candidate) for candidate in _candidates(tracer, wrapper) if _takes_any(candidate))
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
                    line=generated_line(kernel, check.line),
                    kernel=kernel.name,
                )
            )


def _takes_any(candidate: Candidate) -> bool:
    """Whether the checked value is computed from any element of one tensor.

    A value behind a condition is not, and neither is one at an offset or a step (a column of a table):
    elements that are left out may hold anything.
    """
    line = candidate.kernel.source.split("\n")[candidate.check.line - 1]
    return (
        len(candidate.sources) == 1
        and not _CONDITION.search(line)
        and all(_WHOLE.fullmatch(load.index.strip()) for load in candidate.trace.loads)
    )


def _bound(candidate: Candidate) -> IndexBound | None:
    (source,) = candidate.sources
    if source.allowed is None:
        return None
    name, launch, upper = source.tensor, candidate.launch.index, candidate.check.upper or ""
    if (ends := source.allowed.numbers({})) is not None:
        return IndexBound(name, launch, ends[0], ends[1] + 1)
    plain_size = candidate.form is not None and candidate.form.is_plain
    if plain_size and upper in {a.name for a in candidate.launch.arguments if not a.is_tensor}:
        return IndexBound(name, launch, None if candidate.trace.wraps else 0, None, upper)
    return None
