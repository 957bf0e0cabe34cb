"""What to do about an index out of bounds: in words and as a guard to paste."""

from __future__ import annotations

from mcp_server.model import Fix
from mcp_server.package.assertion import Candidate, IndexSource


def explain(candidate: Candidate) -> tuple[str, ...]:
    """The chain of facts, one sentence each."""
    bound = candidate.bound
    says = [f"launch {candidate.launch.index} of {candidate.kernel.name} checks it at {candidate.location}"]
    if bound:
        says.append(f"the bound is {bound.describe()}")
    if candidate.indexed:
        says.append(f"the index addresses {', '.join(candidate.indexed)}")
    says += [_origin(source) for source in candidate.sources]
    if not candidate.sources:
        says.append("where the index comes from could not be followed inside the kernel")
    says.append(_negative(candidate))
    if emptiness := can_be_empty(candidate):
        says.append(emptiness)
    return tuple(says)


def _origin(source: IndexSource) -> str:
    if source.direct:
        return f"the index is a value of {source.label}, as given"
    if source.producers:
        made = ", ".join(str(p) for p in source.producers)
        behind = f", which depends on {', '.join(source.inputs)}" if source.inputs else ""
        return f"the index is a value of {source.tensor}, written by launch {made}{behind}"
    return f"the index is a value of {source.label}"


def _negative(candidate: Candidate) -> str:
    if candidate.trace.wraps:
        return f"negative indices count from the end: allowed down to {candidate.lowest}"
    return "negative indices are refused: the kernel does not wrap them"


def can_be_empty(candidate: Candidate) -> str:
    """Whether an empty or shorter tensor alone can fail the check; empty when the bound is a number."""
    bound = candidate.bound
    if bound is None or bound.value is not None:
        return ""
    labels = " or ".join(dict.fromkeys(size.label or size.tensor for size in bound.sizes)) or bound.expression
    shorter = f"a shorter {labels} with the same indices fails the check"
    smallest = bound.smallest
    if smallest == 0:
        return f"{shorter}; an empty one fails it for every index"
    return shorter if smallest is None else f"{shorter}; empty is outside its range (at least {smallest})"


def propose(candidate: Candidate) -> Fix:
    """A guard before the call when the index is an input, else a clamp at the model's line."""
    bound = candidate.bound
    upper = _host_expression(candidate) if bound else "size"
    last = str(bound.value - 1) if bound and bound.value is not None else f"{upper} - 1"
    lower = candidate.lowest if candidate.trace.wraps and bound and bound.value is not None else "0"
    direct = next((source for source in candidate.sources if source.direct), None)
    if direct is not None:
        name = _variable(direct.label)
        return Fix(
            action=f"pass only values from {lower} to {last} in {direct.label}",
            after=f"assert {lower} <= int({name}.min()) and int({name}.max()) < {upper}",
        )
    locations = candidate.provenance.locations
    where = f" at {locations[0].file}:{locations[0].line}" if locations else ""
    named = sorted({label for source in candidate.sources for label in source.inputs})
    inputs = f", or refuse the values of {', '.join(named)} that lead to it" if named else ""
    return Fix(
        action=f"bound the computed index{where}{inputs}",
        before=locations[0].code if locations else None,
        after=f"index = index.clamp(0, {last})",
    )


def _host_expression(candidate: Candidate) -> str:
    """The bound as the caller would write it."""
    bound = candidate.bound
    if bound is None or bound.value is not None or len(bound.sizes) != 1:
        return str(bound.value) if bound and bound.value is not None else bound.expression if bound else ""
    size = bound.sizes[0]
    if size.dim is None or bound.expression != size.symbol:
        return bound.expression
    return f"{_variable(size.label or size.tensor)}.shape[{size.dim}]"


def _variable(label: str) -> str:
    """The caller's name in `input 0 (ids)`."""
    inner = label.rpartition("(")[2].rstrip(")")
    return inner or label
