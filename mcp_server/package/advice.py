"""What to do about an index out of bounds: in words and as a guard to paste."""

from __future__ import annotations

from mcp_server.model import Fix
from mcp_server.package.assertion import Candidate, IndexSource
from mcp_server.package.bounds import Bound, plain
from mcp_server.package.index_form import IndexForm


def explain(candidate: Candidate) -> tuple[str, ...]:
    """The chain of facts, one sentence each."""
    bound = candidate.bound
    says = [f"launch {candidate.launch.index} of {candidate.kernel.name} checks it at {candidate.location}"]
    if bound:
        says.append(f"the bound is {bound.describe()}")
    if candidate.indexed:
        says.append(f"the index addresses {', '.join(candidate.indexed)}")
    says.append(_computation(candidate))
    says += [_about(source, candidate) for source in candidate.sources]
    says.append(_negative(candidate))
    if emptiness := can_be_empty(candidate):
        says.append(emptiness)
    return tuple(sentence for sentence in says if sentence)


def _computation(candidate: Candidate) -> str:
    """How the index is made of what was loaded; empty where it is the loaded element itself."""
    if candidate.position is not None:
        return (
            f"the index comes from no data: it is a position, from 0 to below {candidate.position.describe()}"
        )
    if not candidate.sources:
        return "where the index comes from could not be followed inside the kernel"
    form = candidate.form
    if form is None:
        return "the kernel computes the index by more than sums: no range can be told for what it reads"
    return "" if form.is_plain else f"the index is {_formula(form, candidate)}"


def _formula(form: IndexForm, candidate: Candidate) -> str:
    """`2*x + 1, x being a value of input 0 (ids)`."""
    letters = dict(zip(form.loads, "xyzuvw", strict=False))
    labels = {source.load: source.label for source in candidate.sources}
    elements = [
        f"{letters[n]} being a value of {labels[load]}" for n, load in form.loads.items() if n in letters
    ]
    formula = form.linear.renamed(lambda name: letters.get(name) or _size_in_words(name, candidate))
    return ", ".join([formula, *elements])


def _about(source: IndexSource, candidate: Candidate) -> str:
    """Where a loaded element comes from, and what it may be."""
    allowed = source.allowed.texts(lambda name: _size_in_words(name, candidate)) if source.allowed else None
    told = f"; it may be {allowed[0]} to {allowed[1]}" if allowed else ""
    return f"{_origin(source, candidate)}{told}"


def _origin(source: IndexSource, candidate: Candidate) -> str:
    plain = candidate.form is not None and candidate.form.is_plain
    what = "the index is" if plain else "the kernel reads"
    if source.direct:
        return f"{what} a value of {source.label}, as given"
    if source.producers:
        made = ", ".join(map(str, source.producers))
        here = " (this one)" if source.producers == (candidate.launch.index,) else ""
        behind = f", which depends on {', '.join(source.inputs)}" if source.inputs else ""
        return f"{what} a value of {source.tensor}, written by launch {made}{here}{behind}"
    return f"{what} a value of {source.label}"


def _negative(candidate: Candidate) -> str:
    if candidate.trace.wraps:
        return f"negative indices count from the end: allowed down to {candidate.lowest}"
    return "" if candidate.position else "negative indices are refused: the kernel does not wrap them"


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
    """A guard before the call when an input decides the index, else a clamp at the model's line."""
    if candidate.position is not None and candidate.bound is not None:
        return _shorter(candidate, candidate.position, candidate.bound)
    for source in candidate.sources:
        ends = source.allowed.texts(lambda name: _host_size(name, candidate)) if source.allowed else None
        if source.direct and ends is not None:
            return _guard(source, ends)
    return _clamp(candidate)


def _guard(source: IndexSource, ends: tuple[str, str]) -> Fix:
    name = _variable(source.label)
    return Fix(
        action=f"pass only values from {ends[0]} to {ends[1]} in {source.label}",
        after=f"assert {ends[0]} <= int({name}.min()) and int({name}.max()) <= {ends[1]}",
    )


def _shorter(candidate: Candidate, position: Bound, bound: Bound) -> Fix:
    """The index is a position: what is too long is a dimension."""
    size, limit = _host_size(position.text, candidate), _host_size(bound.text, candidate)
    return Fix(
        action=f"keep {size} at {limit} or less (positions run through it), or enlarge what they index",
        after=f"assert {size} <= {limit}",
    )


def _clamp(candidate: Candidate) -> Fix:
    bound = candidate.bound
    last = str(bound.value - 1) if bound and bound.value is not None else "size - 1"
    if bound and bound.value is None:
        last = f"{_host_size(bound.text, candidate)} - 1"
    locations = candidate.provenance.locations
    where = f" at {locations[0].file}:{locations[0].line}" if locations else ""
    named = sorted({label for source in candidate.sources for label in source.inputs})
    inputs = f", or refuse the values of {', '.join(named)} that lead to it" if named else ""
    return Fix(
        action=f"bound the computed index{where}{inputs}",
        before=locations[0].code if locations else None,
        after=f"index = index.clamp(0, {last})",
    )


def _size_in_words(name: str, candidate: Candidate) -> str:
    """A kernel's argument over the wrapper's symbols: `s77` for `ks0`."""
    values = {a.name: a.expression for a in candidate.launch.arguments if a.name}
    return plain(values.get(name, name))


def _host_size(text: str, candidate: Candidate) -> str:
    """A bound as the caller would write it: `ids.shape[1]` for the kernel's `ks0`."""
    bounds = [bound for bound in (candidate.bound, candidate.position) if bound and bound.text == text]
    expression = bounds[0].expression if bounds else _size_in_words(text, candidate)
    sizes = {size.symbol: size for bound in bounds for size in bound.sizes}
    size = sizes.get(expression)
    if size is None or size.dim is None:
        return expression
    return f"{_variable(size.label or size.tensor)}.shape[{size.dim}]"


def _variable(label: str) -> str:
    """The caller's name in `input 0 (ids)`."""
    inner = label.rpartition("(")[2].rstrip(")")
    return inner or label
