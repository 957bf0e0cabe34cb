"""Differences between a call and the compiled signature: argument tree, dynamic dimensions and ranges.

Tree: `AOTICompiledModel.__call__` flattens its arguments without comparing the tree (torch 2.8-2.15), so a
dictionary with another key order swaps values silently.

Ranges: the package has the range that code generation derived, not the user's. It is tighter in two known
cases, which are reported as suspicious only:

- export assumes every dynamic size to be at least 2, also for `Dim(min=1)` (seen in torch 2.11 and 2.13);
- CPU code generation guards on products with 4096 (`16*s77 > 4096`, `_inductor/codegen/cpp.py:2273` of
  2.13), which lowers the upper bound to 4096 // k (seen in torch 2.11, 2.13 and 2.15, not in 2.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from mcp_server.model import Category, Fix, Record
from mcp_server.package.arithmetic import evaluate, names_in, whole_number
from mcp_server.package.signature import CompiledDim, CompiledInput, Signature, SymbolDefinition, leaf_paths

Severity = Literal["fatal", "suspicious"]
Aspect = Literal[
    "count",
    "structure",
    "order",
    "device",
    "device_index",
    "dtype",
    "rank",
    "size",
    "range",
    "relation",
    "stride",
]


@dataclass(frozen=True)
class GivenTensor:
    """An input tensor as the caller passes it.

    `shape` and `stride` are in elements; a `stride` of None means contiguous. `device` is torch's text
    (`cuda:0`), `path` the caller's expression (`args[0]['user']`), if known.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    device: str = "cpu"
    path: str | None = None

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]

    @property
    def device_index(self) -> int | None:
        return whole_number(self.device.partition(":")[2])

    @property
    def strides(self) -> tuple[int, ...]:
        return contiguous_strides(self.shape) if self.stride is None else self.stride

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


class Mismatch(Record):
    """One difference. `fatal`: the compiled code may read wrong memory. `suspicious`: possibly a false alarm
    of the compiled range or of the run-time check; `sentence` says why.
    """

    category: Category
    aspect: Aspect
    severity: Severity
    sentence: str
    expected: str
    got: str
    fix: Fix
    input_index: int | None = None
    dim: int | None = None


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as of `torch.empty` (a size of 0 counts as 1)."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


_KEYWORD = "kwargs["


def compare_structure(signature: Signature, passed: Sequence[str]) -> list[Mismatch]:
    """Differences between the paths of the caller's leaves and the exported leaves, tensors or not.

    Only calls with dictionaries are compared: a flat list of tensors has no structure. The order of keyword
    arguments is ignored, since the loader sorts them.
    """
    if signature.in_spec is None or not any("['" in path for path in passed):
        return []
    expected = leaf_paths(signature.in_spec)
    renamed = _as_exported(passed, expected)
    actual = tuple(renamed[i] for i in _sorted_keywords(renamed, expected))
    if actual == expected:
        return []
    return [_reordered(expected, actual) if set(actual) == set(expected) else _other_leaves(expected, actual)]


def calling_order(signature: Signature, passed: Sequence[str]) -> tuple[int, ...]:
    """Indices of the caller's leaves in the order in which the loader passes them."""
    expected = leaf_paths(signature.in_spec) if signature.in_spec is not None else ()
    return _sorted_keywords(_as_exported(passed, expected), expected)


def _sorted_keywords(paths: Sequence[str], expected: Sequence[str]) -> tuple[int, ...]:
    """Positional arguments in order, then keyword arguments in exported order, as indices."""
    names = [_top(path) for path in expected if path.startswith(_KEYWORD)]
    rank = {name: index for index, name in enumerate(dict.fromkeys(names))}
    places = range(len(paths))
    positional = [i for i in places if not paths[i].startswith(_KEYWORD)]
    keywords = [i for i in places if paths[i].startswith(_KEYWORD)]
    return (*positional, *sorted(keywords, key=lambda i: rank.get(_top(paths[i]), len(rank))))


def _top(path: str) -> str:
    return path[: path.find("]") + 1]


def _as_exported(passed: Sequence[str], expected: Sequence[str]) -> tuple[str, ...]:
    """Read a single dictionary argument as keyword arguments if its keys are their names."""
    keywords = tuple(path.replace("args[0][", _KEYWORD, 1) for path in passed)
    return keywords if set(keywords) == set(expected) else tuple(passed)


