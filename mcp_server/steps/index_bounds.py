"""Index tensors of a package and the bounds that its own asserts hold them against."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mcp_server.package.archive import Package
from mcp_server.package.assertion import Assertion, Candidate, Tracer, generated_line
from mcp_server.package.bounds import plain
from mcp_server.package.index_form import Allowed
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.wrapper import Wrapper

_WHOLE = re.compile(r"(?:static_cast<int64_t>\(|\()*[a-z]\w*\)*")
# `| ~(tmp4 & xmask)` of Triton; masks of the iteration space alone leave no element out.
_CONDITION = re.compile(r"~\((?!(?:[xyzr]\d*_?mask(?: & )?)+\))")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as `launch` reads it, must lie in [low, high).

    `size` names the launch's argument that the ends depend on when they are known at run time only; then
    `low` and `high` are None, and `allowed` works them out.
    """

    name: str
    launch: int
    low: int | None
    high: int | None
    size: str = ""
    allowed: Allowed | None = None

    def at(self, value: int) -> IndexBound:
        """The bound with the size as the call had it."""
        ends = self.allowed.numbers({self.size: value}) if self.allowed else None
        if ends is None:
            return self
        size = self.size if ends[1] + 1 == value else ""
        return IndexBound(self.name, self.launch, ends[0], ends[1] + 1, size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(package: Package, wrapper: Wrapper) -> tuple[IndexBound, ...]:
    """Bounds on tensors whose elements make indices, from the kernels' asserts."""
    tracer = Tracer(wrapper, package.inputs, package.constants)
    found = (_bound(candidate) for candidate in _candidates(tracer, wrapper) if _takes_any(candidate))
    known = [bound for bound in dict.fromkeys(found) if bound is not None]
    return (*_narrowed(bound for bound in known if not bound.size), *(b for b in known if b.size))


def _narrowed(bounds: Iterable[IndexBound]) -> Iterator[IndexBound]:
    """One bound for each tensor of a launch: what all of its checks allow."""
    merged: dict[tuple[str, int], IndexBound] = {}
    for bound in bounds:
        other = merged.get((bound.name, bound.launch), bound)
        low, high = max(bound.low or 0, other.low or 0), min(bound.high or 0, other.high or 0)
        merged[bound.name, bound.launch] = replace(bound, low=low, high=high)
    yield from merged.values()


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
    name, launch = source.tensor, candidate.launch.index
    if (ends := source.allowed.numbers({})) is not None:
        return IndexBound(name, launch, ends[0], ends[1] + 1)
    scalars = {a.name for a in candidate.launch.arguments if not a.is_tensor}
    sizes = {term for end in (source.allowed.low, source.allowed.high) for term, _ in end.terms}
    if len(sizes) == 1 and sizes <= scalars:
        return IndexBound(name, launch, None, None, sizes.pop(), source.allowed)
    return None
