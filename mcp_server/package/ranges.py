"""Dynamic dimensions: their values against the compiled range and against one another.

The file holds the range that code generation ended with, not the one that the user gave. It is tighter in
two known cases, which are reported as suspicious only:

- export assumes every dynamic size to be at least 2, also for `Dim(min=1)` (seen in torch 2.11 and 2.13);
- CPU code generation guards on products with 4096 (`16*s77 > 4096`, `_inductor/codegen/cpp.py:2273` of
  2.13), which lowers the upper bound to 4096 // k (seen in torch 2.11, 2.13 and 2.15, not in 2.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from mcp_server.model import Fix
from mcp_server.package.arithmetic import evaluate, names_in
from mcp_server.package.mismatch import GivenTensor, Mismatch, Severity
from mcp_server.package.signature import CompiledDim, CompiledInput, Signature, SymbolDefinition

SPECIALIZED_BELOW = 2
CPU_CHUNK = 4096


def symbol_values(signature: Signature, given: Sequence[GivenTensor]) -> dict[str, int]:
    """The value that each shape symbol takes with these inputs, as `run_impl` would compute it."""
    by_name = {item.name: tensor for item, tensor in zip(signature.inputs, given, strict=False)}
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
    """A dynamic dimension below or above its compiled range."""
    if dim.lower is not None and got < dim.lower:
        yield _range_mismatch(item, dim, got, "suspicious" if _soft_lower(dim, definition) else "fatal")
    elif dim.upper is not None and got > dim.upper:
        yield _range_mismatch(item, dim, got, "suspicious" if _soft_upper(item, dim) else "fatal")


def _soft_lower(dim: CompiledDim, definition: SymbolDefinition | None) -> bool:
    """Whether the lower bound is what "every symbol is at least 2" gives."""
    if dim.expression is not None:
        symbols = dict.fromkeys(names_in(dim.expression), SPECIALIZED_BELOW)
        return evaluate(dim.expression, symbols) == dim.lower
    if definition is not None and definition.solution is not None and dim.lower is not None:
        lowest = {f"{definition.name}_size_{dim.index}": dim.lower}
        return evaluate(definition.solution, lowest) == SPECIALIZED_BELOW
    return dim.lower == SPECIALIZED_BELOW


def _soft_upper(item: CompiledInput, dim: CompiledDim) -> bool:
    """Whether the CPU's guard can have made the upper bound: it is 4096 // k for some whole k."""
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


def check_relations(signature: Signature, given: Sequence[GivenTensor]) -> Iterator[Mismatch]:
    """Dimensions that share a symbol or are an expression of one (`2*s0`) and don't fit together.

    Which dimensions do is written down from torch 2.13 on; before, only where a symbol is first read.
    """
    values = symbol_values(signature, given)
    for item, tensor in zip(signature.inputs, given, strict=False):
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
    """Where the symbols of a dimension are read: ` (s77 is dimension 0 of input 0 (args[0]))`."""
    labels = {item.name: item.label for item in signature.inputs}
    wanted = names_in(dim.expression or "")
    known = [s for s in signature.symbols if s.symbol in wanted and s.name in labels]
    parts = [f"{s.symbol} is read from dimension {s.dim} of {labels[s.name]}" for s in known]
    return f" ({'; '.join(parts)})" if parts else ""


def _indivisible(signature: Signature, item: CompiledInput, tensor: GivenTensor) -> Iterator[Mismatch]:
    """A size from which the symbol comes out as a fraction: `n = size/2` of an odd size."""
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