def _reordered(expected: tuple[str, ...], actual: tuple[str, ...]) -> Mismatch:
    first = next(i for i, (want, got) in enumerate(zip(expected, actual, strict=True)) if want != got)
    return Mismatch(
        category="input_mismatch",
        aspect="structure",
        severity="fatal",
        sentence=f"the dictionary's keys are in another order than at export: {actual[first]} stands where "
        f"{expected[first]} was; AOTInductor passes tensors by position, so that values are swapped silently",
        expected=", ".join(expected),
        got=", ".join(actual),
        fix=Fix(
            action="build the dictionary in the exported order",
            before=", ".join(actual),
            after=", ".join(expected),
        ),
        input_index=first,
    )


def _other_leaves(expected: tuple[str, ...], actual: tuple[str, ...]) -> Mismatch:
    missing = [path for path in expected if path not in actual]
    extra = [path for path in actual if path not in expected]
    return Mismatch(
        category="input_mismatch",
        aspect="structure",
        severity="fatal",
        sentence=f"the arguments are not those of the export: missing {', '.join(missing) or 'none'}, "
        f"unknown {', '.join(extra) or 'none'}; AOTInductor compares neither keys nor structure",
        expected=", ".join(expected),
        got=", ".join(actual),
        fix=Fix(action="pass the arguments with the names and the nesting of the exported call"),
    )


SPECIALIZED_BELOW = 2
CPU_CHUNK = 4096


def symbol_values(signature: Signature, passed: Sequence[GivenTensor]) -> dict[str, int]:
    """The value of each shape symbol for these inputs, as `run_impl` computes it."""
    by_name = {item.name: tensor for item, tensor in zip(signature.inputs, passed, strict=False)}
    values: dict[str, int] = {}
    for definition in signature.symbols:
        value = _defined(definition, by_name.get(definition.name))
        if value is not None and value.denominator == 1:
            values.setdefault(definition.symbol, int(value))
    return values


def _defined(definition: SymbolDefinition, tensor: GivenTensor | None) -> Fraction | None:
    if tensor is None or definition.dim >= len(tensor.shape):
        return None
    sizes = tensor.shape if definition.what == "size" else tensor.strides
    value = sizes[definition.dim]
    if definition.solution is None:
        return Fraction(value)
    return evaluate(definition.solution, {f"{definition.name}_{definition.what}_{definition.dim}": value})


def check_range(
    item: CompiledInput, dim: CompiledDim, got: int, definition: SymbolDefinition | None
) -> Iterator[Mismatch]:
    """A mismatch if a dynamic dimension is outside its compiled range."""
    if dim.lower is not None and got < dim.lower:
        yield _range_mismatch(item, dim, got, "suspicious" if _soft_lower(dim, definition) else "fatal")
    elif dim.upper is not None and got > dim.upper:
        yield _range_mismatch(item, dim, got, "suspicious" if _soft_upper(item, dim) else "fatal")


def _soft_lower(dim: CompiledDim, definition: SymbolDefinition | None) -> bool:
    """Whether the lower bound may come from export's assumption that every symbol is at least 2."""
    if dim.expression is not None:
        symbols = dict.fromkeys(names_in(dim.expression), SPECIALIZED_BELOW)
        return evaluate(dim.expression, symbols) == dim.lower
    if definition is not None and definition.solution is not None and dim.lower is not None:
        lowest = {f"{definition.name}_size_{dim.index}": dim.lower}
        return evaluate(definition.solution, lowest) == SPECIALIZED_BELOW
    return dim.lower == SPECIALIZED_BELOW


def _soft_upper(item: CompiledInput, dim: CompiledDim) -> bool:
    """Whether the upper bound may come from the CPU guard: it is 4096 // k for an integer k."""
    upper = dim.upper or 0
    return item.device_type == "cpu" and upper > 0 and CPU_CHUNK // (CPU_CHUNK // upper or 1) == upper


