"""The elements of the inputs behind a bad value, made good: nothing else about the call changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from mcp_server.diagnosis.interventions.base import Change, Intervention, Number, Where
from mcp_server.diagnosis.interventions.input import Leaf, changed, replace_element, together
from mcp_server.diagnosis.origin.records import Condition, OffendingElement, Origin
from mcp_server.diagnosis.origin.values import Tensor

MOST = 64  # elements, or rows of a mask, that are changed one by one
_BOOLEAN = {"True": True, "False": False}

TensorOf = Callable[[int], Tensor | None]


@dataclass(frozen=True)
class _Input:
    """An input behind the bad value: the call's leaf, its offending elements, its values where seen."""

    leaf: Leaf
    elements: Sequence[OffendingElement]
    complete: bool
    tensor: Tensor | None


def made_good(origin: Origin, leaves: Sequence[Leaf], tensor_of: TensorOf) -> Intervention | None:
    """The call with the offending elements made the nearest good value, or a masked row given one element.

    `leaves` are the inputs by their place, `tensor_of` gives the values of one. None where no element of an
    input is known, or no value of it that is good.
    """
    condition = origin.condition
    if condition is not None and condition.good is not None:
        blamed = [e for e in _of_inputs(origin) if e.label == condition.label and _is_bad(e.value, condition)]
        found = _input(blamed, origin, leaves, tensor_of)
        return _by_condition(found, condition, condition.good) if found is not None else None
    masked = [e for e in _of_inputs(origin) if e.value in _BOOLEAN]
    blamed = [e for e in masked if (e.label, e.value) == (masked[0].label, masked[0].value)]
    found = _input(blamed, origin, leaves, tensor_of)
    return _unmasked(found) if found is not None else None


def _of_inputs(origin: Origin) -> list[OffendingElement]:
    return [each for each in origin.elements if each.kind == "input" and each.input_index is not None]


def _input(
    blamed: Sequence[OffendingElement], origin: Origin, leaves: Sequence[Leaf], tensor_of: TensorOf
) -> _Input | None:
    place = blamed[0].input_index if blamed else None
    if place is None or place >= len(leaves):
        return None
    complete = origin.element_count <= len(origin.elements)
    return _Input(leaves[place], blamed, complete, tensor_of(place))


def _is_bad(text: str, condition: Condition) -> bool:
    """Whether a value, as it is shown, is one for which the expression goes wrong."""
    try:
        value = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return False
    return not (
        (condition.low is not None and value < condition.low)
        or (condition.high is not None and value > condition.high)
    )


def _by_condition(found: _Input, condition: Condition, good: Number) -> Intervention | None:
    """One limit for the tensor where it changes these elements alone, else each element by itself."""
    where = _beyond(condition, good)
    alike = _count_bad(found.tensor, condition)
    if where is not None and (alike == len(found.elements) or not found.complete):
        return _limited(found.leaf, where, good)
    if len(found.elements) > MOST:
        return None
    parts = tuple(replace_element(found.leaf, tuple(e.index), good) for e in found.elements if e.index)
    return _joined(found.leaf, parts, f"made {good}") if parts else None


def _beyond(condition: Condition, good: Number) -> Where | None:
    """The elements on the bad side of the only limit; None for a bad range with good values on both sides."""
    if condition.low is not None and condition.high is None:
        return Where(above=good)
    if condition.high is not None and condition.low is None:
        return Where(below=good)
    return None


def _count_bad(tensor: Tensor | None, condition: Condition) -> int:
    """How many elements of the whole tensor are such; -1 where nobody saw them."""
    if tensor is None or tensor.count > 1 << 16:
        return -1
    return sum(_is_bad(str(tensor.at(place)), condition) for place in range(tensor.count))


def _limited(leaf: Leaf, where: Where, good: Number) -> Intervention:
    """The elements beyond the limit made the limit: for them a clamp."""
    above = where.above is not None
    limit = {"high": good} if above else {"low": good}
    made = changed(leaf, Change("elements", leaf.input, where=where, **limit))  # type: ignore[arg-type]
    side = "above" if above else "below"
    return replace(
        made,
        what=f"the call with the elements of {leaf.name} {side} {good} made {good}, the others as they are",
        smallest=True,
    )


def _unmasked(found: _Input) -> Intervention | None:
    """One element of each row of a mask that lets nothing through set the other way round."""
    bad = _BOOLEAN[found.elements[0].value]
    first = tuple(found.elements[0].index)
    if not first:
        return None
    axis = _axis(found, first, bad)
    rows = list(_rows(found.tensor, axis, bad)) if found.tensor is not None else [first]
    if not 0 < len(rows) <= MOST:
        return None
    parts = tuple(_flipped(found.leaf, row, not bad) for row in rows)
    joined = _joined(found.leaf, parts, f"made {not bad}")
    whole = _whole_rows(found.leaf.name, bad) if axis == len(first) - 1 and found.tensor is not None else ""
    return replace(joined, after_code=whole) if whole else joined


def _flipped(leaf: Leaf, index: tuple[int, ...], value: bool) -> Intervention:
    """The worker takes numbers; the code for a person is a bool."""
    made = replace_element(leaf, index, int(value))
    return replace(made, after_code=f"{leaf.name}[{', '.join(map(str, index))}] = {value}")


def _whole_rows(name: str, bad: bool) -> str:
    """The same as code for every mask of that kind."""
    closed = f"{name}.all(-1)" if bad else f"~{name}.any(-1)"
    return f"{name}[{closed}, 0] = {not bad}"


def _axis(found: _Input, first: tuple[int, ...], bad: bool) -> int:
    """The dimension along which the offending elements lie: all of its line are bad."""
    tensor, known = found.tensor, {tuple(each.index) for each in found.elements}
    if tensor is None:
        return len(first) - 1

    def closeness(axis: int) -> tuple[bool, int, int]:
        line = list(_line(tensor, first, axis))
        closed = len(line) > 1 and all(tensor.value(index) == bad for index in line)
        return closed, len(known.intersection(line)), axis

    return max(range(len(first)), key=closeness)


def _line(tensor: Tensor, through: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
    """The indices along `axis`."""
    for place in range(tensor.shape[axis]):
        yield (*through[:axis], place, *through[axis + 1 :])


def _rows(tensor: Tensor, axis: int, bad: bool) -> Iterator[tuple[int, ...]]:
    """The first index of every line along `axis` that has nothing but the bad value."""
    for index in tensor.indices():
        if index[axis] == 0 and all(tensor.value(each) == bad for each in _line(tensor, index, axis)):
            yield index


def _joined(leaf: Leaf, parts: tuple[Intervention, ...], what: str) -> Intervention:
    """Several elements of an input changed at once."""
    if len(parts) == 1:
        return replace(parts[0], smallest=True)
    key = "+".join(part.key for part in parts)
    text = f"the call with {len(parts)} elements of {leaf.name} {what}"
    return replace(together(key, text, parts), before_code=leaf.name, smallest=True)
