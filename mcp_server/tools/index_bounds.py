"""The bounds of the indices that launches read, from their kernels and from the schemas of operators.

A generated kernel has its bounds in asserts. The index arguments of an ATen operator are bounded only by its
schema (aten/src/ATen/native/native_functions.yaml, torch 2.13): they are compared with the shape of the
indexed tensor in the same call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_server.package.assertion import Assertion, Candidate, generated_line
from mcp_server.package.launches import Launch, shim_operator
from mcp_server.package.symbols import plain
from mcp_server.package.terms.linear import Limit, over_loops
from mcp_server.package.terms.parts import elements
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.view import PackageView
from mcp_server.tools.kernel_io import ArgumentValues

# `| ~(tmp4 & xmask)` of Triton; masks of the iteration space alone leave no element out.
_CONDITION = re.compile(r"~\((?!(?:[xyzr]\d*_?mask(?: & )?)+\))")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as read by `launch`, must lie in [low, high).

    If the ends are known only at run time, `size` names the launch's argument that they depend on; then `low`
    and `high` are None, and `allowed` computes them.
    """

    name: str
    launch: int
    low: int | None
    high: int | None
    size: str = ""
    allowed: Limit | None = None

    def at(self, value: int) -> IndexBound:
        """Return the bound for the size in this call."""
        ends = self.allowed.numbers({self.size: value}) if self.allowed else None
        if ends is None:
            return self
        size = self.size if ends[1] + 1 == value else ""
        return IndexBound(self.name, self.launch, ends[0], ends[1] + 1, size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(view: PackageView) -> tuple[IndexBound, ...]:
    """Find bounds on tensors whose elements determine indices, from the kernels' asserts.

    Each tensor of a launch gets one bound that all its checks allow, plus those that depend on a size.
    """
    merged: dict[tuple[str, int], IndexBound] = {}
    sized: dict[IndexBound, None] = {}
    for kernel in view.wrapper.kernels.values():
        for check in find_asserts(kernel.source):
            line = generated_line(kernel, check.line)
            assertion = Assertion(plain(check.text), line=line, kernel=kernel.name)
            for bound in filter(None, map(_bound, view.tracer.trace(assertion))):
                if bound.low is None or bound.high is None:
                    sized[bound] = None
                    continue
                other = merged.setdefault((bound.name, bound.launch), bound)
                low, high = max(bound.low, other.low or 0), min(bound.high, other.high or 0)
                merged[bound.name, bound.launch] = replace(bound, low=low, high=high)
    return (*merged.values(), *sized)


def _bound(candidate: Candidate) -> IndexBound | None:
    """Return the bound on all elements of the tensor from which the checked value is computed.

    None for a value behind a condition, or at an offset or a step (such as a column of a table): elements
    that are skipped may have any value.
    """
    line = candidate.kernel.source.split("\n")[candidate.check.line - 1]
    places = [over_loops(load.index) for load in elements(candidate.value)]
    whole = all(at is not None and not at.constant and [*at.factors.values()] == [1] for at in places)
    if len(candidate.sources) != 1 or _CONDITION.search(line) or not whole:
        return None
    (source,) = candidate.sources
    if source.allowed is None:
        return None
    name, launch = source.tensor, candidate.launch.index
    if (ends := source.allowed.numbers({})) is not None:
        return IndexBound(name, launch, ends[0], ends[1] + 1)
    scalars = {a.name for a in candidate.launch.arguments if not a.is_tensor}
    sizes = {*source.allowed.low.factors, *source.allowed.high.factors}
    if len(sizes) == 1 and sizes <= scalars:
        return IndexBound(name, launch, None, None, sizes.pop(), source.allowed)
    return None


INTEGERS = frozenset({"int64", "int32"})
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Indexing:
    """The elements of `index` are positions in dimension `dim` of `indexed`, which may name an argument.

    If `dim` is None, `index` is a list: its n-th tensor indexes dimension n, negative ones from the end.
    """

    index: str
    indexed: str
    dim: str | int | None


_ALONG = Indexing("index", "self", "dim")
_LOOKUP = Indexing("indices", "weight", 0)
_EACH = Indexing("indices", "self", None)
# The operators whose shim parameters are known by name (`package/calls.py`), without `_out`.
OPERATORS: dict[str, Indexing] = {
    "scatter_src": _ALONG,
    "scatter_value": _ALONG,
    "scatter_reduce_two": _ALONG,
    "index_add": _ALONG,
    "index_copy": _ALONG,
    "_embedding_bag": _LOOKUP,
    "index_put": _EACH,
    "index_Tensor": _EACH,
}


def operator_bounds(launch: Launch, seen: Sequence[ArgumentValues]) -> dict[str, IndexBound]:
    """Return bounds for an extern launch's index arguments, by variable; `seen` has the call's shapes."""
    rule = OPERATORS.get(shim_operator(launch.kernel).removesuffix("_out"))
    if rule is None or launch.kind not in ("extern", "fallback_shim"):
        return {}
    read = {a.name: a for a in seen if a.when == "before"}
    indexed = next((a for a in launch.arguments if a.name == rule.indexed and a.target), None)
    values = read.get(indexed.target or "") if indexed is not None else None
    # The shape of a view created in the call is not known.
    if indexed is None or indexed.view is not None or values is None or values.shape is None:
        return {}
    dim = rule.dim
    if isinstance(dim, str):
        written = next((a.expression for a in launch.arguments if a.name == dim), "")
        number = written.strip().rstrip("L")
        if not _NUMBER.fullmatch(number):
            return {}
        dim = int(number)
    found: dict[str, IndexBound] = {}
    for argument in launch.arguments:
        name, place = argument.target, argument.element if dim is None else dim
        if argument.name != rule.index or name is None or name not in read or place is None:
            continue
        if read[name].dtype in INTEGERS and -len(values.shape) <= place < len(values.shape):
            size = values.shape[place]
            found[name] = IndexBound(name, launch.index, -size if dim is None else 0, size)
    return found