def _range_mismatch(item: CompiledInput, dim: CompiledDim, got: int, severity: Severity) -> Mismatch:
    low = "0" if dim.lower is None else str(dim.lower)
    high = "any" if dim.upper is None else str(dim.upper)
    below = dim.lower is not None and got < dim.lower
    return Mismatch(
        category="shape_out_of_range",
        aspect="range",
        severity=severity,
        sentence=f"{item.label}: dimension {dim.index} is {got}, outside the compiled range {low}..{high}"
        f"{f' of {dim.expression}' if dim.expression else ''}{_doubt(severity, below)}",
        expected=f"{low}..{high}",
        got=str(got),
        fix=_range_fix(dim, got, below),
        input_index=item.index,
        dim=dim.index,
    )


def _doubt(severity: Severity, below: bool) -> str:
    if severity == "fatal":
        return ""
    if below:
        return "; export raises every lower bound to 2, so that a smaller size may be right all the same"
    return "; on the CPU code generation may have lowered this bound itself, and larger sizes may be right"


def _range_fix(dim: CompiledDim, got: int, below: bool) -> Fix:
    bound, wanted = ("min", dim.lower) if below else ("max", dim.upper)
    return Fix(
        action=f"keep dimension {dim.index} within the compiled range (pad or split the batch), or export "
        "and compile again with a range that holds it; a bound that no Dim states comes from a branch of the "
        "model on this size, of which a package has one side",
        before=f"Dim('n', {bound}={wanted})",
        after=f"Dim('n', {bound}={got})",
    )


def check_relations(signature: Signature, passed: Sequence[GivenTensor]) -> Iterator[Mismatch]:
    """Dimensions that share a symbol, or are an expression of one (`2*s0`), with inconsistent sizes.

    Wrappers record all of these dimensions from torch 2.13 on, before only where a symbol is first read.
    """
    values = symbol_values(signature, passed)
    for item, tensor in zip(signature.inputs, passed, strict=False):
        yield from _indivisible(signature, item, tensor)
        for dim, got in zip(item.dims, tensor.shape, strict=False):
            expected = evaluate(dim.expression, values) if dim.expression and dim.size is None else None
            if expected is not None and expected != got:
                yield _relation(signature, item, dim, int(expected), got)


def _relation(
    signature: Signature, item: CompiledInput, dim: CompiledDim, expected: int, got: int
) -> Mismatch:
    origin = _origin(signature, dim)
    return Mismatch(
        category="shape_out_of_range",
        aspect="relation",
        severity="fatal",
        sentence=f"{item.label}: dimension {dim.index} is {got} and must be {dim} = {expected}{origin}",
        expected=f"{dim} = {expected}",
        got=str(got),
        fix=Fix(action=f"pass {expected} at dimension {dim.index} of {item.label}{origin}"),
        input_index=item.index,
        dim=dim.index,
    )


def _origin(signature: Signature, dim: CompiledDim) -> str:
    """A clause such as ` (s77 is dimension 0 of input 0 (args[0]))`: where the symbols are defined."""
    labels = {item.name: item.label for item in signature.inputs}
    wanted = names_in(dim.expression or "")
    known = [s for s in signature.symbols if s.symbol in wanted and s.name in labels]
    parts = [f"{s.symbol} is read from dimension {s.dim} of {labels[s.name]}" for s in known]
    return f" ({'; '.join(parts)})" if parts else ""


def _indivisible(signature: Signature, item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    """A size that makes its symbol a fraction, such as an odd size for `n = size/2`."""
    for definition in signature.symbols:
        if definition.name != item.name or definition.solution is None or definition.what != "size":
            continue
        value = _defined(definition, tensor)
        if value is not None and value.denominator != 1:
            yield _fraction(item, definition, tensor.shape[definition.dim], value)


def _fraction(item: CompiledInput, definition: SymbolDefinition, got: int, value: Fraction) -> Mismatch:
    multiple = value.denominator
    return Mismatch(
        category="shape_out_of_range",
        aspect="relation",
        severity="fatal",
        sentence=f"{item.label}: dimension {definition.dim} is {got}, and the compiled code needs a "
        f"multiple of {multiple} (it computes {definition.symbol} = {definition.solution})",
        expected=f"a multiple of {multiple}",
        got=str(got),
        fix=Fix(action=f"pad or cut dimension {definition.dim} to a multiple of {multiple}"),
        input_index=item.index,
        dim=definition.dim,
    )
